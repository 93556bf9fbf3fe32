"""The pipelines on real networks and real frames, against loops that share no code with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.manifest import Manifest
from engine.models.description import load_model_file
from engine.models.store import ModelStore
from engine.pipeline import Pipeline
from loadtest.bare_centerface import BareCenterFace, Face
from pipelines import registry
from tests.fakes.onnx_resources import FixedBufferResources, OrtResources
from tests.fakes.pictures import decode, encode, noise
from tests.reference.classify_reference import ClassifyReference
from tests.reference.geometry import clipped, intersection_over_union

pytestmark = pytest.mark.integration

SIZES = ((176, 144), (640, 480), (320, 256), (1280, 720), (200, 400))


@pytest.fixture(scope="module")
def centerface() -> Manifest:
    return ModelStore().pull("centerface")


@pytest.fixture(scope="module")
def faces(centerface: Manifest) -> Pipeline:
    pipeline = registry.build(centerface, OrtResources())
    pipeline.warm_up(1)
    return pipeline


@pytest.fixture(scope="module")
def reference(centerface: Manifest) -> BareCenterFace:
    return BareCenterFace(centerface.files["model"])


@pytest.fixture(scope="module")
def face_frames() -> list[bytes]:
    """Every fifth frame of the face clip, as JPEGs of various sizes and shapes."""
    frames = clip_frames(ModelStore().pull_clip("face"), step=5)
    return [
        encode(cv2.resize(frame, SIZES[index % len(SIZES)])) for index, frame in enumerate(frames)
    ]


def clip_frames(path: Path, step: int) -> list[Any]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))[::step]
        return [frame.to_ndarray(format="bgr24") for frame in frames]


def answers(pipeline: Pipeline, pictures: Sequence[bytes], options: bytes = b"") -> list[Any]:
    """The pictures' answers from one batch."""
    prepared = [pipeline.prepare(memoryview(data), b"", options) for data in pictures]
    raws = pipeline.run(prepared)
    return [
        json.loads(pipeline.interpret(item, raw, options).data)
        for item, raw in zip(prepared, raws, strict=True)
    ]


def assert_every_face_is_found(answer: Any, expected: Sequence[Face]) -> None:
    assert len(answer["objects"]) == len(expected)
    for face in expected:
        box = clipped(face.box, answer["width"], answer["height"])
        found = max(answer["objects"], key=lambda thing: overlap(thing, box))
        assert overlap(found, box) >= 0.99
        assert found["score"] == pytest.approx(face.score, abs=1e-3)
        limits = (answer["width"], answer["height"])
        marks = np.clip(np.array(face.landmarks), 0, limits)
        assert np.abs(np.array(found["landmarks"]) - marks).max() < 0.05


def overlap(thing: Any, box: Sequence[float]) -> float:
    return intersection_over_union(thing["box"], box)


def test_every_face_of_the_reference_is_found_alone(
    faces: Pipeline, reference: BareCenterFace, face_frames: list[bytes]
) -> None:
    num_faces = 0
    for jpeg in face_frames:
        expected = reference(jpeg)
        num_faces += len(expected)
        assert_every_face_is_found(answers(faces, [jpeg])[0], expected)
    assert num_faces >= len(face_frames) - 2  # the man turns his head away once or twice


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_every_face_of_the_reference_is_found_in_mixed_batches(
    faces: Pipeline, reference: BareCenterFace, face_frames: list[bytes], batch_size: int
) -> None:
    empty = encode(noise(320, 200))
    for start in range(0, len(face_frames), batch_size):
        batch = [*face_frames[start : start + batch_size - 1], empty]
        for jpeg, answer in zip(batch, answers(faces, batch), strict=True):
            assert_every_face_is_found(answer, reference(jpeg))


def test_every_face_of_the_reference_is_found_as_on_an_accelerator(
    centerface: Manifest, reference: BareCenterFace, face_frames: list[bytes]
) -> None:
    pipeline = registry.build(centerface, FixedBufferResources(1, 2, 4))
    for size in (1, 2, 3, 4):
        batch = [*face_frames[: size - 1], encode(noise(320, 200))]
        for jpeg, answer in zip(batch, answers(pipeline, batch), strict=True):
            assert_every_face_is_found(answer, reference(jpeg))


def test_company_does_not_change_a_score(faces: Pipeline, face_frames: list[bytes]) -> None:
    alone = [answers(faces, [jpeg])[0] for jpeg in face_frames[:4]]
    together = answers(faces, face_frames[:4])
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one["objects"], other["objects"], strict=True):
            assert a["score"] == pytest.approx(b["score"], abs=1e-4)
            assert a["box"] == pytest.approx(b["box"], abs=0.05)


