from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.errors import StartupError
from engine.llm.linear import is_int8_supported
from engine.llm.model import LoadedModel, PagedModel, RowGroup, load_model_folder
from tests.fakes.tiny_llm import VOCABULARY, write_tiny_llm

pytestmark = pytest.mark.unit

SIZE = 8
PRECISIONS = ["fp32", "bf16"] + (["int8"] if is_int8_supported() else [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"))


def load(folder: Path, weights: str = "fp32", **options: int) -> LoadedModel:
    return load_model_folder(folder, weights=weights, device="cpu", threads=1, **options)


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=num_tokens)


def group(
    tokens: list[int], blocks: list[int], start: int = 0, num_logits: int | None = None
) -> RowGroup:
    return RowGroup(
        token_ids=tokens[start:],
        start_position=start,
        blocks=blocks,
        num_logits=len(tokens) - start if num_logits is None else num_logits,
    )


def run_alone(loaded: LoadedModel, tokens: list[int]) -> torch.Tensor:
    """Logits of every position, the prompt at once in a cache of its own."""
    return PagedModel(loaded, 16, SIZE).execute([group(tokens, list(range(16)))])


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_only_wanted_rows_come_back_in_the_order_of_the_groups(folder: Path) -> None:
    loaded = load(folder)
    first, second = prompt(20, 1), prompt(3, 2)
    model = PagedModel(loaded, 16, SIZE)
    logits = model.execute(
        [
            group(first, [0, 1, 2], num_logits=1),
            group(prompt(9, 3), [3, 4], num_logits=0),
            group(second, [5], num_logits=2),
        ]
    )
    assert logits.shape == (3, VOCABULARY)
    assert logits.dtype == torch.float32
    assert_close(logits[0], run_alone(loaded, first)[-1])
    assert_close(logits[1:], run_alone(loaded, second)[-2:])


def test_step_without_logits_is_allowed(folder: Path) -> None:
    model = PagedModel(load(folder), 4, SIZE)
    assert model.execute([group(prompt(5), [1], num_logits=0)]).shape == (0, VOCABULARY)


@pytest.mark.parametrize("chunks", [[50], [1] * 50, [7, 1, 30, 12], [8, 8, 34]])
def test_chunked_prompt_gives_what_the_whole_gives(folder: Path, chunks: list[int]) -> None:
    loaded, tokens = load(folder), prompt(50)
    model = PagedModel(loaded, 16, SIZE)
    blocks = [9, 3, 12, 0, 7, 5, 1]
    logits, start = [], 0
    for size in chunks:
        logits.append(model.execute([group(tokens[: start + size], blocks, start)]))
        start += size
    assert_close(torch.cat(logits), run_alone(loaded, tokens))


def test_sequences_may_share_the_blocks_of_a_common_prefix(folder: Path) -> None:
    loaded = load(folder)
    prefix = prompt(2 * SIZE)
    first, second = prefix + prompt(5, 1), prefix + prompt(11, 2)
    model = PagedModel(loaded, 16, SIZE)
    model.execute([group(first, [4, 9, 2])])
    logits = model.execute([group(second, [4, 9, 7, 8], start=2 * SIZE)])
    assert_close(logits, run_alone(loaded, second)[2 * SIZE :])
    # What the second wrote has not touched the first.
    longer = [*first, 65]
    assert_close(
        model.execute([group(longer, [4, 9, 2], len(first))])[0], run_alone(loaded, longer)[-1]
    )


def test_copied_and_swapped_blocks_carry_the_sequence_on(folder: Path) -> None:
    loaded, tokens = load(folder), prompt(20)
    model = PagedModel(loaded, 16, SIZE)
    model.execute([group(tokens[:19], [0, 1, 2])])
    expected = run_alone(loaded, tokens)[-1:]
    model.copy_block(2, 5)
    assert_close(model.execute([group(tokens, [0, 1, 5], 19)]), expected)
    handle = model.swap_out([0, 1, 2])
    model.execute([group(prompt(24, 7), [0, 1, 2])])
    model.swap_in(handle, [8, 6, 4])
    assert_close(model.execute([group(tokens, [8, 6, 4], 19)]), expected)


def test_plain_attention_is_the_fused_ones_reference(folder: Path) -> None:
    loaded, tokens = load(folder), prompt(70)
    plain = PagedModel(loaded, 16, SIZE, fused_attention=False)
    assert_close(plain.execute([group(tokens, list(range(16)))]), run_alone(loaded, tokens))


@pytest.mark.parametrize("weights", PRECISIONS)
def test_cheaper_weights_choose_mostly_the_same_tokens(folder: Path, weights: str) -> None:
    tokens = prompt(100)
    expected = run_alone(load(folder), tokens)
    logits = run_alone(load(folder, weights), tokens)
    assert (logits - expected).norm() / expected.norm() < 0.08
    assert (logits.argmax(-1) == expected.argmax(-1)).float().mean() > 0.85


def answers(loaded: LoadedModel, prompts: list[list[int]], batch: int) -> torch.Tensor:
    """Logits of each prompt's last token and of three decodes after it, in batches of ``batch``."""
    model = PagedModel(loaded, 16 * len(prompts), SIZE)
    tables = [list(range(16 * i, 16 * i + 16)) for i in range(len(prompts))]
    random.Random(batch).shuffle(tables)
    rows: list[torch.Tensor] = []
    for extra in range(4):
        sequences = [tokens + [11, 22, 33][:extra] for tokens in prompts]
        starts = [0 if extra == 0 else len(tokens) - 1 for tokens in sequences]
        groups = [
            group(tokens, table, start, num_logits=1)
            for tokens, table, start in zip(sequences, tables, starts, strict=True)
        ]
        rows += [model.execute(groups[at : at + batch]) for at in range(0, len(groups), batch)]
    return torch.cat(rows)


PROMPTS = [prompt(n, n) for n in (1, 5, 8, 9, 16, 17, 30, 63, 64, 65, 100)]


@pytest.mark.skipif(not is_int8_supported(), reason="torch has no int8 kernels here")
@pytest.mark.parametrize("batch", [2, 3, 11])
def test_int8_rows_have_the_same_bits_in_any_company(folder: Path, batch: int) -> None:
    loaded = load(folder, "int8")
    assert torch.equal(answers(loaded, PROMPTS, batch), answers(loaded, PROMPTS, 1))


def test_fp32_rows_are_the_same_in_any_company(folder: Path) -> None:
    loaded = load(folder)
    assert_close(answers(loaded, PROMPTS, 11), answers(loaded, PROMPTS, 1))


@pytest.mark.skipif(not is_int8_supported(), reason="torch has no int8 kernels here")
def test_draft_tokens_get_the_bits_of_decodes(folder: Path) -> None:
    tokens = prompt(30)
    model = PagedModel(load(folder, "int8"), 16, SIZE)
    blocks = list(range(16))
    model.execute([group(tokens[:21], blocks)])
    together = model.execute([group(tokens[:26], blocks, 21)])
    alone = [model.execute([group(tokens[: 22 + i], blocks, 21 + i)]) for i in range(5)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "cuda"}, "torch sees no CUDA device"),
        ({"device": "abacus"}, "device must be auto, cpu or cuda, got 'abacus'"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_impossible_devices_are_refused(folder: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(StartupError, match=text):
        load_model_folder(folder, threads=1, **options)


def test_sliding_window_is_refused_unless_it_covers_the_whole_sequence(tmp_path: Path) -> None:
    write_tiny_llm(tmp_path, model_type="mistral", sliding_window=64)
    with pytest.raises(StartupError, match=r"slides over 64 tokens, .* max_seq_length to 64"):
        load(tmp_path, max_seq_length=65)
    assert load(tmp_path, max_seq_length=64).max_seq_length == 64


def test_sequence_is_never_longer_than_the_models_context(folder: Path) -> None:
    assert load(folder, max_seq_length=1_000_000).max_seq_length == 2048
    assert load(folder, max_seq_length=100).max_seq_length == 100


def test_loaded_model_says_what_it_is_and_what_a_cache_takes(folder: Path) -> None:
    loaded = load_model_folder(folder, threads=1, device="cpu")
    assert loaded.weights == ("int8" if is_int8_supported() else "fp32")
    assert loaded.bytes_per_block(16) == 2 * 16 * 2 * 2 * 16 * 4
    assert PagedModel(loaded, 3, 16).bytes_per_block == loaded.bytes_per_block(16)
    assert 0 < loaded.memory_for_cache(0.1) < loaded.memory_for_cache(0.5)


@pytest.mark.skipif(not is_int8_supported(), reason="torch has no int8 kernels here")
@pytest.mark.parametrize("chunks", [[1] * 100, [7, 1, 30, 62], [31, 33, 36], [95, 5]])
def test_prompt_has_the_same_bits_however_it_is_cut(folder: Path, chunks: list[int]) -> None:
    # The scheduler cuts by time, so by company; int8 rounding makes a last bit a logit's tenth.
    loaded, tokens = load(folder, "int8"), prompt(100)
    model = PagedModel(loaded, 16, SIZE)
    logits, start = [], 0
    for size in chunks:
        piece = group(tokens[: start + size], list(range(16)), start)
        logits.append(model.execute([replace(piece, is_prompt=True)]))
        start += size
    whole = replace(group(tokens, list(range(16))), is_prompt=True)
    assert torch.equal(torch.cat(logits), PagedModel(loaded, 16, SIZE).execute([whole]))
