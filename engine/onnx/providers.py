"""Execution providers: options for each, and proof that the configured one is in use (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import StartupError

CPU = "CPUExecutionProvider"

# cuDNN's default search benchmarks every algorithm for every new shape: seconds at each first
# frame size. A few fixed batch sizes are warmed up, so growing the arena exactly wastes nothing.
OPTIONS: dict[str, dict[str, str]] = {
    "CUDAExecutionProvider": {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    },
}
PACKAGES = {
    CPU: "onnxruntime",
    "CUDAExecutionProvider": "onnxruntime-gpu",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
}


def provider_options(providers: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Names with options, as ``InferenceSession(providers=…)`` takes them."""
    return [(name, dict(OPTIONS.get(name, {}))) for name in providers]


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


def check_in_use(providers: Sequence[str], in_use: Sequence[str]) -> None:
    """Raises ``StartupError`` when ONNX Runtime fell back to another provider."""
    if not in_use or in_use[0] != providers[0]:
        raise StartupError(
            f"ONNX Runtime runs on {', '.join(in_use) or 'nothing'} although {providers[0]} is "
            "configured: its driver or libraries are missing or do not fit (its own message is in "
            "the log above); install them or configure execution_providers"
        )
