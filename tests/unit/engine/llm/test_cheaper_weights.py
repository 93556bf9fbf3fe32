"""One model with two sets of weights: what a change between two steps does, and who asks for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import torch

from engine.errors import StartupError
from engine.llm.linear import is_int8_supported
from engine.llm.messages import Finish, Gauges, StepItem, UseCheaper
from engine.llm.model import LoadedModel, PagedModel, RowGroup, load_model_folder
from engine.llm.request import Sampling
from engine.llm.step_cost import StepCost, StepShape
from engine.llm.worker.warm_up import WarmUp
from engine.types import Result
from tests.fakes.llm_bench import RunnerBench
from tests.fakes.llm_client_bench import LlmClientBench, running_llm
from tests.fakes.llm_model import expected_tokens
from tests.fakes.tiny_llm import write_tiny_llm
from tests.fakes.virtual_time import settle, virtual_time

pytestmark = pytest.mark.unit

SIZE = 8
TOKENS = list(range(40, 90))
CHEAPER = "int8" if is_int8_supported() else "bf16"
ANSWER = Sampling(temperature=0.0, max_tokens=4)


# --- the model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"))


def load(folder: Path, weights: str, cheaper_weights: str = "") -> LoadedModel:
    return load_model_folder(
        folder, weights=weights, cheaper_weights=cheaper_weights, device="cpu", threads=1
    )


def prefill(model: PagedModel, first_block: int = 0) -> torch.Tensor:
    """Logits of every position."""
    blocks = range(first_block, first_block + 7)
    return model.execute(
        [RowGroup(token_ids=TOKENS, start_position=0, blocks=blocks, num_logits=len(TOKENS))]
    )


@pytest.mark.parametrize("cheaper", sorted({"bf16", CHEAPER}))
def test_each_set_gives_the_very_logits_of_a_model_that_has_it_alone(
    folder: Path, cheaper: str
) -> None:
    model = PagedModel(load(folder, "fp32", cheaper), 28, SIZE)
    usual = prefill(PagedModel(load(folder, "fp32"), 7, SIZE))
    assert torch.equal(prefill(model), usual)
    model.use_cheaper(True)
    # What bf16 computes passes through a cache of fp32 unchanged.
    assert torch.equal(prefill(model, 7), prefill(PagedModel(load(folder, cheaper), 7, SIZE)))
    model.use_cheaper(False)
    assert torch.equal(prefill(model, 14), usual)


def test_a_sequence_goes_on_over_what_the_other_set_computed(folder: Path) -> None:
    model = PagedModel(load(folder, "fp32", CHEAPER), 7, SIZE)
    expected = prefill(model)[-1]
    for is_cheaper, start, stop in ((False, 0, 20), (True, 20, 40), (False, 40, 50)):
        model.use_cheaper(is_cheaper)
        piece = RowGroup(
            token_ids=TOKENS[start:stop], start_position=start, blocks=range(7), num_logits=1
        )
        logits = model.execute([piece])[-1]
    assert (logits - expected).norm() / expected.norm() < 0.08
    assert logits.argmax() == expected.argmax()


def test_a_model_without_cheaper_weights_has_none_to_change_to(folder: Path) -> None:
    with pytest.raises(ValueError, match="no cheaper weights"):
        PagedModel(load(folder, "fp32"), 7, SIZE).use_cheaper(True)


def test_cheaper_weights_that_the_device_cannot_run_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.llm.model.is_int8_supported", lambda: False)
    with pytest.raises(StartupError, match="cheaper_weights = int8 needs"):
        load(folder, "fp32", "int8")


def test_warming_up_learns_what_either_set_costs_and_leaves_the_usual_one(folder: Path) -> None:
    model, cost = PagedModel(load(folder, "fp32", CHEAPER), 28, SIZE), StepCost()
    usual = prefill(model)
    WarmUp(model, 224).learn_cheaper_costs(cost, max_batch_size=2)
    shape = StepShape(num_decodes=1, decode_context=64)
    assert cost.predict(shape) == 0.0
    cost.use_cheaper(True)
    assert cost.predict(shape) > 0.0
    assert torch.equal(prefill(model), usual)


# --- the runner


def finish_of(bench: RunnerBench, key: int) -> Finish:
    finish = bench.received[key].finish
    assert finish is not None
    return finish


def ask(bench: RunnerBench, key: int, prompt: list[int]) -> Finish:
    bench.submit(key, prompt, ANSWER)
    bench.run()
    assert bench.received[key].tokens == expected_tokens(prompt, 4)
    return finish_of(bench, key)


def test_prefixes_are_shared_only_with_what_the_same_weights_computed() -> None:
    bench, prompt = RunnerBench(), [1, 2, 3, 4] * 3
    assert ask(bench, 0, prompt).cached_tokens == 0
    bench.runner.use_cheaper(True)
    told = [ask(bench, key, prompt) for key in (1, 2)]
    assert [(finish.cached_tokens, finish.is_cheaper) for finish in told] == [(0, True), (8, True)]
    bench.runner.use_cheaper(False)
    finish = ask(bench, 3, prompt)
    assert (finish.cached_tokens, finish.is_cheaper) == (8, False)
    bench.check_empty()


@pytest.mark.parametrize("is_cheaper", [False, True])
def test_what_runs_through_a_change_says_so_and_shares_its_blocks_no_more(
    is_cheaper: bool,
) -> None:
    bench, prompt = RunnerBench(), [1, 2, 3, 4, 5]
    bench.submit(0, prompt, Sampling(temperature=0.0, max_tokens=20))
    for is_on in (False, True, False):
        bench.runner.use_cheaper(is_on)
        bench.step()
        bench.step()
    bench.run()
    assert bench.received[0].tokens == expected_tokens(prompt, 20)
    assert finish_of(bench, 0).is_cheaper
    bench.runner.use_cheaper(is_cheaper)
    again = [*prompt, *bench.received[0].tokens]
    assert ask(bench, 1, again).cached_tokens == (0 if is_cheaper else 4)
    bench.check_empty()


def test_a_prompt_that_waits_through_a_change_finds_the_prefix_of_its_own_weights() -> None:
    bench, prompt = RunnerBench(), [1, 2, 3, 4] * 3
    bench.runner.use_cheaper(True)
    ask(bench, 0, prompt)
    bench.runner.use_cheaper(False)
    bench.submit(1, prompt, ANSWER)
    bench.runner.use_cheaper(True)
    bench.run()
    assert finish_of(bench, 1).cached_tokens == 8


def test_gauges_tell_which_set_is_in_use() -> None:
    bench = RunnerBench()
    assert not bench.runner.gauges().is_cheaper
    bench.runner.use_cheaper(True)
    assert bench.runner.gauges().is_cheaper


# --- the client's side


def say_gauges(bench: LlmClientBench, *, is_cheaper: bool) -> None:
    assert bench.host.llm is not None
    gauges: Gauges = msgspec.structs.replace(bench.host.llm.gauges(), is_cheaper=is_cheaper)
    bench.host.say(gauges)


def orders(bench: LlmClientBench) -> list[bool]:
    return [message.is_on for message in bench.host.sent if isinstance(message, UseCheaper)]


@virtual_time
async def test_the_worker_is_told_whenever_it_runs_with_other_weights_than_the_level_asks() -> None:
    level = 0
    async with running_llm(
        weights="fp32", cheaper_weights="int8", service_level=lambda: level
    ) as bench:
        say_gauges(bench, is_cheaper=False)
        assert orders(bench) == []
        level = 1
        say_gauges(bench, is_cheaper=False)
        bench.host.pause()
        say_gauges(bench, is_cheaper=False)
        bench.host.resume()
        say_gauges(bench, is_cheaper=True)
        assert orders(bench) == [True]
        level = 3
        say_gauges(bench, is_cheaper=True)
        bench.host.die()
        await asyncio.sleep(0.2)
        say_gauges(bench, is_cheaper=False)
        assert orders(bench) == [True, True]
        level = 0
        say_gauges(bench, is_cheaper=True)
        assert orders(bench) == [True, True, False]


@virtual_time
async def test_without_the_key_no_level_changes_anything() -> None:
    async with running_llm(service_level=lambda: 3) as bench:
        say_gauges(bench, is_cheaper=False)
        assert not bench.host.sent


@virtual_time
async def test_an_answer_that_had_cheaper_help_names_it_in_its_version() -> None:
    async with running_llm(weights="fp32", cheaper_weights="int8") as bench:
        lane = bench.lane()
        items = [bench.ask(lane, "!hold"), bench.ask(lane, "!hold")]
        await settle()
        for submit, is_cheaper in zip(bench.submits, (True, False), strict=True):
            end = Finish(
                reason="stop",
                prompt_tokens=1,
                completion_tokens=1,
                cached_tokens=0,
                is_cheaper=is_cheaper,
            )
            bench.host.say_step(StepItem(submit.key, ("a",), end))
        told = [bench.outcomes[item] for item in items]
        assert [result.version for result in told if isinstance(result, Result)] == ["1+int8", "1"]
