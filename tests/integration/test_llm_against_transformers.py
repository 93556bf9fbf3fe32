"""Our decoder computes what transformers computes: every family, and the model of the catalogue."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.llm.model import LoadedModel, PagedModel, RowGroup, load_model_folder
from engine.models.store import ModelStore
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.integration

SIZE = 16
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ("llama", {"num_key_value_heads": 4}),
    ("mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    ("qwen2", {"rope_theta": 1e6}),
    ("qwen3", {"head_dim": 32}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
]


class Reference:
    """transformers in float32, one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Of every position."""
        found: torch.Tensor = self._model(torch.tensor([list(tokens)])).logits[0]
        return found


def run_mixed(model: PagedModel, prompts: Sequence[Sequence[int]], seed: int) -> list[torch.Tensor]:
    """Every prompt's logits, made in steps of a random mixture: chunks of any size beside single
    tokens, in both forms of attention, sequences joining and ending, block tables shuffled."""
    rng = random.Random(seed)
    free = list(range(model.num_blocks))
    rng.shuffle(free)
    tables = [[free.pop() for _ in range(-(-len(prompt) // SIZE))] for prompt in prompts]
    done = [0] * len(prompts)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    while running := [i for i, prompt in enumerate(prompts) if done[i] < len(prompt)]:
        chosen = rng.sample(running, rng.randint(1, len(running)))
        sizes = [
            min(rng.choice((1, 1, 3, 8, 9, 64, 100)), len(prompts[i]) - done[i]) for i in chosen
        ]
        groups = [
            RowGroup(
                token_ids=prompts[i][done[i] : done[i] + size],
                start_position=done[i],
                blocks=tables[i],
                num_logits=size,
                is_prompt=rng.random() < 0.5,
            )
            for i, size in zip(chosen, sizes, strict=True)
        ]
        rows = model.execute(groups).split(sizes)
        for i, size, part in zip(chosen, sizes, rows, strict=True):
            logits[i].append(part)
            done[i] += size
    return [torch.cat(parts) for parts in logits]


@pytest.mark.parametrize(("model_type", "config"), FAMILIES)
def test_family_computes_the_same(tmp_path: Path, model_type: str, config: dict[str, Any]) -> None:
    folder = write_tiny_llm(tmp_path, model_type=model_type, **config)
    prompts = [random.Random(n).choices(range(256), k=n) for n in (5, 33, 150)]
    loaded = load_model_folder(folder, weights="fp32", device="cpu", threads=1)
    found = run_mixed(PagedModel(loaded, 40, SIZE), prompts, seed=1)
    reference = Reference(folder)
    for prompt, logits in zip(prompts, found, strict=True):
        torch.testing.assert_close(logits, reference.logits(prompt), atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(ModelStore().pull("smollm2-135m").files["model"])


@pytest.fixture(scope="module")
def smollm2(folder: Path) -> LoadedModel:
    return load_model_folder(folder, weights="fp32", device="cpu", threads=1)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def expected(reference: Reference) -> list[torch.Tensor]:
    """Logits of every one of ``PROMPTS``."""
    return [reference.logits(prompt) for prompt in PROMPTS]


def random_prompts(lengths: Sequence[int]) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(17, 49_000) for _ in range(length)] for length in lengths]


PROMPTS = random_prompts((5, 16, 17, 64, 300))


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "plain"])
def test_smollm2_gives_the_logits_of_transformers(
    smollm2: LoadedModel, expected: list[torch.Tensor], is_fused: bool
) -> None:
    model = PagedModel(smollm2, 40, SIZE, fused_attention=is_fused)
    found = run_mixed(model, PROMPTS, seed=int(is_fused))
    for logits, right in zip(found, expected, strict=True):
        assert (logits - right).abs().max() < 1e-3
        chosen = right.gather(1, logits.argmax(-1, keepdim=True))[:, 0]
        assert torch.all(chosen >= right.amax(-1) - 1e-3)


def test_shared_prefix_gives_the_logits_of_transformers(
    smollm2: LoadedModel, reference: Reference
) -> None:
    prefix, first, second = random_prompts((48, 10, 20))
    model = PagedModel(smollm2, 16, SIZE)
    shared = [7, 3, 11]

    def run(tokens: list[int], start: int, blocks: list[int]) -> torch.Tensor:
        group = RowGroup(
            token_ids=tokens[start:],
            start_position=start,
            blocks=blocks,
            num_logits=len(tokens) - start,
        )
        return model.execute([group])

    run(prefix + first, 0, [*shared, 2])
    found = run(prefix + second, len(prefix), [*shared, 5, 0])
    expected = reference.logits(prefix + second)[len(prefix) :]
    assert (found - expected).abs().max() < 1e-3
