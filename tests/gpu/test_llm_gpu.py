"""The model on a CUDA device, against the plain formula on the CPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.errors import StartupError
from engine.llm.model import PagedModel, RowGroup, load_model_folder
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="torch sees no CUDA device: bf16, fused attention and swapping are not tested",
    ),
]

SIZE = 16
TOKENS = random.Random(0).choices(range(256), k=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"), head_dim=64)


def build(folder: Path, device: str, weights: str, *, is_fused: bool = True) -> PagedModel:
    loaded = load_model_folder(folder, weights=weights, device=device, threads=1)
    return PagedModel(loaded, 64, SIZE, fused_attention=is_fused)


def group(tokens: list[int], start: int, blocks: list[int]) -> RowGroup:
    return RowGroup(
        token_ids=tokens[start:],
        start_position=start,
        blocks=blocks,
        num_logits=len(tokens) - start,
        is_prompt=len(tokens) - start > 8,
    )


def mixed(model: PagedModel) -> torch.Tensor:
    """A prompt in chunks, then its decode beside drafts and another prompt."""
    first, second = list(range(30, 5, -1)), list(range(31, 52))
    model.execute([group(TOKENS[:100], 0, first)])
    model.execute([group(TOKENS[:299], 100, first), group(TOKENS[:40], 0, second)])
    third = list(range(52, 56))
    groups = [group(TOKENS, 299, first), group(TOKENS[:45], 40, second)]
    return model.execute([*groups, group(TOKENS[100:150], 0, third)]).cpu()


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize(("weights", "tolerance"), [("fp32", 0.005), ("bf16", 0.05)])
def test_device_computes_what_the_cpu_computes(
    folder: Path, weights: str, tolerance: float, is_fused: bool
) -> None:
    expected = mixed(build(folder, "cpu", "fp32", is_fused=False))
    found = mixed(build(folder, "cuda", weights, is_fused=is_fused))
    assert (found - expected).norm() / expected.norm() < tolerance


def test_auto_is_bf16_on_the_device(folder: Path) -> None:
    loaded = load_model_folder(folder)
    assert (loaded.device.type, loaded.weights) == ("cuda", "bf16")
    assert loaded.memory_for_cache(0.5) > 0
    with pytest.raises(StartupError, match="int8 is for the CPU"):
        load_model_folder(folder, weights="int8", device="cuda")


def test_swapped_blocks_come_back_while_steps_go_on(folder: Path) -> None:
    model = build(folder, "cuda", "fp32")
    blocks = list(range(20))
    model.execute([group(TOKENS[:299], 0, blocks)])
    expected = model.execute([group(TOKENS, 299, blocks)])
    handle = model.swap_out(blocks[:19])
    for _ in range(3):  # overwrites at once what has just been taken out
        model.execute([group(TOKENS[::-1], 0, blocks[:19])])
    other = list(range(60, 41, -1))
    model.swap_in(handle, other)
    torch.testing.assert_close(model.execute([group(TOKENS, 299, other)]), expected)


def test_step_that_does_not_fit_says_so_and_the_next_one_runs(folder: Path) -> None:
    model = build(folder, "cuda", "fp32")
    blocks = list(range(20))
    expected = model.execute([group(TOKENS, 0, blocks)])
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((total - free) / total * 0.01)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            model.execute([group(TOKENS, 0, blocks) for _ in range(200)])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(model.execute([group(TOKENS, 0, blocks)]), expected)
