from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.llm.packing import (
    MAX_CALL_TOKENS,
    WINDOW_TOKENS,
    PackedStep,
    RowGroup,
    pack,
    padded_width,
)

pytestmark = pytest.mark.unit

SIZE = 4  # tokens per block
CPU = torch.device("cpu")


def group(start: int, num_tokens: int, blocks: list[int], num_logits: int = 1) -> RowGroup:
    tokens = tuple(range(100 + start, 100 + start + num_tokens))
    return RowGroup(token_ids=tokens, start_position=start, blocks=blocks, num_logits=num_logits)


def prompt(start: int, num_tokens: int, blocks: list[int]) -> RowGroup:
    return replace(group(start, num_tokens, blocks), is_prompt=True)


def packed(*groups: RowGroup) -> PackedStep:
    return pack(groups, SIZE, CPU)


def test_token_is_written_where_its_block_table_says() -> None:
    step = packed(group(3, 3, [7, 2]))
    rows = zip(step.positions.tolist(), step.token_ids.tolist(), step.slots.tolist(), strict=True)
    assert sorted(rows) == [
        (3, 103, 7 * SIZE + 3),
        (4, 104, 2 * SIZE),
        (5, 105, 2 * SIZE + 1),
    ]


def test_decodes_of_one_width_share_a_call() -> None:
    step = packed(group(4, 1, [1, 2]), group(10, 1, [3, 4, 5]), group(7, 1, [6, 7]))
    assert [(span.rows, span.num_tables, span.length) for span in step.spans] == [
        (slice(0, 2), 2, 2 * SIZE),
        (slice(2, 3), 1, 3 * SIZE),
    ]
    assert step.spans[0].blocks.tolist() == [1, 2, 6, 7]


def test_logits_come_in_the_callers_order() -> None:
    wide, narrow = group(10, 1, [3, 4, 5]), group(4, 1, [1, 2])
    step = packed(wide, narrow)
    assert step.positions[step.logits_rows].tolist() == [10, 4]
    step = packed(group(0, 3, [1], num_logits=0), group(5, 4, [2, 3, 4], num_logits=3), wide)
    assert step.positions[step.logits_rows].tolist() == [6, 7, 8, 10]


def test_mask_hides_what_comes_later_and_what_pads() -> None:
    step = packed(group(1, 3, [5]))
    (span,) = step.spans
    assert torch.isfinite(span.mask).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    (span,) = packed(group(18, 1, [1, 2, 3, 4, 5])).spans  # five blocks are padded to six
    assert span.blocks.tolist() == [1, 2, 3, 4, 5, 1]
    assert torch.isfinite(span.mask).sum() == 19


def test_blocks_beyond_the_step_are_not_read() -> None:
    (span,) = packed(group(2, 1, [4, 8, 9])).spans
    assert span.blocks.tolist() == [4]


def test_drafts_are_attended_one_by_one_as_wide_as_alone() -> None:
    step = packed(group(6, 4, [1, 2, 3], num_logits=4))
    assert [(span.rows, span.length, span.is_window) for span in step.spans] == [
        (slice(0, 2), 2 * SIZE, False),
        (slice(2, 4), 3 * SIZE, False),
    ]
    assert [span.num_tables for span in step.spans] == [1, 1]


def test_prompt_attends_in_windows_that_no_cut_moves() -> None:
    num_tokens = 2 * WINDOW_TOKENS + 3
    step = packed(prompt(5, num_tokens, list(range(50))))
    assert [span.rows.stop - span.rows.start for span in step.spans] == [27, 32, 8]
    assert [span.first_row for span in step.spans] == [5, 0, 0]
    assert all(span.is_window for span in step.spans)
    assert [tuple(span.mask.shape) for span in step.spans] == [(32, 32), (32, 64), (32, 96)]
    assert step.positions.tolist() == list(range(5, 5 + num_tokens))


def test_window_of_a_prompt_hides_what_comes_after_each_of_its_places() -> None:
    (span,) = packed(prompt(WINDOW_TOKENS + 3, 1, list(range(9)))).spans
    assert span.first_row == 3
    assert torch.isfinite(span.mask).sum(1).tolist() == list(range(33, 65))
    assert span.blocks.tolist() == [*range(9), *[0] * 7]  # the table ends before the window


def test_calls_stay_small_enough_for_the_processors_cache() -> None:
    width = MAX_CALL_TOKENS // SIZE // 2
    groups = [group(width * SIZE - 1, 1, list(range(width))) for _ in range(5)]
    assert [span.num_tables for span in packed(*groups).spans] == [2, 2, 1]


def test_width_depends_on_the_row_alone() -> None:
    alone = packed(group(9, 1, [1, 2, 3])).spans[0].length
    company = [group(30, 1, list(range(8))), group(9, 1, [1, 2, 3]), group(0, 20, list(range(5)))]
    assert alone in [span.length for span in packed(*company).spans]


def test_widths_are_few_and_waste_at_most_a_third() -> None:
    widths = {padded_width(n) for n in range(1, 257)}
    assert widths == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}
    assert all(n <= padded_width(n) < 1.5 * n for n in range(3, 257))


def test_tokens_of_an_answer_are_attended_one_by_one_however_many() -> None:
    spans = packed(group(0, 20, list(range(8)))).spans
    assert not any(span.is_window for span in spans)
