from __future__ import annotations

import pytest

from engine.workers.child import describe_exit, worker_environment

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (70, "exited with code 70"),
        (-9, "was killed by SIGKILL"),
        (-11, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
    ],
)
def test_an_exit_is_described_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_the_environment_silences_telemetry_and_hidden_thread_pools() -> None:
    environment = worker_environment(3)
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["CLAWSTREAM_WORKER"] == "3"
    assert "" not in environment["PYTHONPATH"].split(":")
