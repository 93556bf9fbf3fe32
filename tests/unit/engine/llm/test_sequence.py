"""The state table, and the lengths that everything else derives from."""

from __future__ import annotations

import math
from itertools import product

import pytest

from engine.llm.sequence import RELEASE_VALID_S, Sequence, SequenceEvent, SequenceState

pytestmark = pytest.mark.unit

ALLOWED = {
    ("WAITING", "ADMIT"): "RUNNING",
    ("WAITING", "END"): "FINISHED",
    ("WAITING", "ABORT"): "ABORTING",
    ("RUNNING", "PREEMPT"): "PREEMPTED",
    ("RUNNING", "END"): "FINISHED",
    ("RUNNING", "ABORT"): "ABORTING",
    ("PREEMPTED", "ADMIT"): "RUNNING",
    ("PREEMPTED", "END"): "FINISHED",
    ("PREEMPTED", "ABORT"): "ABORTING",
    ("ABORTING", "RELEASE"): "FINISHED",
}


def make(num_prompt: int = 3, output: int = 0, max_tokens: int = 5) -> Sequence:
    sequence = Sequence(key=1, prompt_ids=list(range(num_prompt)), max_tokens=max_tokens)
    sequence.output_ids += range(100, 100 + output)
    return sequence


@pytest.mark.parametrize(("state", "event"), [*product(SequenceState, SequenceEvent)])
def test_every_event_in_every_state(state: SequenceState, event: SequenceEvent) -> None:
    sequence = make()
    sequence.state = state
    following = ALLOWED.get((state.name, event.name))
    if following is None:
        with pytest.raises(ValueError, match=event.name):
            sequence.apply(event)
        assert sequence.state is state
    else:
        sequence.apply(event)
        assert sequence.state.name == following


@pytest.mark.parametrize(
    "wrong",
    [{"prompt_ids": []}, {"max_tokens": 0}, {"weight": 0.0}, {"weight": math.inf}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"prompt|max_tokens|weight"):
        Sequence(**{"key": 1, "prompt_ids": [1], **wrong})


def test_lengths_follow_from_the_tokens() -> None:
    sequence = make(num_prompt=3, output=2, max_tokens=5)
    sequence.num_computed = 4
    assert sequence.num_tokens == 5
    assert sequence.num_to_compute == 1
    assert sequence.num_left == 3
    assert sequence.max_slots == 7


def test_nothing_is_left_to_compute_at_max_tokens() -> None:
    sequence = make(num_prompt=3, output=5, max_tokens=5)
    sequence.num_computed = 7
    assert sequence.num_to_compute == 0


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (0, 3), (1, 5), (3, 5), (4, 5), (2, 2)])
def test_tokens_span_prompt_and_output(start: int, stop: int) -> None:
    sequence = make(num_prompt=3, output=2)
    assert sequence.tokens(start, stop) == (0, 1, 2, 100, 101)[start:stop]


def test_laxity_is_what_the_pacer_still_holds() -> None:
    sequence = make(output=20, max_tokens=50)
    sequence.set_release(5, 10.0, at=1.0)
    sequence.update_laxity(now=1.0)
    assert sequence.laxity_s == pytest.approx(1.5)
    sequence.update_laxity(now=1.5)
    assert sequence.laxity_s == pytest.approx(1.0)


def test_a_drained_pacer_leaves_no_laxity() -> None:
    sequence = make(output=2)
    sequence.set_release(1, 10.0, at=1.0)
    sequence.update_laxity(now=1.5)
    assert sequence.laxity_s == 0.0


def test_a_stalled_reader_has_all_the_time_until_its_record_is_old() -> None:
    sequence = make(output=2)
    sequence.set_release(1, 0.0, at=1.0)
    sequence.update_laxity(now=1.5)
    assert sequence.laxity_s == math.inf
    sequence.update_laxity(now=1.0 + RELEASE_VALID_S + 0.01)
    assert sequence.laxity_s == 0.0


def test_without_a_pacer_every_token_is_waited_for() -> None:
    sequence = make(output=2)
    sequence.update_laxity(now=1.0)
    assert sequence.laxity_s == 0.0


def test_the_representation_tells_no_prompt() -> None:
    text = repr(Sequence(key=4, prompt_ids=[123456]))
    assert "123456" not in text
    assert "WAITING" in text
