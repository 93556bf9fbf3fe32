"""Ways to release tokens, in virtual time: those in use elsewhere, and ours.

``noise`` is by how much each timer misses its deadline, in seconds. What announces no pace of its
own is judged by the running mean of its past gaps: the best that its reader could have expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gateway.stream.pacer import TokenPacer
from gateway.stream.pacer_settings import PacerSettings
from gateway.stream.pacer_source import SourcePrior
from loadtest.delivery.sources import Array

FIXED_RATE_HZ = 30.0  # of the policies that have one
BUCKET_DEPTH = 5.0
SMOOTH_STREAM_S = 0.010  # the default of the AI SDK's smoothStream
SETTINGS = PacerSettings()


class Delivery(NamedTuple):
    """One answer: when its tokens came and left, and the pace told for each gap; seconds."""

    arrivals: Array
    releases: Array
    paces: Array


Policy = Callable[[Array, Array], Delivery]  # gaps of the source, noise of the timers


def pass_through(gaps: Array, noise: Array) -> Delivery:
    arrivals = np.cumsum(gaps)
    return Delivery(arrivals, arrivals, running_mean(arrivals))


def smooth_stream(gaps: Array, noise: Array) -> Delivery:
    """At least ``SMOOTH_STREAM_S`` after the token before."""
    arrivals = np.cumsum(gaps)
    releases = arrivals.copy()
    for index in range(1, len(arrivals)):
        earliest = releases[index - 1] + SMOOTH_STREAM_S + noise[index]
        releases[index] = max(arrivals[index], earliest)
    return Delivery(arrivals, releases, running_mean(releases))


def token_bucket(gaps: Array, noise: Array) -> Delivery:
    """``BUCKET_DEPTH`` tokens at once, then the fixed rate."""
    arrivals = np.cumsum(gaps)
    releases, tokens, last = arrivals.copy(), BUCKET_DEPTH, arrivals[0]
    for index, arrival in enumerate(arrivals):
        at = max(arrival, last)
        tokens = min(BUCKET_DEPTH, tokens + (at - last) * FIXED_RATE_HZ)
        wait_s = max(0.0, 1 - tokens) / FIXED_RATE_HZ
        tokens, last = tokens + wait_s * FIXED_RATE_HZ - 1, at + wait_s
        releases[index] = max(arrival, last + (noise[index] if wait_s else 0.0))
    return Delivery(arrivals, releases, np.full(len(arrivals) - 1, 1 / FIXED_RATE_HZ))


def grid(gaps: Array, noise: Array) -> Delivery:
    """The fixed rate on absolute deadlines: a leaky bucket."""
    arrivals = np.cumsum(gaps)
    releases, deadline = arrivals.copy(), arrivals[0]
    for index in range(1, len(arrivals)):
        deadline = max(arrivals[index], deadline + 1 / FIXED_RATE_HZ)
        releases[index] = max(arrivals[index], deadline + noise[index])
    return Delivery(arrivals, releases, np.full(len(arrivals) - 1, 1 / FIXED_RATE_HZ))


def ours(gaps: Array, noise: Array) -> Delivery:
    """The gateway's pacer, cold, before an engine that honours its credit."""
    return paced(gaps, noise, TokenPacer(SETTINGS, SourcePrior()))


class Warm:
    """The gateway's pacer with what it has learnt from the answers before."""

    def __init__(self) -> None:
        self._prior = SourcePrior()

    def __call__(self, gaps: Array, noise: Array) -> Delivery:
        pacer = TokenPacer(SETTINGS, self._prior)
        delivery = paced(gaps, noise, pacer)
        self._prior.learn(pacer.source)
        return delivery


def paced(gaps: Array, noise: Array, pacer: TokenPacer) -> Delivery:
    """Engine and pacer as a closed loop: a token waits in the engine until it is welcome."""
    num_tokens = len(gaps)
    arrivals, releases, paces = (np.empty(num_tokens) for _ in range(3))
    num_pushed = num_taken = 0
    now = ready_at = 0.0
    while num_taken < num_tokens:
        send_at = pacer.next_send_time(now)
        if send_at is not None:
            late_s = noise[num_taken] if num_taken else 0.0
            send_at = max(now, arrivals[num_taken], send_at + late_s)
        push_at = max(now, ready_at)
        can_push = num_pushed < num_tokens and pacer.credit(push_at) > 0
        if can_push and (send_at is None or push_at <= send_at):
            now = arrivals[num_pushed] = push_at
            pacer.push("x", now)
            num_pushed += 1
            if num_pushed == num_tokens:
                pacer.finish(now)
            else:
                ready_at = now + gaps[num_pushed]
        else:
            assert send_at is not None, "no credit although nothing is held"
            now = releases[num_taken] = send_at
            pace_s = pacer.take(now).pace_s
            assert pace_s is not None
            paces[num_taken] = pace_s
            num_taken += 1
    return Delivery(arrivals, releases, paces[:-1])


def running_mean(releases: Array, gain: float = 0.1) -> Array:
    """For each gap the mean of those before it."""
    paces, mean = np.empty(len(releases) - 1), 1 / FIXED_RATE_HZ
    for index, gap in enumerate(np.diff(releases)):
        paces[index] = mean
        mean += gain * (gap - mean)
    return paces