def test_blurred_face_is_no_longer_found(faces: Pipeline, face_frames: list[bytes]) -> None:
    options = b'{"annotate":"blur"}'
    for jpeg in face_frames[:5]:
        prepared = faces.prepare(memoryview(jpeg), b"", options)
        (raw,) = faces.run([prepared])
        output = faces.interpret(prepared, raw, options)
        (attachment,) = output.attachments
        assert decode(attachment.payload).shape == decode(jpeg).shape
        assert json.loads(output.data)["objects"]
        assert answers(faces, [attachment.payload])[0]["objects"] == []


def test_classes_and_probabilities_equal_the_reference() -> None:
    manifest = ModelStore().pull("efficientnet-lite0")
    pipeline = registry.build(manifest, OrtResources())
    reference = ClassifyReference(manifest.files["model"])
    frames = clip_frames(ModelStore().pull_clip("street"), step=50)
    pictures = [encode(frame) for frame in frames] + [encode(noise(300, 500))]
    for jpeg, answer in zip(pictures, answers(pipeline, pictures), strict=True):
        expected = reference(jpeg)[:5]
        assert [entry["index"] for entry in answer["classes"]] == [index for index, _ in expected]
        scores = [entry["score"] for entry in answer["classes"]]
        assert scores == pytest.approx([score for _, score in expected], abs=1e-3)
        assert [entry["label"] for entry in answer["classes"]] == [
            manifest.labels[index] for index, _ in expected
        ]


DETECTOR_TOML = """
kind = "detect"
labels = ["red thing", "blue thing"]

[input]
width = 64
height = 64
pad_value = 114
scale = [0.00392156862745098, 0.00392156862745098, 0.00392156862745098]
"""


def save_detector(path: Path, batch: int | str, permutation: Sequence[int]) -> None:
    """A network in the shape of a YOLOv8 export: two anchors with fixed boxes, whose scores are
    the mean red (class 0) and the mean blue (class 1) of the upper half of the input.
    """
    num_anchors = 42
    boxes = np.zeros((1, 4, num_anchors), np.float32)
    boxes[0, :, 0], boxes[0, :, 1] = (20, 20, 16, 8), (44, 20, 16, 8)
    spread = np.zeros((1, 2, num_anchors), np.float32)
    spread[0, 0, 0] = spread[0, 1, 1] = 1.0
    constants = {
        "boxes": boxes,
        "spread": spread,
        "from": np.array([0]),
        "to": np.array([32]),
        "rows": np.array([2]),
        "red_blue": np.array([0, 2]),
        "behind": np.array([2]),
        "zeros": np.zeros((1, 4, 2), np.float32),
    }
    nodes = [
        helper.make_node("Slice", ["images", "from", "to", "rows"], ["upper"]),
        helper.make_node("ReduceMean", ["upper"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Gather", ["means", "red_blue"], ["pair"], axis=1),
        helper.make_node("Unsqueeze", ["pair", "behind"], ["column"]),
        helper.make_node("Mul", ["column", "spread"], ["scores"]),
        # Zero times the scores: gives the constant boxes the batch's number of rows.
        helper.make_node("MatMul", ["zeros", "scores"], ["nothing"]),
        helper.make_node("Add", ["boxes", "nothing"], ["placed"]),
        helper.make_node("Concat", ["placed", "scores"], ["joined"], axis=1),
        helper.make_node("Transpose", ["joined"], ["output0"], perm=list(permutation)),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, 64, 64])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


@pytest.mark.parametrize("batch", ["batch", 1, 4])
@pytest.mark.parametrize("permutation", [(0, 1, 2), (0, 2, 1)])
def test_detector_export_works_by_its_toml_alone(
    tmp_path: Path, batch: int | str, permutation: tuple[int, ...]
) -> None:
    save_detector(tmp_path / "things.onnx", batch, permutation)
    (tmp_path / "things.toml").write_text(DETECTOR_TOML)
    pipeline = registry.build(load_model_file(tmp_path / "things.onnx"), OrtResources())
    pipeline.warm_up(2)
    # 128x64 is letterboxed to 64x32: the upper half of the input, at half the size.
    pictures = [
        encode(np.full((64, 128, 3), colour, np.uint8), ".png")
        for colour in ((0, 0, 255), (204, 0, 0), (0, 255, 0), (255, 0, 204), (255, 0, 0))
    ]
    found = [
        [(thing["label"], round(thing["score"], 3), thing["box"]) for thing in answer["objects"]]
        for answer in answers(pipeline, pictures)
    ]
    red, blue = [24.0, 32.0, 56.0, 48.0], [72.0, 32.0, 104.0, 48.0]
    assert found == [
        [("red thing", 1.0, red)],
        [("blue thing", 0.8, blue)],
        [],
        [("blue thing", 1.0, blue), ("red thing", 0.8, red)],
        [("blue thing", 1.0, blue)],
    ]
