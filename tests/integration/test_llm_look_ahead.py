"""The real model's answers stay the same, token for token, with guesses and with company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.config import LlmConfig
from engine.llm.model import PagedModel
from engine.llm.text.tokenizer import Tokenizer
from engine.models.store import ModelStore
from loadtest.local_engine import MODEL, LocalEngine, Told, open_model
from loadtest.prose import prose

pytestmark = pytest.mark.slow

NUM_TOKENS = 48
CACHE_BYTES = 64 << 20


def config(weights: str, speculative_tokens: int, threads: int = 1) -> LlmConfig:
    return LlmConfig(
        weights=weights,
        threads=threads,
        max_batch_size=8,
        max_seq_length=1024,
        max_step_ms=300.0,  # fp32 is slow here: in less time no guess would ever be verified
        kv_cache_bytes=CACHE_BYTES,
        prefix_cache=False,
        speculative_tokens=speculative_tokens,
    )


def encode(text: str) -> list[int]:
    return Tokenizer(Path(ModelStore().pull(MODEL).files["model"])).encode_text(text)


def answer(
    model: PagedModel, settings: LlmConfig, prompts: Sequence[list[int]]
) -> tuple[list[Told], LocalEngine]:
    engine = LocalEngine(model, settings)
    told = [engine.submit(prompt, NUM_TOKENS) for prompt in prompts]
    engine.run()
    return told, engine


def test_guesses_do_not_change_a_token_of_the_fp32_answer() -> None:
    repetitive = "The red fox saw the blue bird. The blue bird saw the red fox. " * 6
    prompts = [encode(repetitive), encode(prose(1, 60)), encode("1, 2, 3, 4, 1, 2, 3, 4, 1, 2,")]
    model = open_model(config("fp32", 0))
    plain = [answer(model, config("fp32", 0), [prompt])[0][0].token_ids for prompt in prompts]
    for prompt, expected in zip(prompts, plain, strict=True):
        (told,), _ = answer(model, config("fp32", 4), [prompt])
        assert told.token_ids == expected
    _, engine = answer(model, config("fp32", 4), prompts[:1])
    assert engine.scheduler.statistics().accepted > 0


def test_company_does_not_change_a_token_of_the_int8_answer_with_two_threads() -> None:
    # The scheduler cuts the prompts by time, so each run of this cuts them anew.
    settings = config("int8", 0, threads=2)
    model = open_model(settings)
    prompts = [encode(prose(number, length)) for number, length in enumerate((9, 40, 150, 300))]
    company, _ = answer(model, settings, prompts)
    for prompt, told in zip(prompts, company, strict=True):
        (alone,), _ = answer(model, settings, [prompt])
        assert told.token_ids == alone.token_ids
