"""Two hundred connections that break in mid-answer: every answer is whole, or said to be lost."""

from __future__ import annotations

import pytest

from loadtest.delivery.resume import measure
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.slow


@on_uvloop
async def test_two_hundred_drops_leave_no_hole_and_no_repeat() -> None:
    report = await measure(num_drops=200, seed=7)
    assert report.num_drops == 200
    assert report.wrong == 0
    assert report.not_recovered <= 2  # a machine so busy that the window ran out
    assert report.whole >= 60
