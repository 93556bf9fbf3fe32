"""The second and third stage together, over the fake model, up to the bytes for the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec
import pytest

from engine.llm.answer import Answer
from engine.llm.generation import Generation
from engine.llm.messages import Finish as AnswerEnd
from engine.llm.messages import Gauges, Refused, Step, Up, UseCheaper
from engine.llm.request import Sampling
from engine.llm.sequence import Sequence as TokenSequence
from engine.llm.worker.answering import CAPACITY as STEPS_IN_LINE
from engine.llm.worker.answering import Answering
from engine.llm.worker.outgoing import CAPACITY as MESSAGES_IN_LINE
from engine.llm.worker.outgoing import Outgoing
from engine.llm.worker.stepping import Cancel, Finish, StepFailed, Stepping
from engine.workers.channel import LENGTH
from tests.fakes.llm_bench import NumberText, RunnerBench
from tests.fakes.llm_model import Group, expected_tokens

pytestmark = pytest.mark.unit

WAIT_S = 10.0
EPOCH = 3


class Stages:
    """Everything behind the tokenising threads. ``gate`` closed means a host that reads nothing."""

    def __init__(self, *, memory: int = 0, max_waiting: int = 100) -> None:
        self.bench = RunnerBench(memory=memory, max_waiting=max_waiting, num_blocks=256)
        self.gate = threading.Event()
        self.gate.set()
        self.messages: list[Up] = []
        self.error: BaseException | None = None
        self._decoder = msgspec.msgpack.Decoder(Up)
        outgoing = Outgoing(self._send)
        answering = Answering(outgoing, EPOCH, lambda key: self.stepping.put(Cancel(key)))
        self.stepping = Stepping(
            self.bench.runner,
            answering,
            has_more=lambda: False,
            tell_gauges=outgoing.try_put,
            capacity=100,
        )
        for work in (outgoing.send_forever, answering.work_forever):
            threading.Thread(target=work, daemon=True).start()
        self._main = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._main.start()

    def join(self) -> None:
        self._main.join(WAIT_S)
        assert not self._main.is_alive()

    def run(self) -> None:
        """Do what was put, to the end."""
        self.stepping.put(Finish())
        self.start()
        self.join()

    def submit(
        self, key: int, prompt: Sequence[int], max_tokens: int, text: NumberText | None = None
    ) -> None:
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        sequence = TokenSequence(key=key, prompt_ids=list(prompt), max_tokens=max_tokens)
        answer = Answer(key, len(prompt), text or NumberText())
        self.stepping.put(Generation(sequence=sequence, sampling=sampling, answer=answer))

    def text_of(self, key: int) -> str:
        items = [item for step in self.steps() for item in step.items if item.key == key]
        return "".join(text for item in items for text in item.texts)

    def ends_of(self, key: int) -> list[AnswerEnd]:
        items = [item for step in self.steps() for item in step.items if item.key == key]
        return [item.finish for item in items if item.finish is not None]

    def steps(self) -> list[Step]:
        return [message for message in self.messages if isinstance(message, Step)]

    def _run(self) -> None:
        try:
            self.stepping.run()
        except StepFailed as error:
            self.error = error

    def _send(self, encoded: bytes) -> None:
        self.gate.wait(WAIT_S)
        self.messages.append(self._decoder.decode(encoded[LENGTH.size :]))


def answer_text(prompt: Sequence[int], max_tokens: int, memory: int = 0) -> str:
    return "".join(f"{token} " for token in expected_tokens(prompt, max_tokens, memory=memory))


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not come true")


def test_everything_is_answered_before_it_returns() -> None:
    stages = Stages()
    for key in range(5):
        stages.submit(key, [key, 1, 2], 10 + key)
    stages.run()
    for key in range(5):
        assert stages.text_of(key) == answer_text([key, 1, 2], 10 + key)
        assert [end.reason for end in stages.ends_of(key)] == ["length"]
    assert {step.epoch for step in stages.steps()} == {EPOCH}
    numbers = [step.step for step in stages.steps()]
    assert numbers == sorted(set(numbers))
    stages.bench.check_empty()


def test_gauges_are_told() -> None:
    stages = Stages()
    stages.submit(1, [1, 2], 3)
    stages.run()
    assert any(isinstance(message, Gauges) for message in stages.messages)


def test_other_weights_serve_from_the_next_step_on(caplog: pytest.LogCaptureFixture) -> None:
    stages = Stages()
    caplog.set_level("INFO")
    for _ in range(2):
        stages.stepping.put(UseCheaper(True))
    stages.submit(1, [1, 2], 3)
    stages.run()
    assert [end.is_cheaper for end in stages.ends_of(1)] == [True]
    assert caplog.text.count("steps run with the cheaper weights") == 1


def test_what_the_scheduler_refuses_is_told() -> None:
    stages = Stages(max_waiting=1)
    stages.submit(1, [1], 5)
    stages.submit(2, [1], 5)
    stages.submit(3, [1] * 300, 5)
    stages.run()
    refused = {m.key: m.code for m in stages.messages if isinstance(m, Refused)}
    assert refused == {2: "overloaded", 3: "invalid_input"}
    assert len(stages.ends_of(1)) == 1


def test_a_cancelled_answer_is_not_ended_and_its_blocks_are_free() -> None:
    stages = Stages()
    stages.submit(1, [1, 2], 200)
    stages.submit(2, [1, 3], 5)
    stages.stepping.put(Cancel(1))
    stages.run()
    assert stages.ends_of(1) == []
    assert len(stages.ends_of(2)) == 1
    stages.bench.check_empty()


def test_an_answer_that_its_text_ends_stops_its_sequence() -> None:
    stages = Stages()
    tokens = expected_tokens([1, 2], 150)
    stop = tokens[5]
    stages.submit(1, [1, 2], 200, NumberText(frozenset({stop})))
    stages.run()
    (end,) = stages.ends_of(1)
    assert (end.reason, end.completion_tokens) == ("stop", tokens.index(stop) + 1)
    assert stages.bench.runner.num_steps < 150  # a few more than the answer has
    stages.bench.check_empty()


def test_a_host_that_does_not_read_stops_the_steps_but_not_the_cancels() -> None:
    stages = Stages()
    stages.submit(1, [1, 2], 200)
    stages.gate.clear()
    stages.start()
    in_line = MESSAGES_IN_LINE + STEPS_IN_LINE + 4  # and one in each thread's hands
    wait_until(lambda: stages.bench.runner.num_steps >= STEPS_IN_LINE + MESSAGES_IN_LINE)
    threading.Event().wait(0.1)
    assert stages.bench.runner.num_steps <= in_line
    stages.stepping.put(Cancel(1))
    wait_until(lambda: stages.bench.pool.num_owned == 0)
    stages.gate.set()
    stages.stepping.put(Finish())
    stages.join()
    assert stages.ends_of(1) == []


def test_a_failed_step_answers_everybody_and_ends_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stages = Stages()

    def fail_later(groups: Sequence[Group]) -> None:
        if len(stages.bench.model.steps) == 3:
            raise RuntimeError("a kernel failed")

    stages.bench.before_step = fail_later
    for key in range(3):
        stages.submit(key, [key], 50)
    stages.run()
    assert isinstance(stages.error, StepFailed)
    for key in range(3):
        (end,) = stages.ends_of(key)
        assert end.reason == "error"
        assert end.detail in caplog.text
    assert "a kernel failed" in caplog.text


def test_a_text_that_fails_ends_only_its_own_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(NumberText):
        def push(self, token_id: int) -> str:
            raise ZeroDivisionError

    stages = Stages()
    stages.submit(1, [1], 50, Broken())
    stages.submit(2, [2], 50)
    stages.run()
    (end,) = stages.ends_of(1)
    assert end.reason == "error"
    assert end.detail in caplog.text
    assert stages.text_of(2) == answer_text([2], 50)
    stages.bench.check_empty()
