"""Test-wide rules: every module names exactly one category; hypothesis is reproducible."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Their assertions say what they compared, like those of test modules.
pytest.register_assert_rewrite("tests.contract.engine_suite", "tests.contract.process_suite")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

CATEGORIES = {
    "unit",
    "property",
    "contract",
    "conformance",
    "integration",
    "browser",
    "gpu",
    "slow",
}

settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would what a test starts to interrupt it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        found = CATEGORIES.intersection(mark.name for mark in item.iter_markers())
        if len(found) != 1:
            raise pytest.UsageError(f"{item.nodeid}: exactly one category marker, found {found}")
