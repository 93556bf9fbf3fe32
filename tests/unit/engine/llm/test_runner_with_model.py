"""The runner over a real, tiny model: look-ahead, chunks and preemption change no token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.llm.answer import Answer
from engine.llm.blocks import BlockPool
from engine.llm.generation import Generation
from engine.llm.model import LoadedModel, PagedModel, load_model_folder
from engine.llm.request import Sampling
from engine.llm.runner import Runner
from engine.llm.scheduler import Scheduler, SchedulerConfig
from engine.llm.sequence import Sequence
from engine.llm.speculation import LookAhead, NgramIndex
from engine.llm.step_cost import StepCost
from tests.fakes.llm_bench import GREEDY, NumberText
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.unit

BLOCK = 8
PROMPTS = [list(range(length)) + [5, 6, 7, 8] * 4 for length in (1, 9, 30, 60)]
MAX_TOKENS = 60


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = write_tiny_llm(tmp_path_factory.mktemp("tiny"))
    return load_model_folder(folder, weights="fp32", device="cpu", threads=1, max_seq_length=256)


def generate(
    loaded: LoadedModel,
    prompts: list[list[int]],
    sampling: Sampling,
    *,
    num_blocks: int = 128,
    speculative_tokens: int = 0,
    **config: Any,
) -> tuple[list[list[int]], Runner]:
    pool = BlockPool(num_blocks, BLOCK)
    # Time is none of this test's business: every step may be as long as it likes.
    values = {"max_seq_length": 256, "max_step_ms": 1e6, **config}
    scheduler = Scheduler(SchedulerConfig(**values), pool, StepCost())
    runner = Runner(PagedModel(loaded, num_blocks, BLOCK), scheduler, frozenset())
    tokens: dict[int, list[int]] = {}
    for key, prompt in enumerate(prompts):
        ahead = LookAhead(NgramIndex(prompt, 256), speculative_tokens)
        runner.submit(
            Generation(
                sequence=Sequence(key=key, prompt_ids=list(prompt), max_tokens=MAX_TOKENS),
                sampling=sampling,
                answer=Answer(key, len(prompt), NumberText()),
                look_ahead=ahead if speculative_tokens else None,
            )
        )
        tokens[key] = []
    while not runner.is_idle:
        for growth in runner.step():
            tokens[growth.answer.key] += growth.token_ids
        scheduler.check_integrity()
    return [tokens[key] for key in range(len(prompts))], runner


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=0.7, top_p=0.9, seed=1)], ids=["greedy", "drawn"]
)
def test_look_ahead_chunks_and_preemption_change_no_token(
    loaded: LoadedModel, sampling: Sampling
) -> None:
    alone = [generate(loaded, [prompt], sampling)[0][0] for prompt in PROMPTS]
    together, runner = generate(loaded, PROMPTS, sampling, speculative_tokens=4)
    assert together == alone
    assert runner.gauges().drafted > 0
    crowded, runner = generate(
        loaded, PROMPTS, sampling, speculative_tokens=4, num_blocks=24, max_chunk_tokens=16
    )
    assert crowded == alone
    assert runner.gauges().preemptions > 0


def test_right_guesses_save_steps(loaded: LoadedModel) -> None:
    plain, slow = generate(loaded, PROMPTS[:1], GREEDY)
    guessed, fast = generate(loaded, PROMPTS[:1], GREEDY, speculative_tokens=4)
    assert guessed == plain
    assert fast.num_steps == slow.num_steps - fast.gauges().accepted
    assert fast.gauges().accepted > 0


def test_a_penalty_sees_the_prompt(loaded: LoadedModel) -> None:
    penalised = structs.replace(GREEDY, repetition_penalty=10.0)
    tokens, _ = generate(loaded, [PROMPTS[3]], penalised)
    assert not set(PROMPTS[3]) & set(tokens[0][:20])
