"""Four streams run, then a prompt 16 times as long arrives: how long do the four wait?

On the real model, int8, core 0, one thread, through the runner. In each attack four fresh streams
with prompts of 64 tokens decode for a while, then a prompt of 1,024 tokens is submitted and the
gaps between the four's tokens are noted until its first token is there. The bound on a gap is
max(``max_step_ms``, one decode step with the least chunk) and one decode step, both measured here
as medians. The prompt's own bound: it starts with the next step, and is through when every step
took only the least chunk.

    python -m loadtest.bench_llm_attack [--attacks 20] [--cpu-time]

``--cpu-time`` counts the time that this process computes, for a machine that is not idle.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from engine.config import LlmConfig
from loadtest import machine
from loadtest.local_engine import LocalEngine, Told, open_model

VICTIMS = 4
VICTIM_PROMPT = 64
ATTACKER_PROMPT = 16 * VICTIM_PROMPT
CALM_STEPS = 16
PROBES = 12
ANSWER = 1500  # more than any victim gets to
WORDS = (1000, 40_000)  # token ids of ordinary words


class Attack(NamedTuple):
    """Milliseconds."""

    gaps: list[float]  # of all victims, one after the other
    until_start: float
    until_first_token: float


class Bounds(NamedTuple):
    """Milliseconds; the steps are measured medians."""

    decode_step: float
    least_step: float  # the decodes and the least chunk
    max_step: float

    @property
    def gap(self) -> float:
        return max(self.max_step, self.least_step) + self.decode_step

    def first_token(self, min_chunk: int) -> float:
        return -(-ATTACKER_PROMPT // min_chunk) * max(self.max_step, self.least_step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attacks", type=int, default=20)
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {0})
    print(machine.describe())
    config = LlmConfig(
        weights="int8",
        threads=1,
        max_seq_length=2048,
        kv_cache_bytes=512 << 20,
        prefix_cache=False,
        speculative_tokens=0,  # several tokens at once would hide a gap
    )
    clock = time.process_time if arguments.cpu_time else time.monotonic
    bench = Bench(LocalEngine(open_model(config), config, clock=clock), clock)
    bounds = bench.measure_bounds(config)
    print(
        f"decode step {bounds.decode_step:.1f} ms, with {config.min_chunk_tokens} tokens of prompt "
        f"{bounds.least_step:.1f} ms, max_step_ms {bounds.max_step:g}: a gap is at most "
        f"{bounds.gap:.1f} ms"
    )
    report([bench.attack() for _ in range(arguments.attacks)], bounds, config.min_chunk_tokens)


def report(attacks: list[Attack], bounds: Bounds, min_chunk: int) -> None:
    gaps = [gap for attack in attacks for gap in attack.gaps]
    starts = [attack.until_start for attack in attacks]
    firsts = [attack.until_first_token for attack in attacks]
    bound = bounds.first_token(min_chunk)
    p99 = machine.percentile(gaps, 0.99)
    print(
        f"{len(attacks)} attacks, {len(gaps)} gaps: median {statistics.median(gaps):.1f} ms, "
        f"p99 {p99:.1f} ms, largest {max(gaps):.1f} ms; the largest of each attack "
        f"{machine.spread([max(attack.gaps) for attack in attacks], 1)} ms"
    )
    print(
        f"the long prompt started within {max(starts):.1f} ms, its first token came after "
        f"{machine.spread(firsts, 0)} ms; at most {bound:.0f} ms"
    )
    machine.print_result(
        gap_p99_ratio=p99 / bounds.gap,
        gap_max_ratio=max(gaps) / bounds.gap,
        start_max_ratio=max(starts) / bounds.gap,
        first_token_max_ratio=max(firsts) / bound,
        attacks=len(attacks),
    )


class Bench:
    """Attacks one engine again and again."""

    def __init__(self, engine: LocalEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._dice = random.Random(3)

    def attack(self) -> Attack:
        """One attack on fresh victims."""
        victims = self._start_victims()
        began = self._clock()
        attacker = self._submit(ATTACKER_PROMPT, 1)
        while not attacker.reason:
            self._engine.step()
        gaps = [gap for victim in victims for gap in gaps_ms(victim, began)]
        started_at = attacker.generation.started_at
        assert started_at is not None
        self._stop(victims)
        return Attack(gaps, 1000 * (started_at - began), 1000 * (attacker.told_at[-1] - began))

    def measure_bounds(self, config: LlmConfig) -> Bounds:
        """Alternate calm steps with steps that have the least chunk."""
        victims = self._start_victims()
        calm, least = [], []
        for _ in range(PROBES):
            calm.append(self._timed_step_ms())
            probe = self._submit(config.min_chunk_tokens, 1)
            least.append(self._timed_step_ms())
            assert probe.reason, "the least chunk is one step's"
        self._stop(victims)
        return Bounds(statistics.median(calm), statistics.median(least), config.max_step_ms)

    def _start_victims(self) -> list[Told]:
        victims = [self._submit(VICTIM_PROMPT, ANSWER) for _ in range(VICTIMS)]
        while any(len(victim.token_ids) < CALM_STEPS for victim in victims):
            self._engine.step()
        return victims

    def _submit(self, num_tokens: int, num_output: int) -> Told:
        prompt = [self._dice.randint(*WORDS) for _ in range(num_tokens)]
        return self._engine.submit(prompt, num_output)

    def _stop(self, victims: list[Told]) -> None:
        for victim in victims:
            self._engine.runner.cancel(victim.sequence.key)

    def _timed_step_ms(self) -> float:
        began = self._clock()
        self._engine.step()
        return 1000 * (self._clock() - began)


def gaps_ms(victim: Told, began: float) -> list[float]:
    """From the last token before the attack on."""
    since = max(at for at in victim.told_at if at <= began)
    times = [at for at in victim.told_at if at >= since]
    return [1000 * (later - earlier) for earlier, later in pairwise(times)]


if __name__ == "__main__":
    main()
