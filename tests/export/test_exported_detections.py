"""Detections for other tools: their conventions, whole files or none, and no way out of the folder."""

import csv
import json
import resource
import tracemalloc

import numpy as np
import pytest

from melm.detect.detections import Detections, no_detections
from melm.errors import MelmError, UsageError
from melm.export import detections
from melm.export.detections import HELD_LINES, write_coco_results, write_comp4, write_table

NAMES = ("cat", 'dog, "big"', "猫", "never")


def found(boxes, scores, classes):
    arrays = np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(classes, np.intp)
    return Detections(*arrays, NAMES, 100, 80)


RESULTS = [
    ("a", "in/a.jpg", found([[0, 0, 10, 20], [12.1, 3.3, 48.3, 9]], [0.9, 0.1], [0, 2])),
    ("b", "in/b.jpg", no_detections(NAMES, 5, 5)),
    ("c", "in/c.jpg", found([[1, 2, 100, 80]], [1e-7], [1])),
]


def broken():
    yield RESULTS[0]
    raise MelmError("the next image")


def test_table(tmp_path):
    write_table(iter(RESULTS), tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["image", "file", "class", "score", "x1", "y1", "x2", "y2"],
        ["a", "in/a.jpg", "cat", "0.9", "0.0", "0.0", "10.0", "20.0"],
        ["a", "in/a.jpg", "猫", "0.1", "12.1", "3.3", "48.3", "9.0"],
        ["c", "in/c.jpg", 'dog, "big"', "1e-07", "1.0", "2.0", "100.0", "80.0"],
    ]


def test_table_with_a_file_name_that_is_not_utf8(tmp_path):
    write_table([("a", "a\udcff.jpg", RESULTS[0][2])], tmp_path / "t.csv")
    assert b",".join([b"a", b"a\xff.jpg", b"cat"]) in (tmp_path / "t.csv").read_bytes()


def test_coco(tmp_path):
    write_coco_results(iter(RESULTS), tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == [
        {"image_id": "a", "category_id": "cat", "bbox": [0, 0, 10, 20], "score": 0.9},
        {"image_id": "a", "category_id": "猫", "bbox": [12.1, 3.3, 36.2, 5.7], "score": 0.1},
        {"image_id": "c", "category_id": 'dog, "big"', "bbox": [1, 2, 99, 78], "score": 1e-7},
    ]


def test_coco_with_numbers(tmp_path):
    categories = {name: 10 + k for k, name in enumerate(NAMES)}
    write_coco_results(RESULTS, tmp_path / "r.json", {"a": 1, "b": 2, "c": 3}, categories)
    entries = json.loads((tmp_path / "r.json").read_text())
    assert [(e["image_id"], e["category_id"]) for e in entries] == [(1, 10), (1, 12), (3, 11)]
    with pytest.raises(MelmError, match="image 'c'"):
        write_coco_results(RESULTS, tmp_path / "s.json", {"a": 1, "b": 2})
    with pytest.raises(MelmError, match="class '猫'"):
        write_coco_results(RESULTS, tmp_path / "s.json", None, {"cat": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("results", [[], RESULTS[1:2]])  # no image; an image with nothing in it
def test_nothing_found(tmp_path, results):
    write_coco_results(results, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == []
    write_table(results, tmp_path / "t.csv")
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1


def test_comp4(tmp_path):
    folder = tmp_path / "new" / "folder"
    write_comp4(iter(RESULTS), folder, "val", NAMES)
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "comp4_det_val_cat.txt": "a 0.9 1.0 1.0 10.0 20.0\n",
        'comp4_det_val_dog, "big".txt': "c 1e-07 2.0 3.0 100.0 80.0\n",
        "comp4_det_val_猫.txt": "a 0.1 13.1 4.3 48.3 9.0\n",
        "comp4_det_val_never.txt": "",
    }
    write_comp4([], folder, "val", NAMES)  # again: nothing of the first is left
    assert all(p.read_text() == "" for p in folder.iterdir())


def test_comp4_of_many_detections(tmp_path):
    many = found([[0, 0, 10, 20]] * 1000, [0.5] * 1000, [0, 1] * 500)
    count = HELD_LINES * 2 // 1000 + 3
    write_comp4(((str(i), "", many) for i in range(count)), tmp_path, "val", NAMES)
    lines = (tmp_path / "comp4_det_val_cat.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [str(i) for i in range(count) for _ in range(500)]


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/b", "a\\b", "a\0b", "a\nb", ""])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match="class"):
        write_comp4([], tmp_path / "out", "val", ("cat", name))
    with pytest.raises(UsageError, match="split"):
        write_comp4([], tmp_path / "out", name, ("cat",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("id", ["my photo", "", "a\n"])
def test_comp4_refuses_an_id_it_cannot_hold(tmp_path, id):
    with pytest.raises(MelmError, match="id with a blank"):
        write_comp4([(id, "", RESULTS[0][2])], tmp_path, "val", NAMES)
    assert list(tmp_path.iterdir()) == []


WRITERS = [
    lambda results, folder: write_table(results, folder / "r"),
    lambda results, folder: write_coco_results(results, folder / "r"),
    lambda results, folder: write_comp4(results, folder, "val", NAMES),
]


@pytest.mark.parametrize("write", WRITERS)
def test_a_failure_leaves_what_was_there(tmp_path, write):
    write(RESULTS, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(MelmError, match="the next image"):
        write(broken(), tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        with pytest.raises(MelmError, match="cannot be written"):
            write(RESULTS, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("write", WRITERS)
def test_constant_memory(tmp_path, write, monkeypatch):
    monkeypatch.setattr(detections, "HELD_LINES", 2000)
    many = found([[0, 0, 10, 20]] * 100, [0.5] * 100, [0] * 100)

    def peak(images):
        tracemalloc.start()
        write(((str(i), "file.jpg", many) for i in range(images)), tmp_path)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(60) < 1.3 * peak(20) + 50_000


@pytest.mark.parametrize("write", WRITERS)
def test_a_place_that_is_not_there(tmp_path, write):
    (tmp_path / "file").write_text("")
    with pytest.raises(MelmError, match="file"):
        write(RESULTS, tmp_path / "file")


def test_a_table_keeps_a_carriage_return_in_a_name(tmp_path):
    none = Detections(np.array([[0, 0, 1, 1]], np.float32), np.ones(1, np.float32), np.zeros(1, np.intp), ("a",), 9, 9)
    write_table([("x\ry", "x\ry.jpg", none)], tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert [row[:2] for row in csv.reader(file)] == [["image", "file"], ["x\ry", "x\ry.jpg"]]
    assert b"\r\n" not in (tmp_path / "t.csv").read_bytes()
