"""A language-model worker process with a real, tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file

from engine.llm.messages import CancelKeys, FinishLlm, LlmStartFailed
from engine.llm.request import PromptPayload, Sampling
from engine.workers.lifeline import EXIT_FAULT, EXIT_START_FAILED
from tests.fakes.llm_worker_process import (
    ANSWER_S,
    START_S,
    LlmWorkerProcess,
    llm_worker,
    manifest_of,
)
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.integration

GREEDY = Sampling(temperature=0.0, max_tokens=20, ignore_eos=True)
LONG = Sampling(temperature=0.0, max_tokens=1900, ignore_eos=True)
SETTLE_S = 2.0
NAN_TOKEN = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[LlmWorkerProcess]:
    with llm_worker(folder) as worker:
        yield worker


_next_key = iter(range(1, 1_000_000))


def test_it_says_what_it_runs_on(shared: LlmWorkerProcess) -> None:
    ready = shared.wait_ready()
    assert (ready.device, ready.weights, ready.block_size) == ("cpu", "fp32", 16)
    assert ready.num_blocks > 0
    assert ready.max_seq_length == 2048  # the model's own, below the configured 4096


def test_an_answer_has_a_text_per_token_and_one_end(shared: LlmWorkerProcess) -> None:
    key = next(_next_key)
    shared.submit(key, "Once upon a time", GREEDY)
    end = shared.wait_end(key)
    assert (end.reason, end.completion_tokens) == ("length", 20)
    assert sum(len(item.texts) for item in shared.items_of(key)) == 20
    assert end.prompt_tokens == len("Once upon a time")


def test_the_same_prompt_and_seed_give_the_same_text(shared: LlmWorkerProcess) -> None:
    sampling = Sampling(temperature=0.8, seed=42, max_tokens=20, ignore_eos=True)
    alone, together = next(_next_key), next(_next_key)
    shared.submit(alone, "Say", sampling)
    shared.wait_end(alone)
    others = [next(_next_key) for _ in range(5)]
    for key in others:
        shared.submit(key, f"Something else {key}", GREEDY)
    shared.submit(together, "Say", sampling)
    for key in [*others, together]:
        shared.wait_end(key)
    assert shared.text_of(together) == shared.text_of(alone) != ""


def test_a_prompt_that_was_asked_before_is_cached(shared: LlmWorkerProcess) -> None:
    first, again = next(_next_key), next(_next_key)
    for key in (first, again):
        shared.submit(key, "The same words again and again, longer than a block", GREEDY)
        shared.wait_end(key)
    end = shared.end_of(again)
    assert end is not None
    assert end.cached_tokens == 48
    assert shared.text_of(first) == shared.text_of(again)


def test_a_bad_prompt_is_refused(shared: LlmWorkerProcess) -> None:
    key = next(_next_key)
    shared.submit(key, "x" * 3000, GREEDY)
    refused = shared.wait_refused(key)
    assert refused.code == "invalid_input"
    assert "3000" in refused.detail


def test_a_stop_string_ends_the_answer(shared: LlmWorkerProcess) -> None:
    whole, stopped = next(_next_key), next(_next_key)
    shared.submit(whole, "stop here", GREEDY)
    shared.wait_end(whole)
    text = shared.text_of(whole)
    stop = text[5:7]
    shared.submit(stopped, "stop here", Sampling(temperature=0.0, max_tokens=20, stop=(stop,)))
    assert shared.wait_end(stopped).reason == "stop"
    assert shared.text_of(stopped) == text[: text.index(stop)]


def test_a_cancelled_answer_ends_without_a_word_and_frees_its_blocks(
    shared: LlmWorkerProcess,
) -> None:
    key = next(_next_key)
    shared.submit(key, "go on for ever", LONG)
    shared.wait_until(lambda: bool(shared.items_of(key)))
    shared.send(CancelKeys((key,)))
    wait_blocks_free(shared)
    assert shared.end_of(key) is None


def test_a_deadline_ends_an_answer(shared: LlmWorkerProcess) -> None:
    key = next(_next_key)
    shared.submit(key, "go on for ever", LONG, deadline_s=0.2)
    end = shared.wait_end(key)
    assert end.reason == "deadline"
    assert end.completion_tokens < 1900
    wait_blocks_free(shared)


def test_many_prompts_and_cancels_at_once_are_all_settled(shared: LlmWorkerProcess) -> None:
    keys = [next(_next_key) for _ in range(60)]
    for key in keys:
        shared.submit(key, f"prompt {key} " * (key % 7 + 1), GREEDY)
    cancelled = keys[::3]
    shared.send(CancelKeys(tuple(cancelled)))
    for key in keys:
        if key not in cancelled:
            assert shared.wait_end(key).completion_tokens == 20
    wait_blocks_free(shared)


def wait_blocks_free(worker: LlmWorkerProcess) -> None:
    seen = len(worker.messages)

    def is_free() -> bool:
        fresh = worker.last_gauges() if len(worker.messages) > seen else None
        return fresh is not None and fresh.blocks_owned == fresh.running == fresh.waiting == 0

    worker.wait_until(is_free)


def test_asked_to_finish_it_answers_everybody_first(folder: Path) -> None:
    with llm_worker(folder) as worker:
        for key in range(10):
            worker.submit(key, f"prompt {key}", GREEDY)
        worker.send(FinishLlm())
        for key in range(10):
            assert worker.wait_end(key).completion_tokens == 20
        assert worker.process.wait(ANSWER_S) == 0


def test_the_end_of_the_socket_ends_it(folder: Path) -> None:
    with llm_worker(folder) as worker:
        worker.submit(1, "go on for ever", LONG)
        worker.wait_until(lambda: bool(worker.items_of(1)))
        worker.socket.close()
        assert worker.process.wait(SETTLE_S) == 0


def test_an_interrupt_from_the_terminal_is_its_hosts_business(shared: LlmWorkerProcess) -> None:
    os.kill(shared.process.pid, signal.SIGINT)
    key = next(_next_key)
    shared.submit(key, "still here", GREEDY)
    shared.wait_end(key)


def test_a_host_that_reads_late_gets_every_token(shared: LlmWorkerProcess) -> None:
    keys = [next(_next_key) for _ in range(8)]
    sampling = Sampling(temperature=0.0, max_tokens=300, ignore_eos=True)
    for key in keys:
        shared.submit(key, f"prompt {key}", sampling)
    time.sleep(0.5)
    for key in keys:
        assert shared.wait_end(key).completion_tokens == 300
        assert sum(len(item.texts) for item in shared.items_of(key)) == 300


@pytest.mark.parametrize(
    ("break_model", "words"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: write_tiny_llm(folder, model_type="gpt_neox"), "gpt_neox"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told(
    tmp_path: Path, break_model: object, words: str
) -> None:
    write_tiny_llm(tmp_path)
    assert callable(break_model)
    break_model(tmp_path)
    worker = LlmWorkerProcess(tmp_path)
    try:
        failed = worker.wait_for(LlmStartFailed, START_S)
        assert words in failed.detail
        assert failed.detail
        assert worker.process.wait(ANSWER_S) == EXIT_START_FAILED
    finally:
        worker.close()


def test_a_step_that_fails_answers_everybody_and_ends_the_process(tmp_path: Path) -> None:
    write_tiny_llm(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][NAN_TOKEN] = float("nan")
    save_file(weights, tmp_path / "model.safetensors")
    with llm_worker(tmp_path) as worker:
        for key in range(3):
            worker.submit(key, "a", LONG)
        worker.wait_until(lambda: all(worker.items_of(key) for key in range(3)))
        payload = PromptPayload(prompt=(1, NAN_TOKEN), sampling=GREEDY)
        worker.submit_payload(9, payload)
        ends = [worker.wait_end(key) for key in (0, 1, 2, 9)]
        assert [end.reason for end in ends] == ["error"] * 4
        assert len({end.detail for end in ends}) == 1  # one reference, which the log has too
        assert worker.process.wait(ANSWER_S) == EXIT_FAULT


HOST = """
import sys, time
from pathlib import Path
from tests.fakes.llm_worker_process import LlmWorkerProcess

worker = LlmWorkerProcess(Path(sys.argv[1]))
if sys.argv[2] == "serving":
    worker.wait_ready()
print(worker.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("phase", ["serving", "starting"])
def test_it_does_not_outlive_a_host_that_is_killed(folder: Path, phase: str) -> None:
    command = [sys.executable, "-c", HOST, str(folder), phase]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        worker = psutil.Process(json.loads(host.stdout.readline()))
        host.kill()
        deadline = time.monotonic() + SETTLE_S
        while is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(worker)


def is_running(process: psutil.Process) -> bool:
    """Whoever adopts an orphan may be slow to reap it; a zombie holds nothing any more."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_without_a_host_it_exits(folder: Path) -> None:
    command = [sys.executable, "-m", "engine.llm.worker", "--model", manifest_of(folder).name]
    command += ["--worker", "0", "--parent", "1", "--control-fd", "0"]  # not its parent
    assert subprocess.run(command, timeout=START_S, stdin=subprocess.DEVNULL).returncode == 0
