"""Labels: which boxes a tag gets, how sure they are, and the file they are kept in."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melm.boxes import iou
from melm.detect.detections import Detections
from melm.detect.labels import LABELS, LabelledImage, Labels, LabelsFile, tag_boxes
from melm.errors import MelmError, UsageError

NAMES = ("black bird", "猫")
SETTINGS = {"run": "ab12", "alike": 0.6}
APART = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10], [41, 0, 51, 10]], np.float32)


def image(id, confidences=(0.5,), tags=("猫",), best=None):
    boxes = np.array([[i, 2, i + 3.3, 7.7] for i in range(len(confidences))], np.float32).reshape(-1, 4)
    found = Detections(
        boxes, np.array(confidences, np.float32), np.full(len(boxes), 1, np.intp), NAMES, width=20, height=10
    )
    best = np.arange(len(boxes)) == 0 if best is None else np.array(best)
    return LabelledImage(id, f"photos/{id}.jpg", tags, found, best)


def test_the_boxes_of_a_tag_by_hand():
    """The last one overlaps the third and goes; the third has 0.5 of the best score, less than is alike."""
    boxes, sure = tag_boxes(
        APART, np.array([0.4, 0.3, 0.2, 0.1], np.float32), present=1, overlap=0.3, vote=0, alike=0.7
    )
    np.testing.assert_array_equal(boxes, APART[:2])
    np.testing.assert_allclose(sure, [0.4 / 0.6, 0.3 / 0.5])


def test_the_best_alone_is_its_share_of_all_where_the_tag_is_right():
    boxes, sure = tag_boxes(
        APART, np.array([0.1, 0.3, 0.2, 0.1], np.float32), present=0.5, overlap=0.3, vote=0, alike=1
    )
    np.testing.assert_array_equal(boxes, APART[[1]])
    np.testing.assert_allclose(sure, [0.5 * 0.5])


def test_voting_moves_a_label():
    boxes, _ = tag_boxes(APART, np.array([0.0, 0.0, 0.3, 0.1], np.float32), present=1, overlap=0.3, vote=0.6, alike=1)
    np.testing.assert_allclose(boxes, [[40.25, 0, 50.25, 10]], rtol=1e-5)


@given(
    scores=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12),
    alike=st.floats(0.01, 1),
    overlap=st.floats(0, 0.9),
    seed=st.integers(0, 99),
)
def test_every_tag_gets_its_best_box(scores, alike, overlap, seed):
    """Also where all scores are nothing; the surest comes first, and no two are the same object."""
    corners = np.random.default_rng(seed).uniform(0, 50, (len(scores), 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1) + 1], axis=1)
    scores = np.array(scores, np.float32)
    found, sure = tag_boxes(boxes, scores, 1.01, overlap, 0.0, alike)
    assert len(found) == len(sure) >= 1
    assert np.isfinite(sure).all() and (sure >= 0).all() and (sure <= 1).all()
    assert (np.diff(sure) <= 1e-6).all()
    assert scores[(boxes == found[0]).all(axis=1)].max() == scores.max()
    between = iou(found, found) - np.eye(len(found))
    assert between.max() <= overlap + 1e-6


def test_only_some_images_are_read(tmp_path):
    write(tmp_path, [image("a", (0.9,)), image("b", (0.1,)), image("c", (0.5,))])
    assert [one.id for one in Labels(tmp_path, {"a", "c"})] == ["c", "a"]


def test_scores_of_nothing_give_one_box():
    boxes, sure = tag_boxes(APART, np.zeros(4, np.float32), present=1, overlap=0.3, vote=0, alike=0.6)
    assert len(boxes) == 1 and sure.tolist() == [0]


def test_doubt_is_of_the_least_sure_tag():
    two = image("a", (0.9, 0.2, 0.1), ("black bird", "猫"), best=[True, True, False])
    assert two.doubt == pytest.approx(0.8)
    assert image("b", (), ()).doubt == 0


def write(folder, images, settings=SETTINGS, now=None, **options):
    with LabelsFile(folder, NAMES, settings, now or {}, **options) as file:
        for one in images:
            if one.id not in file.done:
                file.append(one)


def test_read_back_the_most_doubtful_first(tmp_path):
    given = [image("sure", (0.9,)), image("nothing", (), ()), image("doubtful", (0.1, 0.05)), image("空 b", (0.5,))]
    write(tmp_path, given)
    labels = Labels(tmp_path)
    assert len(labels) == 4 and labels.classes == NAMES and labels.settings["alike"] == 0.6
    assert [one.id for one in labels] == ["doubtful", "空 b", "sure", "nothing"]
    by_id = {one.id: one for one in labels}
    for one in given:
        back = by_id[one.id]
        assert back.tags == one.tags and str(back.path) == one.path and back.best.tolist() == one.best.tolist()
        np.testing.assert_array_equal(back.found.boxes, one.found.boxes)
        np.testing.assert_array_equal(back.found.scores, one.found.scores)
        assert back.found.class_names() == one.found.class_names()


def test_goes_on_after_a_line_that_was_cut(tmp_path):
    write(tmp_path, [image("a"), image("b")])
    path = tmp_path / LABELS
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert [one.id for one in Labels(tmp_path)] == ["a"]
    write(tmp_path, [image("a"), image("b")])
    assert path.read_bytes() == whole


def test_refuses_labels_of_other_settings_or_other_tags(tmp_path):
    write(tmp_path, [image("a")])
    with pytest.raises(UsageError, match=r"alike: 0.6 there, 1 now"):
        write(tmp_path, [], {**SETTINGS, "alike": 1})
    with pytest.raises(UsageError, match=r"'a' was labelled as 猫, and is black bird now\. --overwrite"):
        write(tmp_path, [], now={"a": (Path("photos/a.jpg"), ("black bird",))})
    with pytest.raises(UsageError, match=r"'a' was photos/a.jpg, and is other/a.jpg now"):
        write(tmp_path, [], now={"a": (Path("other/a.jpg"), ("猫",))})
    write(
        tmp_path, [image("a", tags=("black bird",))], now={"a": (Path("photos/a.jpg"), ("black bird",))}, overwrite=True
    )
    assert [one.tags for one in Labels(tmp_path)] == [("black bird",)]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("tags", "猫", "tags should be a list"), ("best", [1], "best should be"), ("best", [], "best should be")],
)
def test_a_damaged_line_is_named(tmp_path, key, value, words):
    write(tmp_path, [image("a")])
    path = tmp_path / LABELS
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}) + "\n")
    with pytest.raises(MelmError, match=f"line 1: damaged .{words}"):
        Labels(tmp_path)


def test_where_there_are_no_labels(tmp_path):
    with pytest.raises(MelmError, match="melm label RUN DATA"):
        Labels(tmp_path)
