"""Rates and quantiles between two looks at the metrics."""

from __future__ import annotations

import math

import pytest

from gateway.commands.scrape import Change, Scrape

pytestmark = pytest.mark.unit


Samples = dict[tuple[tuple[str, str], ...], float]


def looked(at: float, samples: dict[str, Samples]) -> Scrape:
    by_labels = {
        name: {frozenset(labels): value for labels, value in values.items()}
        for name, values in samples.items()
    }
    return Scrape(at=at, samples=by_labels)


def counted(at: float, value: float) -> Scrape:
    return looked(at, {"frames_total": {(("model", "faces"),): value}})


def ages(at: float, **counts: float) -> Scrape:
    """Cumulative counts by bound: ``ages(0, **{"0.1": 5})``."""
    samples: Samples = {
        (("le", bound), ("model", "faces")): count for bound, count in counts.items()
    }
    return looked(at, {"age_bucket": samples})


def test_values_are_summed_over_the_labels_that_are_not_asked_for() -> None:
    samples: Samples = {
        (("model", "a"), ("reason", "late")): 1.0,
        (("model", "a"), ("reason", "deadline")): 2.0,
        (("model", "b"), ("reason", "late")): 4.0,
    }
    scrape = looked(0, {"drops": samples})
    assert scrape.value("drops") == 7.0
    assert scrape.value("drops", model="a") == 3.0
    assert scrape.value("drops", reason="late", model="b") == 4.0
    assert scrape.value("other") == 0.0
    assert scrape.label_values("model", "drops", "other") == ["a", "b"]


def test_rate_is_per_second() -> None:
    change = Change(before=counted(10.0, 100), after=counted(12.0, 160))
    assert change.rate("frames_total", model="faces") == 30.0


def test_counter_that_began_again_counts_from_zero() -> None:
    change = Change(before=counted(10.0, 1000), after=counted(12.0, 4))
    assert change.rate("frames_total") == 2.0


def of_versions(at: float, **counts: float) -> Scrape:
    samples: Samples = {
        (("model", "faces"), ("version", version)): count for version, count in counts.items()
    }
    return looked(at, {"frames_total": samples})


def test_a_series_that_leaves_takes_nothing_from_the_others() -> None:
    change = Change(before=of_versions(0.0, v1=1000, v2=10), after=of_versions(2.0, v2=40))
    assert change.rate("frames_total", model="faces") == 15.0


def test_a_series_that_is_new_counts_from_zero() -> None:
    change = Change(before=of_versions(0.0, v1=1000), after=of_versions(2.0, v1=1004, v2=6))
    assert change.rate("frames_total") == 5.0


def test_a_series_that_fell_counts_from_zero_beside_one_that_rose() -> None:
    before, after = of_versions(0.0, v1=1000, v2=10), of_versions(2.0, v1=4, v2=2000)
    assert Change(before=before, after=after).rate("frames_total") == 997.0


def test_quantile_is_of_every_series_that_is_left() -> None:
    def looked_at(at: float, versions: dict[str, tuple[float, float]]) -> Scrape:
        samples: Samples = {
            (("le", bound), ("version", version)): count
            for version, counts in versions.items()
            for bound, count in zip(("0.1", "+Inf"), counts, strict=True)
        }
        return looked(at, {"age_bucket": samples})

    before = looked_at(0.0, {"v1": (0, 1000), "v2": (5, 5)})
    after = looked_at(1.0, {"v2": (15, 15)})
    assert Change(before=before, after=after).quantile("age", 0.5) == pytest.approx(0.05)


def test_quantile_is_that_of_what_came_between_the_looks() -> None:
    before = ages(0.0, **{"0.1": 1000, "0.2": 1000, "+Inf": 1000})
    after = ages(1.0, **{"0.1": 1000, "0.2": 1010, "+Inf": 1010})
    assert Change(before=before, after=after).quantile("age", 0.5, model="faces") == (
        pytest.approx(0.15)
    )


def test_quantile_beyond_the_largest_bound_is_that_bound() -> None:
    before = ages(0.0, **{"0.1": 0, "0.2": 0, "+Inf": 0})
    after = ages(1.0, **{"0.1": 1, "0.2": 1, "+Inf": 9})
    value = Change(before=before, after=after).quantile("age", 0.99)
    assert value == 0.2
    assert math.isfinite(value)


def test_nothing_counted_has_no_quantile() -> None:
    same = ages(0.0, **{"0.1": 3, "+Inf": 3})
    assert Change(before=same, after=same).quantile("age", 0.5) is None
    assert Change(before=same, after=same).quantile("other", 0.5) is None
