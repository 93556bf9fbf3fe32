"""English-like prompts of any length: seeded sentences, some of which come again, as in texts."""

from __future__ import annotations

import random

NOUNS = (
    "river", "engine", "teacher", "garden", "signal", "window", "harbour", "letter", "market",
    "winter", "bridge", "doctor", "camera", "village", "student", "forest", "machine", "island",
)  # fmt: skip
VERBS = (
    "crosses", "follows", "remembers", "repairs", "describes", "watches", "leaves", "measures",
    "finds", "carries", "forgets", "paints", "hears", "opens", "needs", "answers",
)  # fmt: skip
ADJECTIVES = (
    "old", "quiet", "bright", "narrow", "patient", "distant", "broken", "small", "green", "heavy",
    "early", "hidden", "warm", "careful", "empty", "famous",
)  # fmt: skip
REPEATED_SHARE = 0.2


def prose(seed: int, num_words: int) -> str:
    """At least ``num_words`` words, the same for the same arguments."""
    dice = random.Random(seed)
    sentences: list[str] = []
    count = 0
    while count < num_words:
        if sentences and dice.random() < REPEATED_SHARE:
            sentence = dice.choice(sentences)
        else:
            sentence = _sentence(dice)
        sentences.append(sentence)
        count += len(sentence.split())
    return " ".join(sentences)


def _sentence(dice: random.Random) -> str:
    subject, other = dice.sample(NOUNS, 2)
    first, second = dice.sample(ADJECTIVES, 2)
    return f"The {first} {subject} {dice.choice(VERBS)} the {second} {other}."
