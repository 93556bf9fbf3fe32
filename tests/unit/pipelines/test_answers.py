from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from pipelines.answers import Detections, detected, label_of

pytestmark = pytest.mark.unit


def test_coordinates_and_scores_are_rounded_for_the_wire() -> None:
    corners = np.array(((1.23456, 2.0), (30.00049, 40.0)), np.float32)
    thing = detected("cup", np.float32(0.1), corners)  # type: ignore[arg-type]
    assert thing.box == (1.235, 2.0, 30.0, 40.0)
    assert thing.score == 0.1


def test_landmarks_are_left_out_when_there_are_none() -> None:
    points = np.array([[0.0, 0.0], [4.0, 4.0], [1.0, 2.0], [3.0, 4.0]])
    answer = Detections(8, 6, (detected("cup", 0.5, points[:2]), detected("face", 0.5, points)))
    assert json.loads(msgspec.json.encode(answer)) == {
        "width": 8,
        "height": 6,
        "objects": [
            {"label": "cup", "score": 0.5, "box": [0.0, 0.0, 4.0, 4.0]},
            {
                "label": "face",
                "score": 0.5,
                "box": [0.0, 0.0, 4.0, 4.0],
                "landmarks": [[1.0, 2.0], [3.0, 4.0]],
            },
        ],
    }


def test_label_falls_back_to_the_class_number() -> None:
    assert label_of(("ant",), 0) == "ant"
    assert label_of((), 123) == "class 123"
