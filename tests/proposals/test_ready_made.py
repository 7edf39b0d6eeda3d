"""Proposal files of other people, and files that pretend to be some."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from melm.errors import MelmError, UsageError
from melm.proposals import ReadyMade
from melm.proposals.ready_made import NumpyUnpickler, check_fits

IDS = ["000012", "000023"]
EDGES = [np.array([[2, 3, 10, 20], [0, 0, 5, 6.0]]), np.array([[1, 1, 4, 4.0]])]  # x1 y1 x2 y2 where the box ends


def as_object_array(items):
    array = np.empty(len(items), object)
    array[:] = items
    return array


def write_mat(path, ids=IDS):
    boxes = [(b[:, [1, 0, 3, 2]] + [1, 1, 0, 0]).astype(np.uint16) for b in EDGES]  # 1-based, last pixel, y first
    scipy.io.savemat(path, {"boxes": as_object_array(boxes), "images": as_object_array(ids)})
    return path


def write_npz(path, ids=IDS):
    np.savez(path, **dict(zip(ids, EDGES, strict=True)))
    return path


def pickled(content, path, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol))
    return path


PIXELS = [b - [0, 0, 1, 1] for b in EDGES]  # first and last pixel, from 0


def check_boxes(found):
    for boxes, expected in zip(found, EDGES, strict=True):
        np.testing.assert_array_equal(boxes[:, :4], expected)


def test_mat(tmp_path):
    check_boxes(ReadyMade(write_mat(tmp_path / "a.mat")).match(IDS))


def test_npz(tmp_path):
    check_boxes(ReadyMade(write_npz(tmp_path / "a.npz")).match(IDS))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "content",
    [
        {"boxes": PIXELS, "indexes": IDS},
        {"boxes": PIXELS, "indexes": np.array([12, 23])},  # ids as numbers
        {"boxes": as_object_array(PIXELS), "ids": as_object_array(IDS), "scores": [np.zeros(2), np.zeros(1)]},
        dict(zip(IDS, PIXELS, strict=True)),
        PIXELS,  # no ids: in the order of the data
    ],
    ids=["detectron", "numbers", "arrays", "dict", "list"],
)
def test_pickles(tmp_path, content, protocol):
    check_boxes(ReadyMade(pickled(content, tmp_path / "a.pkl", protocol)).match(IDS))


def test_scores_of_a_pickle(tmp_path):
    content = {"boxes": PIXELS, "indexes": IDS, "scores": [np.array([0.5, 0.25]), np.array([[1.0]])]}
    found = ReadyMade(pickled(content, tmp_path / "a.pkl")).match(IDS)
    check_boxes(found)
    assert found[0][:, 4].tolist() == [0.5, 0.25] and found[1][:, 4].tolist() == [1]


def test_a_fifth_column_is_a_score(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([[0, 0, 5, 5, 0.25]]))
    assert ReadyMade(path).match(["a"])[0].tolist() == [[0, 0, 5, 5, 0.25]]


@pytest.mark.parametrize(
    ("way", "expected"),
    [("xyxy", [1, 2, 11, 12]), ("xyxy0", [1, 2, 12, 13]), ("xyxy1", [0, 1, 11, 12]), ("yxyx1", [1, 0, 12, 11])],
)
def test_ways_to_write_a_box(tmp_path, way, expected):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([[1, 2, 11, 12]]))
    assert ReadyMade(path, way).match(["a"])[0][0, :4].tolist() == expected


def test_ids_match_by_file_name(tmp_path):
    """A file that knows 000012 serves an image called photos/000012, and one that knows JPEGImages/000012.jpg serves 000012."""
    check_boxes(ReadyMade(write_mat(tmp_path / "a.mat")).match([f"photos/{id}" for id in IDS]))
    check_boxes(ReadyMade(write_mat(tmp_path / "a.mat", [f"JPEGImages/{id}.jpg" for id in IDS])).match(IDS))


def test_a_file_name_must_be_one_of_a_kind(tmp_path):
    """cat/001 does not serve for dog/001, nor test/001 for train/001."""
    file = ReadyMade(write_npz(tmp_path / "a.npz", ["cat/001", "cat/002"]))
    with pytest.raises(MelmError, match="no boxes for image dog/001"):
        file.match(["cat/001", "dog/001"])
    with pytest.raises(MelmError, match="no boxes for image train/001"):
        file.match(["train/001"])
    with pytest.raises(MelmError, match="no boxes for image a/1"):
        ReadyMade(write_npz(tmp_path / "b.npz", ["1", "2"])).match(["a/1", "b/1"])


def test_whole_ids_come_before_file_names(tmp_path):
    check_boxes(ReadyMade(write_npz(tmp_path / "a.npz", ["a/1", "b/1"])).match(["a/1", "b/1"]))
    with pytest.raises(MelmError, match="no boxes for image 1"):  # two candidates: neither
        ReadyMade(write_npz(tmp_path / "a.npz", ["a/1", "b/1"])).match(["1"])


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(MelmError, match=r"no boxes for image 000099\. Its first ids are 000012, 000023"):
        ReadyMade(write_mat(tmp_path / "a.mat")).match([*IDS, "000099"])


def test_a_list_without_ids_must_have_the_right_length(tmp_path):
    with pytest.raises(MelmError, match="boxes for 2 images where the data has 3"):
        ReadyMade(pickled(PIXELS, tmp_path / "a.pkl")).match([*IDS, "x"])


def test_boxes_of_another_size_are_refused():
    check_fits(np.array([[0, 0, 101, 50.0, 0]]), 100, 50, "image a")  # one pixel over the edge: another way to count
    with pytest.raises(
        MelmError, match=r"image a: 1 of 2 boxes do not fit its 100 x 50 pixels, the first is x 0 to 50, y 0 to 80"
    ):
        check_fits(np.array([[0, 0, 9, 9.0, 0], [0, 0, 50, 80, 0]]), 100, 50, "image a")
    with pytest.raises(MelmError, match="1 of 1 boxes do not fit"):
        check_fits(np.array([[9.0, 0, 3, 9, 0]]), 100, 50, "image a")


class Wicked:
    def __reduce__(self):
        return os.system, ("touch wicked",)


class WickedCodec:
    def __reduce__(self):
        import codecs

        return codecs.encode, ("x", "zlib")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Wicked(), r"refused: the file wants (posix|nt)\.system"),
        ({"boxes": [Wicked()], "indexes": ["a"]}, "refused"),
        (as_object_array([Wicked()]), "refused"),
        (WickedCodec(), "refused"),
        (np.load, "refused: the file wants numpy"),
        (Path("a"), "refused: the file wants pathlib"),
        ({"boxes": 5}, "should be lists"),
        ({"boxes": PIXELS, "indexes": 3}, "should be lists"),
        ({"boxes": PIXELS, "indexes": IDS, "scores": [np.zeros(1), np.zeros(1)]}, "do not fit together"),
    ],
)
def test_nothing_but_arrays_is_unpickled(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MelmError, match=words):
        ReadyMade(pickled(content, tmp_path / "a.pkl"))
    assert not (tmp_path / "wicked").exists()


@pytest.mark.parametrize("name", ["a.mat", "a.npz", "a.pkl"])
def test_broken_files(tmp_path, name):
    path = tmp_path / name
    whole = {"a.mat": write_mat, "a.npz": write_npz, "a.pkl": lambda p: pickled(PIXELS, p)}[name](path).read_bytes()
    for data in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-3]):
        path.write_bytes(data)
        with pytest.raises(MelmError, match=name):
            ReadyMade(path).match(IDS)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_as_a_pickle(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.pkl"
    path.write_bytes(data)
    try:
        ReadyMade(path).match(IDS)
    except MelmError as error:
        assert "any.pkl" in str(error)


def test_other_complaints(tmp_path):
    with pytest.raises(MelmError, match=r"ends in \.mat, \.npz or \.pkl"):
        ReadyMade(tmp_path / "a.txt")
    with pytest.raises(MelmError, match=r"a\.mat: cannot be read"):
        ReadyMade(tmp_path / "a.mat")
    with pytest.raises(UsageError, match="Did you mean 'yxyx1'"):
        ReadyMade(write_npz(tmp_path / "b.npz"), "yxyx")
    with pytest.raises(MelmError, match="2 images, but boxes for 1"):
        ReadyMade(pickled({"boxes": PIXELS[:1], "ids": IDS}, tmp_path / "c.pkl"))
    with pytest.raises(MelmError, match=r"image 000012 have shape \(3,\)"):
        ReadyMade(pickled([np.zeros(3), np.zeros(3)], tmp_path / "d.pkl")).match(IDS)
    with pytest.raises(MelmError, match="not finite"):
        ReadyMade(pickled([np.full((1, 4), np.nan)], tmp_path / "e.pkl")).match(["a"])
    with pytest.raises(MelmError, match="no variable `boxes`"):
        scipy.io.savemat(tmp_path / "f.mat", {"x": 1})
        ReadyMade(tmp_path / "f.mat")


def test_the_unpickler_knows_numpy_1_and_2():
    for package in (b"numpy.core", b"numpy._core"):
        data = pickle.dumps(np.arange(3), 2).replace(b"numpy._core", package)
        import io

        assert NumpyUnpickler(io.BytesIO(data)).load().tolist() == [0, 1, 2]


def test_voc2007(voc2007):
    """The proposals that lie beside the real data: every image has its boxes, and they fit it."""
    from melm.data import Source, read_tags
    from melm.data.images import image_info

    images = read_tags(Source(voc2007, split="val"))
    found = ReadyMade(voc2007 / "proposals" / "voc_2007_trainval.mat").match([image.id for image in images])
    assert len(found) == len(images) == 2508
    for image, boxes in list(zip(images, found, strict=True))[::250]:
        info = image_info(image.path)
        check_fits(boxes, info.width, info.height, image.id)
        assert boxes[:, 2].max() == info.width and boxes[:, 3].max() == info.height
