"""Prompts on their way to becoming sequences: delivered, refused or withdrawn, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import msgspec
import pytest

from engine.llm.generation import Generation
from engine.llm.messages import Refused, Submit
from engine.llm.request import ChatMessage, PromptPayload, Sampling
from engine.llm.text.tokenizer import Tokenizer
from engine.llm.worker.tokenising import Tokenising
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.unit

WAIT_S = 10.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return Tokenizer(write_tiny_llm(folder))


class Bench:
    """A stage with one working thread."""

    def __init__(self, tokenizer: Any, *, works: bool = True, **options: Any) -> None:
        self.said: Queue[Generation | Refused] = Queue()
        limits = {"max_seq_length": 64, "speculative_tokens": 4, "capacity": 8, **options}
        self.stage = Tokenising(
            tokenizer, None, deliver=self.said.put, refuse=self.said.put, **limits
        )
        if works:
            threading.Thread(target=self.stage.work_forever, daemon=True).start()

    def submit(self, key: int, payload: PromptPayload | bytes, **fields: Any) -> None:
        encoded = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        values: dict[str, Any] = {
            "tenant": "t",
            "rank": 2,
            "weight": 1.5,
            "arrived_us": 2_000_000,
            "deadline_us": 0,
            **fields,
        }
        self.stage.submit(Submit(key=key, payload=encoded, **values))

    def next_said(self) -> Generation | Refused:
        return self.said.get(timeout=WAIT_S)

    def next_refused(self) -> Refused:
        said = self.next_said()
        assert isinstance(said, Refused)
        return said

    def next_generation(self) -> Generation:
        said = self.next_said()
        assert isinstance(said, Generation)
        return said


@pytest.fixture
def bench(tokenizer: Tokenizer) -> Iterator[Bench]:
    bench = Bench(tokenizer)
    yield bench
    assert not bench.stage.has_work()
    with pytest.raises(Empty):
        bench.said.get_nowait()


def test_a_text_becomes_a_sequence(bench: Bench, tokenizer: Tokenizer) -> None:
    sampling = Sampling(max_tokens=5, seed=3)
    bench.submit(1, PromptPayload(prompt="abc", sampling=sampling), deadline_us=3_500_000)
    generation = bench.next_generation()
    sequence = generation.sequence
    assert sequence.prompt_ids == tokenizer.encode_text("abc")
    assert (sequence.key, sequence.max_tokens, sequence.rank) == (1, 5, 2)
    assert (sequence.tenant, sequence.weight) == ("t", 1.5)
    assert (sequence.arrived_at, sequence.deadline) == (2.0, 3.5)
    assert generation.sampling == sampling
    assert generation.seed == 3


def test_a_conversation_goes_through_the_template(bench: Bench, tokenizer: Tokenizer) -> None:
    messages = (ChatMessage(role="user", content="hi"),)
    bench.submit(1, PromptPayload(messages=messages))
    sequence = bench.next_generation().sequence
    assert sequence.prompt_ids == tokenizer.encode_chat(messages)
    assert (sequence.max_tokens, sequence.deadline) == (None, None)


def test_token_ids_are_taken_as_they_are(bench: Bench) -> None:
    bench.submit(1, PromptPayload(prompt=(5, 6, 7)))
    assert bench.next_generation().sequence.prompt_ids == [5, 6, 7]


def test_without_a_seed_each_answer_gets_its_own(bench: Bench) -> None:
    for key in (1, 2):
        bench.submit(key, PromptPayload(prompt="a"))
    assert bench.next_generation().seed != bench.next_generation().seed


def test_a_repetition_penalty_turns_look_ahead_off(bench: Bench) -> None:
    bench.submit(1, PromptPayload(prompt="a"))
    assert bench.next_generation().look_ahead is not None
    bench.submit(2, PromptPayload(prompt="a", sampling=Sampling(repetition_penalty=1.1)))
    assert bench.next_generation().look_ahead is None


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (b"no json", "prompt"),
        (b'{"prompt": "a", "sampling": {"beams": 3}}', "beams"),
        (b'{"prompt": "a", "messages": []}', "exactly one"),
        (b'{"prompt": "\xff"}', "prompt"),
        (b'{"prompt": [900]}', "900"),
        (b'{"prompt": ""}', "empty"),
    ],
)
def test_bad_prompts_are_refused_with_the_reason(bench: Bench, payload: bytes, word: str) -> None:
    bench.submit(1, payload)
    refused = bench.next_refused()
    assert (refused.key, refused.code) == (1, "invalid_input")
    assert word in refused.detail


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(bench: Bench) -> None:
    bench.submit(1, PromptPayload(prompt=(1,) * 64))
    assert bench.next_refused().code == "invalid_input"
    bench.submit(2, PromptPayload(prompt=(1,) * 63))
    assert bench.next_generation().key == 2


def test_a_fault_of_ours_is_told_by_reference_and_ends_nothing_else(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        token_bytes = tokenizer.token_bytes

        def encode(self, payload: PromptPayload, max_tokens: int) -> list[int]:
            if payload.prompt == "bad":
                raise ZeroDivisionError
            return [1]

    bench = Bench(Broken())
    bench.submit(1, PromptPayload(prompt="bad"))
    refused = bench.next_refused()
    assert refused.code == "internal_error"
    assert refused.detail in caplog.text
    bench.submit(2, PromptPayload(prompt="good"))
    assert bench.next_generation().key == 2


def test_more_than_the_capacity_is_refused_at_once(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, works=False, capacity=2)
    for key in range(3):
        bench.submit(key, PromptPayload(prompt="a"))
    refused = bench.next_refused()
    assert (refused.key, refused.code) == (2, "overloaded")


def test_a_withdrawn_prompt_is_not_heard_of_again(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, works=False)
    for key in range(3):
        bench.submit(key, PromptPayload(prompt="a"))
    assert bench.stage.withdraw(1)
    assert not bench.stage.withdraw(1)
    threading.Thread(target=bench.stage.work_forever, daemon=True).start()
    assert [bench.next_generation().key for _ in range(2)] == [0, 2]
    assert not bench.stage.withdraw(0)  # delivered: the next stage has it
