"""The right tokens from the real model, whatever else is in the batch: compared with transformers,
and with themselves when alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import LlmConfig
from engine.llm.model import PagedModel, RowGroup
from engine.llm.text.tokenizer import Tokenizer
from engine.models.store import ModelStore
from loadtest.local_engine import MODEL, LocalEngine, Told, open_model
from loadtest.prose import prose

pytestmark = pytest.mark.slow

NUM_PROMPTS = 50
SHORTEST, LONGEST = 5, 1500
SYSTEM_TOKENS = 64  # that half of the prompts begin with
NUM_LEAVING = 8
CACHE_BYTES = 130 << 20  # about two of the longest prompts
TOLERANCE = 1e-3
INT8_TIE = 0.05


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(ModelStore().pull(MODEL).files["model"])


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    """Lengths from shortest to longest in equal ratios; every other one begins like the others."""
    tokenizer = Tokenizer(folder)
    system = tokenizer.encode_text(prose(0, SYSTEM_TOKENS))[:SYSTEM_TOKENS]
    ratio = (LONGEST / SHORTEST) ** (1 / (NUM_PROMPTS - 1))
    prompts = []
    for number in range(NUM_PROMPTS):
        length = round(SHORTEST * ratio**number)
        own = tokenizer.encode_text(prose(number + 1, length))
        shared = system if number % 2 and length > 2 * SYSTEM_TOKENS else []
        prompts.append([*shared, *own][:length])
    assert [len(prompts[0]), len(prompts[-1])] == [SHORTEST, LONGEST]
    return prompts


def output_length(number: int) -> int:
    return 16 + 37 * number % 80


def answer_in_one_batch(engine: LocalEngine, prompts: Sequence[list[int]]) -> list[Told]:
    """All prompts, joining one by one in no order of length, in three classes; now and then
    somebody joins who leaves again before the end."""
    asked: dict[int, Told] = {}
    leaving: list[Told] = []
    joins = iter(sorted(range(len(prompts)), key=lambda number: 31 * number % len(prompts)))
    num_steps = 0
    while len(asked) < len(prompts) or not engine.runner.is_idle:
        number = next(joins, None) if num_steps % 3 == 0 else None
        if number is not None:
            asked[number] = engine.submit(prompts[number], output_length(number), rank=number % 3)
            if number % (len(prompts) // NUM_LEAVING) == 0:
                leaving.append(engine.submit(prompts[number][::-1], 200))
        engine.step()
        engine.scheduler.check_integrity()
        for told in leaving:
            if len(told.token_ids) > 5 and not told.reason:
                engine.runner.cancel(told.sequence.key)
        num_steps += 1
    assert engine.pool.num_owned == 0
    assert all(len(told.token_ids) < 200 for told in leaving)
    return [asked[number] for number in range(len(prompts))]


def test_tokens_are_those_of_transformers_whatever_happens_in_the_batch(
    folder: Path, prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    config = LlmConfig(
        weights="fp32",
        threads=1,
        max_batch_size=16,
        max_seq_length=2048,
        max_step_ms=300.0,  # fp32 is slow here: in less time no guess would ever be verified
        kv_cache_bytes=CACHE_BYTES,
    )
    engine = LocalEngine(
        open_model(config), config, speculative_max_batch=16, max_swapped_blocks=20
    )
    answers = answer_in_one_batch(engine, prompts)
    happened = engine.scheduler.statistics()
    assert happened.preemptions > 5
    assert happened.swaps > 0
    assert happened.preemptions > happened.swaps
    assert happened.cached_prompt_tokens > 0
    assert happened.accepted > 0

    num_tokens, num_ties, worst = 0, 0, 0.0
    reference = open_reference(folder)
    for number, told in enumerate(answers):
        assert told.reason == "length"
        assert len(told.token_ids) == output_length(number)
        shortfalls = reference_shortfalls(reference, told)
        num_tokens += len(shortfalls)
        num_ties += int((shortfalls > 0).sum())
        worst = max(worst, float(shortfalls.max()))
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what the test is for
            f"\n{NUM_PROMPTS} prompts, {num_tokens} tokens: worst logit {worst:.2g} below the "
            f"maximum, {num_ties} ties; {happened.preemptions} preemptions, {happened.swaps} of "
            f"them swapped, {happened.cached_prompt_tokens} prompt tokens cached, "
            f"{happened.accepted} of {happened.drafted} guesses right"
        )
    assert worst <= TOLERANCE
    assert num_ties <= 0.01 * num_tokens


def open_reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def reference_shortfalls(reference: Any, told: Told) -> torch.Tensor:
    """How far each chosen token's logit is below the largest, all of them in one pass."""
    known = torch.tensor([told.prompt_and_output[:-1]])
    chosen = torch.tensor(told.token_ids)
    logits: torch.Tensor = reference(known).logits[0, -len(chosen) :]
    return logits.max(-1).values - logits.gather(1, chosen[:, None])[:, 0]


def test_int8_answers_are_the_same_alone_and_in_company(
    prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    config = LlmConfig(
        weights="int8",
        threads=1,
        max_batch_size=16,
        max_seq_length=2048,
        kv_cache_bytes=CACHE_BYTES,
    )
    model = open_model(config)
    some = prompts[::3]
    company = answer_in_one_batch(LocalEngine(model, config), some)
    num_ties, widest = 0, 0.0
    alone = LocalEngine(
        model, LlmConfig(weights="int8", threads=1, prefix_cache=False, speculative_tokens=0)
    )
    for number, told in enumerate(company):
        single = alone.submit(some[number], output_length(number))
        alone.run()
        same = count_same(told.token_ids, single.token_ids)
        if same < len(told.token_ids):
            num_ties += 1
            known = [*some[number], *told.token_ids[:same]]
            logits = last_logits(model, known)
            gap = abs(float(logits[told.token_ids[same]] - logits[single.token_ids[same]]))
            widest = max(widest, gap)
    num_tokens = sum(len(told.token_ids) for told in company)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are what the test is for
            f"\nint8, {len(some)} prompts, {num_tokens} tokens: {num_ties} answers differ from a "
            f"tie on, the widest of {widest:.2g}"
        )
    assert widest <= INT8_TIE


def count_same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens agree before the first that does not."""
    pairs = zip(one, other, strict=True)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(one))


def last_logits(model: PagedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits after ``token_ids``, computed in one piece in a cache that nobody else uses."""
    num_blocks = math.ceil(len(token_ids) / model.block_size)
    group = RowGroup(
        token_ids=token_ids,
        start_position=0,
        blocks=range(num_blocks),
        num_logits=1,
        is_prompt=True,
    )
    return model.execute([group])[0]
