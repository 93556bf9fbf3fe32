from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import StartupError
from engine.manifest import InputSpec, Manifest
from pipelines import faces
from pipelines.base import PicturePipeline
from pipelines.boxes import MAX_CANDIDATES, Placement
from pipelines.faces import FaceOptions, FaceReader, Faces, decode_faces
from tests.fakes.onnx_resources import FunctionResources, FunctionSession

pytestmark = pytest.mark.unit

Maps = list[NDArray[np.float32]]
GRID = (64, 80)  # of a 320x256 input


def blank_maps() -> Maps:
    return [np.zeros((channels, *GRID), np.float32) for channels in (1, 2, 2, 10)]


def put_face(
    maps: Maps, row: int, column: int, *, score: float, width: float, height: float
) -> None:
    """A face of ``width`` x ``height`` input pixels, landmarks at 0.1, 0.2 … of its box."""
    heatmap, scale, offset, landmarks = maps
    heatmap[0, row, column] = score
    scale[:, row, column] = math.log(height / 4), math.log(width / 4)
    offset[:, row, column] = 0.25, -0.25  # down, right
    landmarks[:, row, column] = np.arange(1, 11) / 10


def decode(maps: Maps) -> Faces:
    heatmap, scale, offset, landmarks = maps
    return decode_faces(heatmap, scale, offset, landmarks, 0.5)


def placement(width: int = 320, height: int = 256) -> Placement:
    return Placement(width=width, height=height, scale_x=320 / width, scale_y=256 / height)


def test_face_is_decoded_from_its_cell() -> None:
    maps = blank_maps()
    put_face(maps, 10, 20, score=0.75, width=40, height=60)
    found = decode(maps)
    # Centre: (20 - 0.25 + 0.5, 10 + 0.25 + 0.5) cells of four pixels.
    assert np.allclose(found.boxes, [[81 - 20, 43 - 30, 81 + 20, 43 + 30]], atol=1e-4)
    assert found.scores.tolist() == [0.75]
    expected = [(61 + 40 * (2 * k + 2) / 10, 13 + 60 * (2 * k + 1) / 10) for k in range(5)]
    assert np.allclose(found.landmarks, [expected], atol=1e-4)


def test_score_must_exceed_the_threshold() -> None:
    maps = blank_maps()
    put_face(maps, 10, 20, score=0.5, width=40, height=60)
    assert len(decode(maps).boxes) == 0


def test_neighbouring_cells_are_one_face_and_the_strongest_wins() -> None:
    maps = blank_maps()
    for column, score in ((19, 0.6), (20, 0.9), (21, 0.7), (60, 0.8)):
        put_face(maps, 10, column, score=score, width=40, height=60)
    answer = FaceReader(FaceOptions()).read(maps, placement())
    assert [thing.score for thing in answer.objects] == pytest.approx([0.9, 0.8], abs=1e-5)
    assert {thing.label for thing in answer.objects} == {"face"}


def test_face_is_answered_in_pixels_of_the_picture_and_clipped() -> None:
    maps = blank_maps()
    put_face(maps, 0, 0, score=0.9, width=40, height=40)
    (face,) = FaceReader(FaceOptions()).read(maps, placement(640, 512)).objects
    # Centre (1, 3) of the input; the part left of and above the picture is cut off.
    assert face.box == pytest.approx((0, 0, 42, 46), abs=0.01)
    assert face.landmarks is not None
    assert face.landmarks[0] == pytest.approx((0, 0))
    assert face.landmarks[4] == pytest.approx((42, (3 - 20 + 36) * 2), abs=0.01)


def test_face_in_the_padding_is_not_answered() -> None:
    maps = blank_maps()
    put_face(maps, 10, 70, score=0.9, width=20, height=20)
    half = Placement(width=160, height=256, scale_x=1.0, scale_y=1.0)
    assert FaceReader(FaceOptions()).read(maps, half).objects == ()


def test_empty_maps_are_no_faces() -> None:
    answer = FaceReader(FaceOptions()).read(blank_maps(), placement())
    assert (answer.width, answer.height, answer.objects) == (320, 256, ())


def test_candidates_and_faces_are_bounded() -> None:
    maps = blank_maps()
    maps[0][:] = 0.9
    maps[0][0, 5, 5] = 0.95
    found = decode(maps)
    assert len(found.boxes) == MAX_CANDIDATES
    assert found.scores.max() == np.float32(0.95)
    answer = FaceReader(FaceOptions(max_faces=7)).read(maps, placement())
    assert len(answer.objects) == 7


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 2), ()])
def test_outputs_of_another_network_are_refused(order: tuple[int, ...]) -> None:
    maps = blank_maps()
    with pytest.raises(ValueError, match="heatmap"):
        FaceReader(FaceOptions()).read([maps[index] for index in order], placement())


def build(width: int = 320, **options: Any) -> PicturePipeline:
    def network(images: NDArray[Any]) -> list[NDArray[Any]]:
        return [np.stack([array] * len(images)) for array in blank_maps()]

    manifest = Manifest(
        name="m",
        kind="faces",
        files={"model": "m.onnx"},
        input=InputSpec(width=width, height=256),
        options=options,
    )
    return faces.build(manifest, FunctionResources(FunctionSession(network, num_outputs=4)))


def test_pipeline_warms_up_on_its_own_maps() -> None:
    build().warm_up(3)


def test_input_size_must_be_a_multiple_of_32() -> None:
    with pytest.raises(StartupError, match="multiples of 32"):
        build(width=300)


@pytest.mark.parametrize(
    "options", [{"score_threshold": 1.5}, {"max_faces": 0}, {"threshold": 0.5}]
)
def test_wrong_option_stops_the_start_and_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match=next(iter(options))):
        build(**options)
