from __future__ import annotations

import pytest

from engine.versions.figures import Experience, Runs
from engine.versions.trial import MIN_ANSWERS, MIN_RESULTS, Trial, Verdict

pytestmark = pytest.mark.unit

WINDOW_S = 30.0


def experience(
    answers: int = 100, bad: float = 0.0, latency_ms: float = 20.0, size: int = 1
) -> Experience:
    runs = {size: Runs(answers, latency_ms / 1000)}
    return Experience(answers=answers, bad_share=bad, runs=runs)


def judge(
    new: Experience, *, before: Experience | None = None, now: float = 1.0, fault: str = ""
) -> tuple[Verdict, str]:
    trial = Trial(before or experience(), began_at=0.0, window_s=WINDOW_S)
    return trial.judge(now, new, fault)


def test_a_version_that_is_as_good_stays_when_the_window_is_over() -> None:
    assert judge(experience()) == (Verdict.OPEN, "")
    assert judge(experience(), now=WINDOW_S)[0] is Verdict.STAYS


def test_a_version_that_fails_more_often_goes_at_once_and_the_reason_has_both_shares() -> None:
    verdict, reason = judge(experience(bad=0.12), before=experience(bad=0.02))
    assert verdict is Verdict.ROLL_BACK
    assert reason == "12 % of its last 100 answers failed or came too late, 2 % before"


def test_errors_that_the_old_version_had_too_are_not_held_against_the_new_one() -> None:
    assert judge(experience(bad=0.44), before=experience(bad=0.40))[0] is Verdict.OPEN


def test_a_slower_version_goes_and_the_reason_has_both_times() -> None:
    verdict, reason = judge(experience(latency_ms=40.0))
    assert verdict is Verdict.ROLL_BACK
    assert reason == "a batch of 1 takes 40.0 ms (median), at most 20.0 ms before"


def test_half_as_slow_again_is_allowed_and_five_milliseconds_on_top() -> None:
    assert judge(experience(latency_ms=34.9))[0] is Verdict.OPEN
    fast = experience(latency_ms=0.5)
    assert judge(experience(latency_ms=5.0), before=fast)[0] is Verdict.OPEN


def test_larger_batches_under_a_higher_load_are_not_held_against_the_version() -> None:
    assert judge(experience(latency_ms=150.0, size=8))[0] is Verdict.OPEN


def test_a_version_that_is_so_slow_that_its_batches_grow_is_found_out_all_the_same() -> None:
    verdict, reason = judge(experience(latency_ms=300.0, size=8))
    assert verdict is Verdict.ROLL_BACK
    assert reason == "a batch of 8 takes 300.0 ms (median), at most 160.0 ms before"


def test_smaller_batches_may_take_as_long_as_larger_ones_did() -> None:
    before = experience(latency_ms=100.0, size=8)
    assert judge(experience(latency_ms=140.0, size=1), before=before)[0] is Verdict.OPEN
    assert judge(experience(latency_ms=160.0, size=1), before=before)[0] is Verdict.ROLL_BACK


def test_a_handful_of_answers_proves_nothing() -> None:
    assert judge(experience(answers=MIN_ANSWERS - 1, bad=1.0))[0] is Verdict.OPEN
    slow = experience(answers=MIN_RESULTS - 1, latency_ms=500.0)
    assert judge(slow)[0] is Verdict.OPEN


def test_without_a_past_only_errors_count() -> None:
    nothing = Experience(0, 0.0, {})
    assert judge(experience(latency_ms=5000.0), before=nothing)[0] is Verdict.OPEN
    assert judge(experience(bad=0.1), before=nothing)[0] is Verdict.ROLL_BACK


def test_a_version_that_serves_nothing_goes_with_its_own_reason() -> None:
    verdict, reason = judge(experience(answers=0), fault="circuit open: exited with code 7")
    assert verdict is Verdict.ROLL_BACK
    assert reason == "it does not serve: circuit open: exited with code 7"
