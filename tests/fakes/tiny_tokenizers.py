"""Small tokenizers of each supported kind, made in milliseconds, without a model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TEXT = "<naïve tool>"  # an added token that is not special, and not of ASCII alone

MANY_SCRIPTS = (
    "The quick brown fox jumps over the lazy dog. "
    "한국어 문장은 조합형 글자로 쓴다. 日本語と漢字と仮名。 中文没有空格。 "
    "é café naïve Ελληνικά кириллица عربى עברית ไทย हिन्दी "
    "🙂🙃👍🏽👩‍👩‍👧‍👦🇩🇪 \ufffd \ufffd\ufffd e\u0301 a\u0308 \u200d"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM: merges cut through characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator([MANY_SCRIPTS] * 3, trainer)
    tokenizer.add_tokens([ADDED_TEXT])
    return tokenizer


def sentencepiece_style() -> Tokenizer:
    """As Llama 2 and Mistral: a visible space before words, bytes for what has no token."""
    words = ["▁", "▁▁", "▁the", "▁a", "fox", "▁fox", ".", "é", "한", "日", "<0xZZ>"]
    tokens = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[],
            byte_fallback=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def metaspace() -> Tokenizer:
    """As older SentencePiece conversions: the first token loses its space marks."""
    tokenizer = sentencepiece_style()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, template: str | None = CHAT_TEMPLATE, **config: object
) -> Path:
    """Write the tokenizer's part of a model folder; ``config`` goes into tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
