"""Stop strings against a model that looks at the whole text after every character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llm.text.stop_strings import StopStrings

pytestmark = pytest.mark.property

LETTERS = "ab "  # few, so that stops overlap with themselves and each other
texts = st.text(alphabet=LETTERS, max_size=30)
stop_lists = st.lists(st.text(alphabet=LETTERS, min_size=1, max_size=6), max_size=4)


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            found = max(complete, key=len)
            return text[: end - len(found)], found
    return text, None


@given(st.lists(texts, max_size=10), stop_lists)
def test_any_chunking_ends_where_the_model_ends(chunks: list[str], stops: list[str]) -> None:
    stream = StopStrings(stops)
    told = "".join([stream.push(chunk) for chunk in chunks]) + stream.finish()
    assert (told, stream.found) == cut_at_first_stop("".join(chunks), stops)


@given(st.lists(texts, max_size=10), stop_lists)
def test_only_what_may_become_a_stop_is_held_back(chunks: list[str], stops: list[str]) -> None:
    stream = StopStrings(stops)
    told, text = "", ""
    for chunk in chunks:
        told += stream.push(chunk)
        text += chunk
        if stream.found is not None:
            return
        prefixes = {stop[:size] for stop in stops for size in range(1, len(stop))}
        held = max((len(prefix) for prefix in prefixes if text.endswith(prefix)), default=0)
        assert told == text[: len(text) - held]
