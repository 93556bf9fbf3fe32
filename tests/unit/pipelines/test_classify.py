from __future__ import annotations

import numpy as np
import pytest

from pipelines.boxes import Placement
from pipelines.classify import ClassifyOptions, ClassReader, softmax, top_classes

pytestmark = pytest.mark.unit

PLACEMENT = Placement(width=64, height=48, scale_x=1.0, scale_y=1.0)


def test_softmax_sums_to_one_and_survives_large_logits() -> None:
    assert softmax(np.array([0.0, 0.0])).tolist() == [0.5, 0.5]
    assert softmax(np.array([1000.0, 0.0, -1000.0], np.float32)).tolist() == [1.0, 0.0, 0.0]


def test_top_classes_are_ordered_and_ties_are_stable() -> None:
    assert top_classes(np.array([0.1, 0.4, 0.1, 0.4]), 3).tolist() == [1, 3, 0]
    assert top_classes(np.array([0.3, 0.7]), 5).tolist() == [1, 0]


def test_answer_has_the_k_most_probable_labels() -> None:
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    reader = ClassReader(("ant", "bee", "cat"), ClassifyOptions(top_k=2))
    answer = reader.read([logits], PLACEMENT)
    assert (answer.width, answer.height) == (64, 48)
    assert [(c.label, c.index) for c in answer.classes] == [("bee", 1), ("cat", 2)]
    assert [c.score for c in answer.classes] == pytest.approx([0.6, 0.3], abs=1e-5)


def test_class_without_label_is_numbered() -> None:
    answer = ClassReader((), ClassifyOptions(top_k=1)).read([np.eye(200)[123]], PLACEMENT)
    assert answer.classes[0].label == "class 123"


def test_network_may_bring_its_own_softmax() -> None:
    reader = ClassReader((), ClassifyOptions(softmax=False))
    answer = reader.read([np.array([0.25, 0.75], np.float32)], PLACEMENT)
    assert [c.score for c in answer.classes] == [0.75, 0.25]


def test_pooled_output_keeps_its_classes() -> None:
    answer = ClassReader((), ClassifyOptions()).read([np.zeros((3, 1, 1), np.float32)], PLACEMENT)
    assert len(answer.classes) == 3


def test_labels_must_match_the_classes() -> None:
    with pytest.raises(ValueError, match="2 labels, but 3 classes"):
        ClassReader(("ant", "bee"), ClassifyOptions()).read([np.zeros(3)], PLACEMENT)


@pytest.mark.parametrize("shape", [(6, 100), (84, 8400), (1, 7, 7), ()])
def test_an_output_that_is_not_one_score_per_class_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected an output \[batch, classes\], got"):
        ClassReader((), ClassifyOptions()).read([np.zeros(shape, np.float32)], PLACEMENT)
