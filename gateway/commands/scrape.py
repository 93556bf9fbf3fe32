"""What a gateway's ``/metrics`` says, once, and what changed between two looks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.commands.ask_gateway import get_text
from gateway.commands.exits import CommandError, ExitCode

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """All samples at ``at`` (seconds, monotonic), by name and labels."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that carry ``labels``; 0 if there are none."""
        return sum(value for _, value in self.series(name, **labels))

    def select(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Each sample of that name that carries ``labels``, with all of its labels."""
        for found, value in self.series(name, **labels):
            yield dict(found), value

    def series(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """The same; the labels are what tells one series from the others."""
        wanted = labels.items()
        for found, value in self.samples.get(name, {}).items():
            if wanted <= found:
                yield found, value

    def label_values(self, label: str, *names: str) -> list[str]:
        """Every value that ``label`` has in the named samples, sorted."""
        found = {labels.get(label) for name in names for labels, _ in self.select(name)}
        return sorted(value for value in found if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Two looks at one gateway, ``after`` being the later.

    Counters are compared series by series: one that fell began again, and counts from 0, as does
    one that is new; one that has left counts no more.
    """

    before: Scrape
    after: Scrape

    def rate(self, name: str, **labels: str) -> float:
        """How fast a counter rose, per second."""
        elapsed_s = self.after.at - self.before.at
        if elapsed_s <= 0:
            return 0.0
        return self._risen(name, **labels) / elapsed_s

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Of what a histogram (``name`` without ``_bucket``) counted between the looks.

        As Prometheus' ``histogram_quantile``: linear inside a bucket, and the largest bound for
        what is beyond it. None when nothing was counted.
        """
        counts = sorted(
            (float(found["le"]), self._risen(f"{name}_bucket", **{**labels, "le": found["le"]}))
            for found in self._bounds(name, **labels)
        )
        if not counts or counts[-1][1] <= 0:
            return None
        wanted = share * counts[-1][1]
        lower, below = 0.0, 0.0
        for bound, count in counts:
            if count >= wanted and count > below:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (wanted - below) / (count - below)
            lower, below = bound, count
        return lower

    def _bounds(self, name: str, **labels: str) -> list[dict[str, str]]:
        unique = {found["le"]: found for found, _ in self.after.select(f"{name}_bucket", **labels)}
        return list(unique.values())

    def _risen(self, name: str, **labels: str) -> float:
        before, risen = self.before.samples.get(name, {}), 0.0
        for series, value in self.after.series(name, **labels):
            start = before.get(series, 0.0)
            risen += value - start if value >= start else value
        return risen


def scrape(url: str, api_key: str | None) -> Scrape:
    """Ask the gateway at ``url`` (``ws://…`` or ``http://…``); takes up to ten seconds.

    Raises:
        CommandError: it cannot be reached, wants another key, or is no gateway.
    """
    text = get_text(url, "/metrics", api_key)
    try:
        found = parse(text, time.monotonic())
    except ValueError as error:
        raise CommandError(ExitCode.CANNOT_CONNECT, f"{url}: no metrics there: {error}") from None
    if "clawstream_connections" not in found.samples:
        raise CommandError(ExitCode.CANNOT_CONNECT, f"{url}: whatever answers is no clawstream")
    return found


def parse(text: str, at: float) -> Scrape:
    """Read Prometheus' text format; raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            samples.setdefault(sample.name, {})[labels] = float(sample.value)
    return Scrape(at=at, samples=samples)
