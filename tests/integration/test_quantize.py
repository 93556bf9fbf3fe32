"""Smaller variants of a small convolutional network: made, compared, and served."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from engine.manifest import Manifest
from engine.models.repository import variant_path
from engine.models.store import ModelStore
from engine.onnx.accuracy import relative_errors
from engine.onnx.quantize import (
    compare,
    convert_fp16,
    quantize_int8,
    record_inputs,
)
from gateway.cli import app
from tests.fakes.networks import save_classifier
from tests.fakes.pictures import encode, noise

pytestmark = pytest.mark.integration

TOML = """
kind = "classify"
[input]
width = 16
height = 16
fit = "stretch"
scale = [0.00392156862745098, 0.00392156862745098, 0.00392156862745098]
[options]
top_k = 1
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    path = save_classifier(tmp_path / "net.onnx", size=16, classes=4)
    path.with_suffix(".toml").write_text(TOML)
    return ModelStore(home=tmp_path / "home").resolve(str(path))


@pytest.fixture
def pictures() -> list[bytes]:
    return [encode(noise(16, 16, seed), ".png") for seed in range(12)]


def in_variant(manifest: Manifest, variant: str) -> Manifest:
    path = variant_path(Path(manifest.files["model"]), variant)
    return msgspec.structs.replace(manifest, files={"model": str(path)})


def test_int8_is_calibrated_and_nearly_the_same(manifest: Manifest, pictures: list[bytes]) -> None:
    samples = record_inputs(manifest, pictures[:8], 1)
    assert samples[0]["images"].shape == (1, 3, 16, 16)
    source = Path(manifest.files["model"])
    target = variant_path(source, "int8")
    quantize_int8(source, target, samples)
    compared = compare(manifest, in_variant(manifest, "int8"), pictures[8:], 1)
    assert 0.0 < compared.output_error["scores"] < 0.1
    assert len(compared.answers) == 4
    assert compared.speed_ratio > 0.0
    assert sorted(path.name for path in source.parent.glob("*.onnx")) == [
        "net.int8.onnx",
        "net.onnx",
    ]
    assert list(source.parent.glob(".quantize-*")) == []


def test_fp16_keeps_inputs_and_outputs_and_is_closer(
    manifest: Manifest, pictures: list[bytes]
) -> None:
    source = Path(manifest.files["model"])
    target = variant_path(source, "fp16")
    convert_fp16(source, target)
    compared = compare(manifest, in_variant(manifest, "fp16"), pictures, 1)
    assert 0.0 < compared.output_error["scores"] < 0.01


def test_the_command_says_what_the_variant_costs(
    manifest: Manifest, pictures: list[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index, picture in enumerate(pictures):
        (folder / f"{index:02}.png").write_bytes(picture)
    arguments = ["models", "quantize", manifest.files["model"], "--frames", str(folder)]
    result = CliRunner().invoke(app, [*arguments, "--calibrate", "8", "--hold-out", "4"])
    assert result.exit_code == 0, result.output
    assert "on 4 held-out frames" in result.output
    assert "pictures with the same first class" in result.output
    assert "times as fast" in result.output
    assert variant_path(Path(manifest.files["model"]), "int8").is_file()
    missing = CliRunner().invoke(
        app, ["models", "quantize", manifest.files["model"], "--frames", "no"]
    )
    assert missing.exit_code == 3


def test_errors_are_relative_and_outputs_are_paired_by_position() -> None:
    original = [{"a": np.array([3.0, 4.0]), "b": np.array([1.0])}]
    variant = [{"x": np.array([3.0, 3.0]), "y": np.array([1.0])}]
    assert relative_errors(original, variant) == {"a": pytest.approx(0.2), "b": 0.0}
