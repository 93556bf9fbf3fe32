from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.manifest import InputSpec, Manifest
from engine.types import AttachmentKind
from pipelines.answers import Classification, ClassScore, Detections, detected
from pipelines.base import PicturePipeline
from pipelines.boxes import Placement
from tests.fakes.onnx_resources import FunctionResources, FunctionSession
from tests.fakes.pictures import encode, gradient

pytestmark = pytest.mark.unit

SPEC = InputSpec(width=32, height=16)


def mean_colour(images: NDArray[Any]) -> list[NDArray[Any]]:
    """A network: the mean red, green and blue of each picture."""
    return [images.mean(axis=(2, 3))]


class MeanReader:
    """Answers one object whose box is made of the means."""

    finds_regions = True

    def read(self, outputs: Sequence[NDArray[Any]], placement: Placement) -> Detections:
        (means,) = outputs
        if means.shape != (3,):
            raise ValueError(f"expected three means, got {means.shape}")
        corners = np.array(((0.0, 0.0), (float(means[0]), float(means[2]))))
        thing = detected("mean", 1.0, corners)
        return Detections(placement.width, placement.height, (thing,))


class WordReader:
    finds_regions = False

    def read(self, outputs: Sequence[NDArray[Any]], placement: Placement) -> Classification:
        return Classification(placement.width, placement.height, (ClassScore("word", 0, 1.0),))


def pipeline_on(session: FunctionSession, reader: Any = None) -> PicturePipeline:
    manifest = Manifest(name="m", files={"model": "m.onnx"}, input=SPEC)
    return PicturePipeline(manifest, FunctionResources(session), reader or MeanReader())


def answer(pipeline: PicturePipeline, picture: bytes, options: bytes = b"") -> Any:
    prepared = pipeline.prepare(memoryview(picture), b"", options)
    (raw,) = pipeline.run([prepared])
    return json.loads(pipeline.interpret(prepared, raw, options).data)


def pictures(count: int) -> list[bytes]:
    """Pictures of different sizes and colours."""
    return [
        encode(np.full((8 + index, 40 - index, 3), 20 * index, np.uint8), ".png")
        for index in range(count)
    ]


def test_answer_names_the_size_of_the_sent_picture() -> None:
    black = encode(np.zeros((48, 64, 3), np.uint8), ".png")
    assert answer(pipeline_on(FunctionSession(mean_colour)), black) == {
        "width": 64,
        "height": 48,
        "objects": [{"label": "mean", "score": 1.0, "box": [0.0, 0.0, 0.0, 0.0]}],
    }


@pytest.mark.parametrize("batch_axis", ["batch", None, 1, 3, 8])
def test_company_and_fixed_batches_change_no_answer(batch_axis: int | str | None) -> None:
    session = FunctionSession(mean_colour, input_shape=(batch_axis, 3, 16, 32))
    pipeline = pipeline_on(session)
    alone = [answer(pipeline, picture) for picture in pictures(5)]
    prepared = [pipeline.prepare(memoryview(picture), b"", b"") for picture in pictures(5)]
    raws = pipeline.run(prepared)
    together = [
        json.loads(pipeline.interpret(item, raw, b"").data)
        for item, raw in zip(prepared, raws, strict=True)
    ]
    assert together == alone
    if isinstance(batch_axis, int):
        assert {shape[0] for shape in session.ran} == {batch_axis}
    else:
        assert session.ran[-1] == (5, 3, 16, 32)


def test_empty_batch_runs_nothing() -> None:
    session = FunctionSession(mean_colour)
    assert pipeline_on(session).run([]) == []
    assert session.ran == []


def test_warm_up_runs_a_batch_of_that_size() -> None:
    session = FunctionSession(mean_colour)
    pipeline_on(session).warm_up(4)
    assert session.ran == [(4, 3, 16, 32)]


