"""Execution providers: options for each, and proof that the configured one is in use (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.config import GpuConfig
from engine.errors import StartupError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
# Where the buffers of a session's inputs are, as ONNX Runtime calls it. The CPU is here because
# the path of accelerators runs on it too, for comparison.
DEVICES = {CPU: "cpu", CUDA: "cuda", TENSORRT: "cuda"}
PACKAGES = {CPU: "onnxruntime", CUDA: "onnxruntime-gpu", TENSORRT: "onnxruntime-gpu"}

Options = dict[str, str]


def is_accelerated(providers: Sequence[str]) -> bool:
    """Whether sessions on these providers have buffers on a device."""
    return providers[0] in (CUDA, TENSORRT)


def plain_options(providers: Sequence[str]) -> list[tuple[str, Options]]:
    """Names as ``InferenceSession(providers=…)`` takes them, each as it comes."""
    return [(name, {}) for name in providers]


def cuda_options(gpu: GpuConfig, stream: int) -> Options:
    """For CUDA; ``stream`` is a CUDA stream's address, 0 lets the session make its own.

    cuDNN's default search benchmarks every algorithm for every new shape: 0.6 s each time, where
    its heuristic takes 2 ms and is no slower afterwards (PaddleX, PR 5057). A few fixed batch
    sizes are warmed up, so growing the arena exactly wastes nothing.
    """
    options = {
        "device_id": str(gpu.device_id),
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",  # 0 may race
        **_stream_options(stream),
    }
    if gpu.memory_limit_mb:
        options["gpu_mem_limit"] = str(gpu.memory_limit_mb << 20)
    return options


def tensorrt_options(
    gpu: GpuConfig, stream: int, engines: Path, profiles: Mapping[str, str]
) -> Options:
    """For TensorRT: engines and timings are kept in the folder ``engines``, one per network."""
    options = {
        "device_id": str(gpu.device_id),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(engines),
        "trt_fp16_enable": "1" if gpu.tensorrt_fp16 else "0",
        **profiles,
        **_stream_options(stream),
    }
    if gpu.memory_limit_mb:
        options["trt_max_workspace_size"] = str(gpu.memory_limit_mb << 20)
    return options


def _stream_options(stream: int) -> Options:
    return {"has_user_compute_stream": "1", "user_compute_stream": str(stream)} if stream else {}


def is_strict(providers: Sequence[str]) -> bool:
    """Whether every node must run on the configured providers.

    Naming the CPU after an accelerator allows it for nodes that the accelerator cannot run.
    """
    return CPU not in providers


def check_installed(packages: Sequence[str]) -> None:
    """Refuse the two builds side by side; ``packages`` are the installed distributions of both.

    Raises:
        StartupError: none or both are installed.
    """
    if not packages:
        raise StartupError(
            "ONNX Runtime is not installed: pip install 'clawstream[cpu]' (or 'clawstream[gpu]')"
        )
    if len(packages) > 1:
        raise StartupError(
            f"{' and '.join(packages)} are both installed and overwrite each other: "
            "uninstall both, then install one"
        )


def check_available(providers: Sequence[str], available: Sequence[str]) -> None:
    """Raises ``StartupError`` when this build of ONNX Runtime lacks a configured provider."""
    for name in providers:
        if name not in available:
            package = PACKAGES.get(name)
            remedy = f"install {package}" if package else "install a build that has it"
            raise StartupError(
                f"execution provider {name} is not in this build of ONNX Runtime "
                f"(it has {', '.join(available)}): {remedy}"
            )


def check_in_use(providers: Sequence[str], in_use: Sequence[str], missing: str = "") -> None:
    """Raises ``StartupError`` when ONNX Runtime fell back to another provider.

    ``missing`` is what ``engine.onnx.diagnosis`` found.
    """
    if not in_use or in_use[0] != providers[0]:
        reason = missing or (
            "its driver or libraries do not fit (its own message is in the log above)"
        )
        raise StartupError(
            f"ONNX Runtime runs on {', '.join(in_use) or 'nothing'} although {providers[0]} is "
            f"configured: {reason}; install what is missing or configure execution_providers"
        )
