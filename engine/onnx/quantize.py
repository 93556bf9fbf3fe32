"""Smaller variants of a network: int8, calibrated on real items, and fp16; and what they cost.

int8 is static quantisation in the QDQ format (weights per channel, activations by their range on
the calibration items), so that every provider can fuse it. fp16 keeps float32 inputs and outputs.
Either way pipelines notice nothing.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from engine.errors import StartupError
from engine.manifest import InputSpec, Manifest
from engine.onnx.accuracy import relative_errors
from engine.onnx.session import open_session
from engine.pipeline import Arrays, OnnxSession, Pipeline
from engine.workers.loading import import_factory

CPU = ("CPUExecutionProvider",)
TIMED_RUNS = 20
MIN_OPSET = 13  # QuantizeLinear and DequantizeLinear have an axis from here on
_SMALLEST = 1e-12


class RecordingSession:
    """An :class:`engine.pipeline.OnnxSession` that remembers inputs, outputs and run times."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self.inputs: list[dict[str, NDArray[Any]]] = []
        self.outputs: list[dict[str, NDArray[Any]]] = []
        self.run_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        began = time.perf_counter()
        outputs = self._session.run(inputs)
        self.run_s.append(time.perf_counter() - began)
        self.inputs.append(dict(inputs))
        self.outputs.append(outputs)
        return outputs


class Recording:
    """One model's pipeline over a recording session; implements ``engine.pipeline.Resources``."""

    def __init__(self, manifest: Manifest, threads: int) -> None:
        """Raises ``StartupError`` when the model cannot be loaded, or has several networks."""
        self._threads = threads
        self._sessions: list[RecordingSession] = []
        self.pipeline: Pipeline = import_factory(manifest.pipeline)(manifest, self)
        if len(self._sessions) != 1:
            count = len(self._sessions)
            raise StartupError(f"model {manifest.name!r} has {count} networks, one is needed")
        self.session = self._sessions[0]

    def open_session(self, path: Path, picture: InputSpec | None = None) -> OnnxSession:
        session = RecordingSession(open_session(path, CPU, self._threads))
        self._sessions.append(session)
        return session

    def answer(self, payload: bytes) -> bytes:
        """One item through the whole pipeline, alone; returns its JSON.

        Raises:
            InvalidInput: the item is nothing for this model.
        """
        prepared = self.pipeline.prepare(memoryview(payload), b"", b"")
        (raw,) = self.pipeline.run([prepared])
        return self.pipeline.interpret(prepared, raw, b"").data


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A variant beside its original on the same items. ``output_error`` is the length of the
    difference over the length of the original's outputs, over all items, by output name;
    ``answers`` are pairs of JSON, the original's first; ``speed_ratio`` over 1: it is faster."""

    output_error: dict[str, float]
    answers: tuple[tuple[bytes, bytes], ...]
    original_run_s: float
    variant_run_s: float

    @property
    def speed_ratio(self) -> float:
        return self.original_run_s / max(_SMALLEST, self.variant_run_s)


def record_inputs(manifest: Manifest, payloads: Sequence[bytes], threads: int) -> list[Arrays]:
    """What the network is given for each item; raises like :class:`Recording`."""
    recording = Recording(manifest, threads)
    recording.session.inputs.clear()
    for payload in payloads:
        recording.answer(payload)
    return list(recording.session.inputs)


def quantize_int8(source: Path, target: Path, samples: Sequence[Arrays]) -> None:
    """Write an int8 variant of ``source``, calibrated on ``samples``; appears by one rename."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with _work_folder(target) as folder:
        inferred, result = folder / "inferred.onnx", folder / "result.onnx"
        with _quiet():
            quant_pre_process(_upgraded(source, folder), inferred, skip_symbolic_shape=True)
            quantize_static(
                inferred,
                result,
                _Samples(samples),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                # Without VNNI, products of full 8-bit weights saturate; 7 bits do not.
                reduce_range=not _has_vnni(),
            )
        os.replace(result, target)


def convert_fp16(source: Path, target: Path) -> None:
    """Write an fp16 variant of ``source``; appears by one rename."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _work_folder(target) as folder, _quiet():
        model = convert_float_to_float16(str(source), keep_io_types=True)
        result = folder / "result.onnx"
        result.write_bytes(model.SerializeToString())
        os.replace(result, target)


def compare(
    original: Manifest, variant: Manifest, payloads: Sequence[bytes], threads: int
) -> Comparison:
    """Run both over the same items, turn by turn, so that a busy machine slows both alike."""
    pair = (Recording(original, threads), Recording(variant, threads))
    for recording in pair:
        recording.answer(payloads[0])  # the first run pays for what later ones do not
        for record in (recording.session.outputs, recording.session.run_s):
            record.clear()
    answers = []
    for index in range(max(len(payloads), TIMED_RUNS)):
        first, second = (each.answer(payloads[index % len(payloads)]) for each in pair)
        if index < len(payloads):
            answers.append((first, second))
    outputs = [each.session.outputs[: len(payloads)] for each in pair]
    return Comparison(
        output_error=relative_errors(outputs[0], outputs[1]),
        answers=tuple(answers),
        original_run_s=statistics.median(pair[0].session.run_s),
        variant_run_s=statistics.median(pair[1].session.run_s),
    )


class _Samples:
    """What the calibration reads: one item after another, then None."""

    def __init__(self, samples: Sequence[Arrays]) -> None:
        self._samples: Iterator[Arrays] = iter(samples)

    def get_next(self) -> Arrays | None:
        return next(self._samples, None)


class _work_folder:
    """A folder beside ``target``, so that the result can be renamed into place."""

    def __init__(self, target: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".quantize-")

    def __enter__(self) -> Path:
        return Path(self._folder.name)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


class _quiet:
    """The tools log advice to the root logger, and float16 warns of every tiny constant."""

    def __enter__(self) -> None:
        self._level = logging.root.level
        logging.root.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        logging.root.setLevel(self._level)


def _upgraded(source: Path, folder: Path) -> Path:
    """The network in an operator set that knows scales per channel; the file itself if it does."""
    import onnx
    from onnx import version_converter

    model = onnx.load(str(source))
    if any(each.domain == "" and each.version >= MIN_OPSET for each in model.opset_import):
        return source
    path = folder / "upgraded.onnx"
    onnx.save(version_converter.convert_version(model, MIN_OPSET), str(path))
    return path


def _has_vnni() -> bool:
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False