@pytest.mark.parametrize(
    "network",
    [
        lambda images: [images.mean(axis=(1, 2, 3))[:, None]],  # not what the reader expects
        lambda images: [images[:1].mean(axis=(2, 3))],  # one row for the whole batch
    ],
)
def test_unfit_network_stops_the_start(network: Any) -> None:
    with pytest.raises(StartupError, match="model 'm'"):
        pipeline_on(FunctionSession(network)).warm_up(2)


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (FunctionSession(mean_colour, input_shape=("b", 3, 640, 640)), "640"),
        (FunctionSession(mean_colour, input_shape=("b", 16, 32, 3)), "32"),
        (FunctionSession(mean_colour, input_shape=("b", 3)), "input is"),
        (FunctionSession(mean_colour, input_dtype=np.float16), "float16"),
        (FunctionSession(mean_colour, input_names=("a", "b")), "one input"),
    ],
)
def test_unfit_input_stops_the_start(session: FunctionSession, text: str) -> None:
    with pytest.raises(StartupError, match=text):
        pipeline_on(session)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (Manifest(name="m", files={"model": "m.onnx"}), "input"),
        (Manifest(name="m", input=SPEC), "files.model"),
    ],
)
def test_incomplete_manifest_stops_the_start(manifest: Manifest, text: str) -> None:
    resources = FunctionResources(FunctionSession(mean_colour))
    with pytest.raises(StartupError, match=text):
        PicturePipeline(manifest, resources, MeanReader())


def test_picture_is_kept_only_for_annotation() -> None:
    pipeline = pipeline_on(FunctionSession(mean_colour))
    data = memoryview(encode(gradient(64, 48)))
    for options in (b"", b"{}", b'{"annotate":null}', b'{"unknown":1}'):
        assert pipeline.prepare(data, b"", options).canvas is None
    assert pipeline.prepare(data, b"", b'{"annotate":"boxes"}').canvas is not None


def test_a_large_picture_waits_at_the_size_of_its_annotated_frame() -> None:
    pipeline = pipeline_on(FunctionSession(mean_colour))
    picture = memoryview(encode(gradient(3840, 2160)))
    prepared = pipeline.prepare(picture, b"", b'{"annotate":"boxes"}')
    assert prepared.canvas is not None
    assert prepared.canvas.shape == (720, 1280, 3)
    assert prepared.canvas.base is None  # no view of what was decoded
    (raw,) = pipeline.run([prepared])
    assert json.loads(pipeline.interpret(prepared, raw, b"").data)["width"] == 3840


@pytest.mark.parametrize("mode", ["boxes", "blur"])
def test_asked_for_annotation_is_attached(mode: str) -> None:
    pipeline = pipeline_on(FunctionSession(mean_colour))
    options = json.dumps({"annotate": mode}).encode()
    prepared = pipeline.prepare(memoryview(encode(gradient(64, 48))), b"", options)
    (raw,) = pipeline.run([prepared])
    (attachment,) = pipeline.interpret(prepared, raw, options).attachments
    assert attachment.kind is AttachmentKind.ANNOTATED_FRAME


@pytest.mark.parametrize("options", [b"{", b"[]", b'{"annotate":"mosaic"}', b"\xff"])
def test_malformed_options_fail_the_item(options: bytes) -> None:
    pipeline = pipeline_on(FunctionSession(mean_colour))
    with pytest.raises(InvalidInput, match="options"):
        pipeline.prepare(memoryview(encode(gradient(64, 48))), b"", options)


def test_blur_without_regions_is_refused_rather_than_ignored() -> None:
    pipeline = pipeline_on(FunctionSession(mean_colour), WordReader())
    picture = memoryview(encode(gradient(64, 48)))
    with pytest.raises(InvalidInput, match="no regions"):
        pipeline.prepare(picture, b"", b'{"annotate":"blur"}')
    assert pipeline.prepare(picture, b"", b'{"annotate":"boxes"}').canvas is not None


def test_bad_picture_fails_the_item() -> None:
    with pytest.raises(InvalidInput):
        pipeline_on(FunctionSession(mean_colour)).prepare(memoryview(b"not a picture"), b"", b"")


def test_a_session_that_takes_pixels_gets_them_as_they_are() -> None:
    seen: list[NDArray[Any]] = []

    def network(pixels: NDArray[Any]) -> list[NDArray[Any]]:
        seen.append(pixels)
        return [pixels[..., ::-1].mean(axis=(1, 2))]

    session = FunctionSession(network, input_shape=("b", 16, 32, 3), input_dtype=np.uint8)
    session.takes_pixels = True
    pipeline = pipeline_on(session)
    pipeline.warm_up(2)
    blue = np.zeros((16, 32, 3), np.uint8)
    blue[..., 0] = 200
    assert answer(pipeline, encode(blue, ".png"))["objects"][0]["box"] == [0.0, 0.0, 0.0, 200.0]
    assert [(each.dtype, each.shape) for each in seen] == [
        (np.dtype(np.uint8), (2, 16, 32, 3)),
        (np.dtype(np.uint8), (1, 16, 32, 3)),
    ]
    np.testing.assert_array_equal(seen[1][0], blue)
