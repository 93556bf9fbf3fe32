"""The layout is a fact: who imports whom, what stays pure, how long a file may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "gateway", "pipelines", "loadtest")
MAX_LINES = 400

# A module may import from its own layer and from every layer below it.
PACKAGE_LAYERS = ("loadtest", "gateway", "pipelines", "engine")
GATEWAY_LAYERS = (
    ("gateway.__main__", "gateway.cli", "gateway.commands"),
    ("gateway.app",),
    ("gateway.net", "gateway.api"),
    ("gateway.session",),
    ("gateway.stream",),
    ("gateway.wire", "gateway.client"),
    (
        "gateway.config",
        "gateway.config_sections",
        "gateway.config_values",
        "gateway.metrics",
        "gateway.logs",
        "gateway.errors",
    ),
)
ENGINE_LAYERS = (
    ("engine.api",),
    ("engine.composite", "engine.vision"),
    ("engine.versions",),
    ("engine.batching", "engine.llm", "engine.workers", "engine.onnx", "engine.models"),
    (
        "engine.base",
        "engine.lane",
        "engine.pipeline",
        "engine.tensors",
        "engine.together",
    ),
    ("engine.types", "engine.errors", "engine.config", "engine.manifest"),
)
# The one arrow that points up: problem bodies are wire messages, and only gateway.errors builds
# them.
ALLOWED_UPWARD = {("gateway.errors", "gateway.wire.messages")}
PURE = (
    "gateway.stream",
    "gateway.wire",
    "engine.lane",
    "engine.batching.arrivals",
    "engine.batching.buckets",
    "engine.batching.cost",
    "engine.batching.curve",
    "engine.batching.fair_share",
    "engine.batching.flights",
    "engine.batching.policy",
    "engine.batching.samples",
    "engine.llm.blocks",
    "engine.llm.gauge_log",
    "engine.llm.scheduler",
    "engine.llm.scheduling",
    "engine.llm.sequence",
    "engine.llm.speculation",
    "engine.llm.step_cost",
    "engine.llm.suspects",
    "engine.workers.extents",
    "engine.workers.scaling",
    "engine.workers.stall",
    "engine.workers.wear",
)
IMPURE_MODULES = {"asyncio", "threading", "time", "logging", "socket", "os"}
# Third-party module -> the only places that may import it.
FENCED = {
    "onnxruntime": ("engine.onnx", "loadtest"),
    "onnx": ("engine.models.importers", "engine.onnx.quantize", "engine.onnx.pixels"),
    "torch": ("engine.llm", "loadtest"),
    "transformers": ("engine.models.importers", "loadtest"),
    "tokenizers": ("engine.llm.text", "engine.models.importers"),
    "gguf": ("engine.models.importers",),
    "cv2": ("pipelines", "gateway.client.sources", "gateway.commands", "loadtest"),
    "av": ("gateway.client.sources", "gateway.commands", "loadtest"),
    "aiohttp": ("gateway.net", "gateway.api", "gateway.app", "engine.llm.upstream", "loadtest"),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, at any depth, type-checking blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer_of(name: str, layers: tuple[tuple[str, ...], ...]) -> int | None:
    for index, layer in enumerate(layers):
        if any(is_in(name, package) for package in layer):
            return index
    return None


def test_packages_import_only_downwards() -> None:
    layers = tuple((package,) for package in PACKAGE_LAYERS)
    assert list(upward_imports(layers)) == []


@pytest.mark.parametrize("layers", [GATEWAY_LAYERS, ENGINE_LAYERS], ids=["gateway", "engine"])
def test_layers_inside_a_package_import_only_downwards(layers: tuple[tuple[str, ...], ...]) -> None:
    assert list(upward_imports(layers)) == []


def upward_imports(layers: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    for name, path in modules():
        own = layer_of(name, layers)
        for imported in imports(path):
            other = layer_of(imported, layers)
            if own is None or other is None or (name, imported) in ALLOWED_UPWARD:
                continue
            if other < own:
                yield f"{name} imports {imported}"


def test_the_client_imports_nothing_of_the_gateway_but_the_wire() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        if is_in(name, "gateway.client")
        for imported in imports(path)
        if is_in(imported, "gateway") or is_in(imported, "engine") or is_in(imported, "pipelines")
        if not is_in(imported, "gateway.client") and not is_in(imported, "gateway.wire")
    ]
    assert wrong == []


def test_pure_modules_have_no_clock_thread_or_log() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        if any(is_in(name, pure) for pure in PURE)
        for imported in imports(path)
        if imported.split(".")[0] in IMPURE_MODULES
    ]
    assert wrong == []


def test_heavy_libraries_stay_behind_their_fence() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        for imported in imports(path)
        for library, allowed in FENCED.items()
        if imported.split(".")[0] == library
        if not any(is_in(name, package) for package in allowed)
    ]
    assert wrong == []


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_name_says_nothing() -> None:
    empty_words = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [name for name, _ in modules() if name.split(".")[-1] in empty_words] == []
