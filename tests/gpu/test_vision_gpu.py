"""Networks on CUDA and TensorRT, against the CPU; what the machine lacks is skipped by name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from engine.config import GpuConfig
from engine.errors import StartupError
from engine.manifest import InputSpec, Manifest
from engine.onnx.accelerated import Accelerator, open_accelerated
from engine.onnx.binding import BoundSession, Device, HostBuffer
from engine.onnx.cudart import find_runtime
from engine.onnx.diagnosis import find_missing
from engine.onnx.providers import CPU, CUDA, TENSORRT
from engine.workers.loading import WorkerResources, prepare_sizes
from loadtest.bench_gpu import sweep
from pipelines import registry
from tests.fakes.networks import save_classifier
from tests.fakes.pictures import encode, gradient, noise

pytestmark = pytest.mark.gpu

SPEC = InputSpec(width=64, height=64, mean=(127.0, 127.0, 127.0), scale=(1 / 128,) * 3)
SIZES = (1, 2, 4, 8)
TOLERANCE = 0.01  # convolutions round to TF32 by default


def why_not(provider: str) -> str:
    """Why the provider cannot be tested here, empty if it can."""
    if provider not in onnxruntime.get_available_providers():
        return f"this build of ONNX Runtime has no {provider}"
    if preload := getattr(onnxruntime, "preload_dlls", None):
        preload()
    return find_missing(provider, onnxruntime.cuda_version)


@pytest.fixture(params=[CUDA, TENSORRT])
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if reason := why_not(name):
        pytest.skip(f"{name}: {reason}")
    return name


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save_classifier(tmp_path / "n.onnx", size=64, classes=20)


def open_on(
    provider: str, path: Path, engines: Path, *, picture: InputSpec | None = SPEC, **gpu: Any
) -> BoundSession:
    accelerator = Accelerator(
        providers=(provider,) if provider in (CPU, CUDA) else (provider, CUDA),
        gpu=GpuConfig(**gpu),
        sizes=SIZES,
        engines=engines,
    )
    session = open_accelerated(path, accelerator, picture)
    session.allow_padding()
    return session


def pixels(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 64, 64, 3), np.uint8)


def scores(session: BoundSession, batch: NDArray[np.uint8]) -> NDArray[Any]:
    return session.run({"pixels": session.stack(list(batch))})["scores"]


def assert_close(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert np.linalg.norm(found - expected) <= TOLERANCE * np.linalg.norm(expected)


def test_every_batch_size_computes_what_the_cpu_computes(
    provider: str, network: Path, tmp_path: Path
) -> None:
    session = open_on(provider, network, tmp_path)
    on_cpu = open_on(CPU, network, tmp_path)
    assert session.providers[0] == provider
    for count in range(1, SIZES[-1] + 1):
        batch = pixels(count, seed=count)
        assert_close(scores(session, batch), scores(on_cpu, batch))


def test_tensors_need_no_pixels(provider: str, network: Path, tmp_path: Path) -> None:
    tensors = np.random.default_rng(0).random((3, 3, 64, 64)).astype(np.float32)
    found, expected = (
        open_on(each, network, tmp_path, picture=None).run({"images": tensors})["scores"]
        for each in (provider, CPU)
    )
    assert_close(found, expected)


def test_two_streams_do_not_disturb_each_other(
    provider: str, network: Path, tmp_path: Path
) -> None:
    on_cpu = open_on(CPU, network, tmp_path)
    batches = [pixels(3, seed) for seed in range(2)]
    expected = [scores(on_cpu, batch) for batch in batches]
    sessions = [open_on(provider, network, tmp_path, stream_priority=-1) for _ in batches]
    found: dict[int, list[NDArray[Any]]] = {0: [], 1: []}

    def work(index: int) -> None:
        found[index] = [scores(sessions[index], batches[index]) for _ in range(100)]

    threads = [threading.Thread(target=work, args=(index,)) for index in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    for index, answers in found.items():
        assert len(answers) == 100
        for answer in answers:
            assert_close(answer, expected[index])


def test_memory_of_the_host_is_pinned(provider: str) -> None:
    runtime = find_runtime()
    assert runtime is not None
    buffer = HostBuffer((1 << 20,), np.dtype(np.uint8), Device("cuda", 0, runtime))
    assert buffer.is_pinned
    buffer.close()
    assert not buffer.is_pinned


def test_a_whole_pipeline_answers_as_on_the_cpu(provider: str, network: Path) -> None:
    manifest = Manifest(name="m", kind="classify", files={"model": str(network)}, input=SPEC)
    chain = (provider,) if provider == CUDA else (provider, CUDA)
    resources = WorkerResources(chain, 1, max_batch_size=SIZES[-1])
    pipeline, on_cpu = (
        registry.build(manifest, each) for each in (resources, WorkerResources((CPU,), 1))
    )
    prepare_sizes(pipeline, SIZES[-1])
    for picture in (encode(noise(300, 200)), encode(gradient(64, 48))):
        raws = []
        for each in (pipeline, on_cpu):
            items = [each.prepare(memoryview(picture), b"", b"") for _ in range(5)]
            raws.append(np.stack([raw[0] for raw in each.run(items)]))
        assert_close(*raws)


def test_engines_are_built_once_and_fp16_is_checked(network: Path, tmp_path: Path) -> None:
    if reason := why_not(TENSORRT):
        pytest.skip(f"TensorRT's engines and fp16: {reason}")
    open_on(TENSORRT, network, tmp_path, tensorrt_fp16=True)
    built = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.engine")}
    assert built
    open_on(TENSORRT, network, tmp_path, tensorrt_fp16=True)
    assert built == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.engine")}


def test_a_network_that_overflows_in_fp16_is_refused(tmp_path: Path) -> None:
    if reason := why_not(TENSORRT):
        pytest.skip(f"fp16 on TensorRT: {reason}")
    path = save_classifier(tmp_path / "n.onnx", size=64, classes=20)
    large = InputSpec(width=64, height=64, scale=(1e4, 1e4, 1e4))
    with pytest.raises(StartupError, match="off fp32"):
        open_on(TENSORRT, path, tmp_path, picture=large, tensorrt_fp16=True)


def test_sweep_prints_three_rates(provider: str, network: Path, tmp_path: Path) -> None:
    accelerator = Accelerator(
        providers=(provider, CUDA) if provider == TENSORRT else (provider,),
        gpu=GpuConfig(),
        sizes=(1, 8),
        engines=tmp_path,
    )
    for row in sweep(network, accelerator, SPEC, seconds=0.5):
        print({name: round(figure, 4) for name, figure in row.items()})  # noqa: T201 - pytest -s
        assert min(row["sync"], row["batched"], row["pipelined"]) > 0
