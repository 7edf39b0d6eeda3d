"""Labels for other tools: each format's conventions, odd names, images beside them, and whole files or none."""

import csv
import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from labelled_images import NAMES, SIZE, images_with_labels, labelled, tree

from melm.detect.detections import Detections
from melm.detect.labels import LabelledImage
from melm.errors import MelmError, UsageError
from melm.export.image_files import flat_name
from melm.export.label_coco import annotations_of
from melm.export.label_cvat import cvat_image
from melm.export.label_studio import labelling_config, local_url, task_of
from melm.export.label_voc import pixels, voc_xml
from melm.export.label_yolo import data_yaml, split_of, yolo_lines
from melm.export.labels import FORMATS, ExportSettings, export_labels, write_exports

ALL = sorted(FORMATS)
PLACING = sorted(set(ALL) - {"csv", "labelstudio"})


@pytest.fixture
def root(tmp_path):
    return tmp_path / "photos"


@pytest.fixture
def images(root):
    return images_with_labels(root)


def export(labels, out, format, **options):
    return export_labels(iter(labels), NAMES, out, format, ExportSettings(**options))


# What each format looks like


def test_table(images, root, tmp_path):
    path = export(images, tmp_path / "out", "csv")
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["image", "file", "class", "confidence", "x1", "y1", "x2", "y2", "best", "doubt"]
    assert rows[:2] == [
        ["b/one", str(root / "b/one.png"), "cat", "0.2", "0.0", "0.0", "10.0", "20.0", "true", "0.8"],
        ["b/one", str(root / "b/one.png"), "猫 科", "0.9", "12.25", "3.5", "48.3", "9.0", "true", "0.8"],
    ]
    assert [row[8] for row in rows if row[0] == "été & 猫"] == ["true", "false", "true"]
    assert len(rows) == 7 and rows[2][2] == NAMES[1]
    with export(images, tmp_path / "named", "csv", image_root=root).open(newline="", encoding="utf-8") as file:
        assert [row[1] for row in csv.reader(file)][1] == "b/one.png"


def test_coco(images, tmp_path):
    coco = json.loads(export(images, tmp_path / "out", "coco").read_bytes())
    assert [c["id"] for c in coco["categories"]] == [1, 2, 3, 4, 5] and [c["name"] for c in coco["categories"]] == [
        *NAMES
    ]
    assert [i["id"] for i in coco["images"]] == [1, 2, 3, 4, 5]
    assert coco["images"][0] == {"id": 1, "file_name": "b/one.png", "width": 60, "height": 40}
    assert [i["file_name"] for i in coco["images"]][2:] == ["my photo (1).JPG", "été & 猫.png", "b/nothing.png"]
    assert [a["id"] for a in coco["annotations"]] == [1, 2, 3, 4, 5, 6, 7]
    second = {"id": 2, "image_id": 1, "category_id": 3, "bbox": [12.25, 3.5, 36.05, 5.5], "area": 198.275}
    assert coco["annotations"][1] == {**second, "iscrowd": 0, "segmentation": [], "score": 0.9}


def test_voc(images, tmp_path):
    out = tmp_path / "out"
    assert export(images, out, "voc", images="link") == out
    names = (out / "ImageSets/Main/trainval.txt").read_text().splitlines()
    assert names == [flat_name(image.id) for image in images] and len(set(names)) == 5
    assert sorted(p.stem for p in (out / "JPEGImages").iterdir()) == sorted(names)
    xml = ElementTree.parse(out / f"Annotations/{names[0]}.xml").getroot()
    assert xml.findtext("filename") == f"{names[0]}.png" and xml.findtext("size/width") == "60"
    assert [o.findtext("name") for o in xml.iter("object")] == ["cat", "猫 科"]
    assert [float(o.findtext("score")) for o in xml.iter("object")] == [0.2, 0.9]
    corners = [[o.findtext(f"bndbox/{k}") for k in ("xmin", "ymin", "xmax", "ymax")] for o in xml.iter("object")]
    assert corners == [["1", "1", "10", "20"], ["13", "5", "48", "9"]]
    assert not list(ElementTree.parse(out / f"Annotations/{names[4]}.xml").iter("object"))


@pytest.mark.parametrize(
    "box, expected",
    [
        ([0, 0, 10, 20], [1, 1, 10, 20]),
        ([0.4, 0.5, 9.4, 9.5], [1, 2, 9, 10]),
        ([59.6, 39.7, 60, 40], [60, 40, 60, 40]),  # thinner than a pixel, at the end
        ([5.2, 5.2, 5.3, 5.3], [6, 6, 6, 6]),
        ([-3, -0.2, 70, 40.4], [1, 1, 60, 40]),
        ([0, 0, 0, 0], [1, 1, 1, 1]),
    ],
)
def test_voc_counts_pixels_from_one(box, expected):
    assert pixels(labelled("a", "a.jpg", [box], [1], [0]).found).tolist() == [expected]


def test_yolo(images, tmp_path):
    out = tmp_path / "out"
    path = export(images, out, "yolo", val_share=0.5)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert config["names"] == dict(enumerate(NAMES)) and config["path"] == str(out)
    assert (config["train"], config["val"]) == ("images/train", "images/val")
    for image in images:
        split, name = split_of(image.id, 0.5), flat_name(image.id)
        text = (out / f"labels/{split}/{name}.txt").read_text()
        assert len(text.splitlines()) == len(image.found)
        assert (out / f"images/{split}/{name}{image.path.suffix}").samefile(image.path)
    assert yolo_lines(images[0].found).splitlines()[0] == "0 0.08333333 0.25000000 0.16666667 0.50000000"
    assert [line.split()[5:] for line in yolo_lines(images[0].found, True).splitlines()] == [["0.2"], ["0.9"]]


@pytest.mark.parametrize("share", [0, 1e-9])
def test_yolo_without_val_names_train_for_it(images, tmp_path, share):
    config = yaml.safe_load(export(images, tmp_path / "out", "yolo", val_share=share).read_text(encoding="utf-8"))
    assert (config["train"], config["val"]) == ("images/train", "images/train")
    assert yaml.safe_load(data_yaml(tmp_path, NAMES, ["val"]))["train"] == "images/val"


def test_yolo_splits_by_id_alone():
    ids = [f"folder/{i}" for i in range(2000)]
    val = [id for id in ids if split_of(id, 0.2) == "val"]
    assert 320 < len(val) < 480
    assert set(val) <= {id for id in ids if split_of(id, 0.3) == "val"}  # a larger share keeps those that were in it
    assert split_of("folder/0", 0.2) == "train" and split_of("folder/7", 0.2) == "val"  # on every machine


def test_label_studio(images, root, tmp_path):
    path = export(images, tmp_path / "out", "labelstudio", image_root=tmp_path, model_version="melm birds")
    tasks = json.loads(path.read_bytes())
    assert [task["data"]["image_id"] for task in tasks] == [image.id for image in images]
    assert tasks[0]["data"]["doubt"] == 0.8 and tasks[0]["data"]["tags"] == ["cat", "猫 科"]
    for task, image in zip(tasks, images, strict=True):
        url = urlsplit(task["data"]["image"])
        assert url.path == "/data/local-files/" and tmp_path / parse_qs(url.query)["d"][0] == image.path
        (prediction,) = task["predictions"]
        assert prediction["model_version"] == "melm birds" and len(prediction["result"]) == len(image.found)
        assert prediction["score"] == pytest.approx(1 - image.doubt, abs=1e-6)
    first = tasks[0]["predictions"][0]["result"][0]
    about = {"id": "box1", "from_name": "label", "to_name": "image", "type": "rectanglelabels", "score": 0.2}
    about |= {"original_width": 60, "original_height": 40, "image_rotation": 0}
    value = {"x": 0, "y": 0, "width": pytest.approx(100 / 6, abs=1e-5), "height": 50, "rotation": 0}
    assert first == {**about, "value": {**value, "rectanglelabels": ["cat"]}}
    config = ElementTree.parse(tmp_path / "out/labelling-config.xml").getroot()
    assert [label.get("value") for label in config.iter("Label")] == [*NAMES]
    assert config.find("Image").attrib["value"] == "$image"


def test_label_studio_has_the_root_of_the_disk_if_none_is_named(tmp_path):
    assert (
        local_url(Path("/data/my photos/a&b #1.jpg"), None) == "/data/local-files/?d=data/my%20photos/a%26b%20%231.jpg"
    )
    with pytest.raises(UsageError, match="folder above"):  # Label Studio has no storage for its root itself
        local_url(tmp_path / "a.jpg", tmp_path)


def test_cvat(images, tmp_path):
    xml = ElementTree.parse(export(images, tmp_path / "out", "cvat")).getroot()
    assert xml.findtext("version") == "1.1"
    assert [label.findtext("name") for label in xml.iterfind("meta/task/labels/label")] == [*NAMES]
    assert xml.findtext("meta/task/labels/label/attributes/attribute/name") == "confidence"
    shown = [(image.get("id"), image.get("name"), image.get("width")) for image in xml.iterfind("image")]
    assert shown[:3] == [("0", "b/one.png", "60"), ("1", "a/one.jpg", "60"), ("2", "my photo (1).JPG", "60")]
    box = xml.find("image/box[2]")
    corners = {"xtl": "12.25", "ytl": "3.5", "xbr": "48.3", "ybr": "9.0"}
    assert box.attrib == {"label": "猫 科", "source": "auto", "occluded": "0", "z_order": "0", **corners}
    assert (box.find("attribute").get("name"), box.findtext("attribute")) == ("confidence", "0.9")
    labels = json.loads((tmp_path / "out/labels.json").read_bytes())
    assert [label["name"] for label in labels] == [*NAMES] and labels[0]["attributes"][0]["name"] == "confidence"


@pytest.mark.parametrize("format", ALL)
def test_no_image_at_all(tmp_path, format):
    path = export([], tmp_path / "out", format)
    assert path.exists()
    if path.suffix == ".json":
        json.loads(path.read_bytes())
    if path.suffix == ".xml":
        ElementTree.parse(path)


# Any boxes and names

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
XML_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=8)
BOXES = hnp.arrays(np.float32, (4, 4), elements=st.floats(-2, 210, width=32)).map(
    lambda a: np.sort(a.reshape(4, 2, 2), 1)
)


@st.composite
def any_image(draw, words=XML_WORDS):
    names = tuple(draw(st.lists(words, min_size=1, max_size=3, unique=True)))
    boxes, count = draw(BOXES).reshape(-1, 4), draw(st.integers(0, 4))
    classes = draw(st.lists(st.integers(0, len(names) - 1), min_size=count, max_size=count))
    scores = draw(st.lists(st.floats(0, 1, width=32), min_size=count, max_size=count))
    return labelled("id", "id.jpg", boxes[:count], scores, classes, names=names, size=(200, 150))


def inside(found):
    return np.clip(found.boxes.astype(np.float64), 0, [found.width, found.height] * 2)


FEW = settings(max_examples=40)


@FEW
@given(any_image())
def test_any_labels_as_cvat(image):
    node = ElementTree.fromstring(cvat_image(0, "a\t'\".jpg", image.found))
    assert node.get("name") == "a\t'\".jpg"
    assert [box.get("label") for box in node] == image.found.class_names()
    corners = [[float(box.get(k)) for k in ("xtl", "ytl", "xbr", "ybr")] for box in node]
    np.testing.assert_allclose(np.reshape(corners, (-1, 4)), inside(image.found), atol=1e-4)
    confidences = [float(box.findtext("attribute")) for box in node]
    assert np.array(confidences, np.float32).tolist() == image.found.scores.tolist()


@FEW
@given(any_image())
def test_any_labels_as_voc(image):
    found = image.found
    node = ElementTree.fromstring(voc_xml("a.jpg", found))
    assert [thing.findtext("name") for thing in node.iter("object")] == found.class_names()
    corners = [
        [int(thing.findtext(f"bndbox/{k}")) for k in ("xmin", "ymin", "xmax", "ymax")] for thing in node.iter("object")
    ]
    corners = np.reshape(corners, (-1, 4))
    assert (corners >= 1).all() and (corners <= [200, 150, 200, 150]).all() and (corners[:, :2] <= corners[:, 2:]).all()
    np.testing.assert_allclose(corners - [1, 1, 0, 0], inside(found), atol=1.0)
    wide = (inside(found)[:, 2:] - inside(found)[:, :2] >= 1).all(1)
    np.testing.assert_allclose((corners - [1, 1, 0, 0])[wide], inside(found)[wide], atol=0.5001)


@FEW
@given(any_image())
def test_any_labels_as_yolo(image):
    rows = np.array([line.split() for line in yolo_lines(image.found).splitlines()], float).reshape(-1, 5)
    assert rows[:, 0].tolist() == image.found.classes.tolist()
    centre, side = rows[:, 1:3], rows[:, 3:]
    corners = np.hstack([centre - side / 2, centre + side / 2])
    assert (corners > -1e-7).all() and (corners < 1 + 1e-7).all() and (rows >= 0).all()
    np.testing.assert_allclose(corners * [200, 150, 200, 150], inside(image.found), atol=1e-4)
    assert yaml.safe_load(data_yaml(Path("/x"), image.found.names, ["train"]))["names"] == dict(
        enumerate(image.found.names)
    )


@FEW
@given(any_image(WORDS))
def test_any_labels_as_coco(image):
    entries = json.loads(json.dumps(annotations_of(image, 7, 3)))
    assert [entry["id"] for entry in entries] == list(range(3, 3 + len(image.found)))
    assert [entry["category_id"] - 1 for entry in entries] == image.found.classes.tolist()
    boxes = np.array([entry["bbox"] for entry in entries], float).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    np.testing.assert_allclose(boxes, image.found.boxes, atol=1e-4)
    assert [np.float32(entry["score"]) for entry in entries] == image.found.scores.tolist()


@FEW
@given(any_image())
def test_any_labels_for_label_studio(image):
    task = json.loads(json.dumps(task_of(image, "/x", "melm")))
    values = [result["value"] for result in task["predictions"][0]["result"]]
    assert [value["rectanglelabels"] for value in values] == [[name] for name in image.found.class_names()]
    sides = np.array([[v["x"], v["y"], v["width"], v["height"]] for v in values], float).reshape(-1, 4)
    assert (sides >= 0).all() and (sides[:, :2] + sides[:, 2:] <= 100 + 1e-9).all()
    corners = np.hstack([sides[:, :2], sides[:, :2] + sides[:, 2:]]) / 100 * [200, 150, 200, 150]
    np.testing.assert_allclose(corners, inside(image.found), atol=1e-4)
    config = ElementTree.fromstring(labelling_config(image.found.names))
    assert tuple(label.get("value") for label in config.iter("Label")) == image.found.names


@pytest.mark.parametrize("format", ["voc", "labelstudio", "cvat"])
@pytest.mark.parametrize("name", ["a\0", "a\x1b", "\udcff", "\ufffe"])
def test_names_that_xml_cannot_hold_are_refused(tmp_path, format, name):
    with pytest.raises(MelmError, match="XML cannot hold") as error:
        export_labels([], ("cat", name), tmp_path, format)
    assert repr(name) in str(error.value)
    assert not any(path.suffix in (".xml", ".json", ".txt") for path in tmp_path.rglob("[!.]*"))


@pytest.mark.parametrize("format", ["coco", "yolo", "csv"])
@pytest.mark.parametrize("name", ["a\x1b", "\udcff", "a\r\nb"])
def test_other_formats_hold_them(tmp_path, root, format, name):
    image = labelled("a", root / "a.jpg", [[1, 1, 9, 9]], [0.5], [1], names=("cat", name))
    root.mkdir()
    image.path.write_bytes(b"")
    path = export_labels([image], ("cat", name), tmp_path / "out", format)
    if format == "coco":
        assert json.loads(path.read_bytes())["categories"][1]["name"] == name
    elif format == "yolo":
        assert yaml.safe_load(path.read_bytes())["names"][1] == name
    else:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            assert list(csv.reader(file))[1][2] == name


# Names of files


@given(st.text(max_size=40), st.text(max_size=40))
@example("a/b", "a_b")
@example("a", "A")
@example("a.jpg", "a")
@example("x" * 300, "x" * 301)
@example(".", "..")
@example("\udcff", "_")
def test_flat_names(one, other):
    for id in (one, other):
        name = flat_name(id)
        assert len(name.encode()) < 200 and name.split() == [name] and Path(name).name == name
        assert name[0] not in "./" and name.splitlines() == [name]
        assert not name.lower().endswith((".jpg", ".png"))
    assert (flat_name(one) == flat_name(other)) == (one == other)


def test_plain_ids_keep_their_names():
    assert [flat_name(id) for id in ("2007_000027", "IMG-1.2", "猫")] == ["2007_000027", "IMG-1.2", "猫"]


# Images beside the labels


@pytest.mark.parametrize("how", ["link", "copy"])
@pytest.mark.parametrize("format", PLACING)
def test_images_are_placed_and_the_call_can_be_repeated(images, root, tmp_path, format, how):
    before = tree(root)
    export(images, tmp_path / "out", format, images=how)
    written = tree(tmp_path / "out")
    placed = [path for path in (tmp_path / "out").rglob("*.*") if path.suffix.lower() in (".jpg", ".png")]
    assert len(placed) == len(images) and all(path.is_symlink() == (how == "link") for path in placed)
    assert sorted(path.read_bytes() for path in placed) == sorted(image.path.read_bytes() for image in images)
    export(images, tmp_path / "out", format, images=how)
    assert tree(tmp_path / "out") == written and tree(root) == before
    assert not list(tmp_path.rglob("*.tmp"))


def test_links_stand_when_the_labels_move(images, tmp_path):
    export(images, tmp_path / "out", "coco", images="link")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert all(path.is_file() for path in (tmp_path / "elsewhere/images").iterdir())


def test_relative_paths_make_links_that_lead_somewhere(images, root, tmp_path, monkeypatch):
    monkeypatch.chdir(root)
    image = labelled("b/one", "b/one.png", [[0, 0, 9, 9]], [1], [0])
    export([image], Path("../out"), "coco", images="link")
    assert (tmp_path / "out/images" / f"{flat_name('b/one')}.png").samefile(root / "b/one.png")


def test_links_become_copies_when_copies_are_asked_for(images, tmp_path):
    export(images, tmp_path / "out", "yolo", images="link")
    export(images, tmp_path / "out", "yolo", images="copy")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    export(images, tmp_path / "out", "yolo", images="link")  # a copy is as good
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_where_there_are_no_links_there_are_copies(images, tmp_path, monkeypatch, code):
    def no(*arguments, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "symlink", no)
    export(images, tmp_path / "out", "yolo")
    placed = [*(tmp_path / "out/images").rglob("*.*")]
    assert len(placed) == 5 and not any(path.is_symlink() for path in placed)
    export(images, tmp_path / "out", "yolo")


def test_another_fault_is_told(images, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(MelmError, match=r"one\.png.*No space left"):
        export(images, tmp_path / "out", "yolo")
    assert not (tmp_path / "out/data.yaml").exists()


@pytest.mark.parametrize("how", ["link", "copy"])
def test_a_different_file_is_never_written_over(images, tmp_path, how):
    export(images, tmp_path / "out", "coco", images=how)
    place = tmp_path / "out/images" / f"{flat_name('a/one')}.jpg"
    place.unlink()
    place.write_bytes(b"mine")
    with pytest.raises(MelmError, match="is there already and is not the image"):
        export(images, tmp_path / "out", "coco", images=how)
    assert place.read_bytes() == b"mine"
    place.unlink()
    place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(MelmError, match="is there already and is not the image"):
        export(images, tmp_path / "out", "coco", images=how)


def test_an_image_that_is_gone(images, tmp_path):
    images[1].path.unlink()
    with pytest.raises(MelmError, match=r"a/one\.jpg: there is no such file"):
        export(images, tmp_path / "out", "yolo")


def test_yolo_needs_images(images, tmp_path):
    with pytest.raises(UsageError, match="yolo needs its images"):
        export(images, tmp_path / "out", "yolo", images="none")


@pytest.mark.parametrize("format", ["csv", "coco", "voc", "labelstudio", "cvat"])
def test_an_image_outside_the_root_is_refused(images, tmp_path, format):
    with pytest.raises(UsageError) as error:
        export(images, tmp_path / "out", format, image_root=tmp_path / "photos/a")
    assert "photos/b/one.png" in str(error.value) and str(tmp_path / "photos/a") in str(error.value)


def test_a_root_may_be_named_by_a_link(images, root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    coco = json.loads(export(images, tmp_path / "out", "coco", image_root=tmp_path / "link").read_bytes())
    assert coco["images"][0]["file_name"] == "b/one.png"


@pytest.mark.parametrize("options", [{"val_share": 1}, {"val_share": -0.1}, {"images": "symlink"}])
def test_wrong_settings(options):
    with pytest.raises(UsageError):
        ExportSettings(**options)


# The folder


def test_a_folder_with_other_files_is_refused(images, root, tmp_path):
    with pytest.raises(UsageError, match="not of an export"):
        export(images, root, "voc")
    with pytest.raises(UsageError, match="not of an export"):
        export_labels(images, NAMES, root, "voc", overwrite=True)
    assert all(image.path.is_file() for image in images)
    export(images, tmp_path / "out", "csv")
    with pytest.raises(UsageError, match="is for labels as csv"):
        export(images, tmp_path / "out", "coco")


@pytest.mark.parametrize("format", ["voc", "yolo"])
def test_what_is_left_of_other_labels_does_not_go_unnoticed(images, root, tmp_path, format):
    export(images, tmp_path / "out", format)
    with pytest.raises(UsageError, match="1 images more"):
        export(images[1:], tmp_path / "out", format)
    export_labels(images[1:], NAMES, tmp_path / "out", format, overwrite=True)
    export(images[1:], tmp_path / "anew", format)
    strip = {"data.yaml"}  # which names the folder
    assert tree(tmp_path / "out").keys() == tree(tmp_path / "anew").keys()
    assert all(tree(tmp_path / "out")[k] == v for k, v in tree(tmp_path / "anew").items() if k not in strip)
    assert all(image.path.is_file() for image in images)


def test_what_readers_leave_there_does_no_harm(images, tmp_path):
    export(images, tmp_path / "out", "yolo")
    (tmp_path / "out/labels/train.cache").write_bytes(b"the labels as they were")
    (tmp_path / "out/images/train/a.npy").write_bytes(b"pixels")
    export(images, tmp_path / "out", "yolo")
    assert not (tmp_path / "out/labels/train.cache").exists()


def test_other_shares_of_yolo_do_not_leave_an_image_in_both(images, tmp_path):
    export(images, tmp_path / "out", "yolo", val_share=0)
    with pytest.raises(UsageError, match="of other settings"):
        export(images, tmp_path / "out", "yolo", val_share=0.7)


@pytest.mark.parametrize("format", ["voc", "yolo"])
def test_one_id_twice(images, tmp_path, format):
    with pytest.raises(UsageError, match="two have one id"):
        export([*images, images[0]], tmp_path / "out", format)


@pytest.mark.parametrize("format", ALL)
def test_a_place_that_cannot_be(images, tmp_path, format):
    (tmp_path / "file").write_text("")
    with pytest.raises(MelmError, match="file"):
        export(images, tmp_path / "file", format)
    with pytest.raises(MelmError, match="file"):
        export(images, tmp_path / "file/below", format)


@pytest.mark.parametrize("format", ALL)
def test_a_failure_in_the_middle_leaves_what_was_there(images, tmp_path, format):
    def broken():
        yield from images[:3]
        raise MelmError("the next image")

    with pytest.raises(MelmError, match="the next image"):
        export(broken(), tmp_path / "out", format)
    assert not list(tmp_path.rglob("*.tmp"))
    path = export(images, tmp_path / "out", format)
    before = tree(tmp_path / "out")
    with pytest.raises(MelmError, match="the next image"):
        export(broken(), tmp_path / "out", format)
    assert tree(tmp_path / "out") == before and path.exists() and not list(tmp_path.rglob("*.tmp"))


def test_unknown_format_and_other_classes(images, tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'coco'"):
        export(images, tmp_path / "out", "cocoo")
    with pytest.raises(ValueError, match="labels of the classes"):
        export_labels(images, ("cat",), tmp_path / "out", "csv")


def test_exports_of_a_labels_file(images, tmp_path):
    from melm.detect.labels import LABELS, Labels
    from melm.detect.lines import line_of

    with (tmp_path / LABELS).open("wb") as file:
        for image in reversed(images):
            record = json.loads(line_of(image.id, str(image.path), image.found))
            record |= {"tags": image.tags, "best": image.best.tolist()}
            file.write(json.dumps(record).encode() + b"\n")
    (tmp_path / "labels.settings.json").write_text(json.dumps({"classes": NAMES}))
    paths = write_exports(Labels(tmp_path), [("csv", ExportSettings()), ("labelstudio", ExportSettings())])
    assert paths == [tmp_path / "csv/labels.csv", tmp_path / "labelstudio/tasks.json"]
    tasks = json.loads(paths[1].read_bytes())
    assert [task["data"]["image_id"] for task in tasks] == [image.id for image in Labels(tmp_path)]
    doubts = [task["data"]["doubt"] for task in tasks]
    assert doubts == sorted(doubts, reverse=True)


# Kills, and memory


def many(root, count, boxes=3):
    """So many small records of one image."""
    found = Detections(
        np.array([[1, 2, 30, 20]] * boxes, np.float32),
        np.linspace(1, 0.5, boxes, dtype=np.float32),
        np.arange(boxes) % len(NAMES),
        NAMES,
        *SIZE,
    )
    best = np.ones(boxes, bool)
    for i in range(count):
        yield LabelledImage(f"folder {i % 10}/{i:06d}", root / "one.jpg", NAMES[:boxes], found, best)


def stops(root, count, reached):
    yield from many(root, count)
    reached.send(True)
    time.sleep(600)


@pytest.mark.parametrize("format", ALL)
def test_killed_in_the_middle_and_run_again(tmp_path, format):
    (tmp_path / "one.jpg").write_bytes(b"jpeg")
    context = multiprocessing.get_context("fork")
    path = export(many(tmp_path, 300), tmp_path / "undisturbed" / "out", format, images="copy")
    whole = tree(tmp_path / "undisturbed")
    for name, content in whole.items():  # some files name their own folder
        whole[name] = content.replace(b"undisturbed", b"killed")
    index = tmp_path / "killed" / path.relative_to(tmp_path / "undisturbed")
    index = index / "ImageSets/Main/trainval.txt" if format == "voc" else index
    for count in (0, 7, 211):
        here, there = context.Pipe(duplex=False)
        arguments = (stops(tmp_path, count, there), tmp_path / "killed" / "out", format)
        process = context.Process(target=export, args=arguments, kwargs={"images": "copy"})
        process.start()
        assert here.poll(60)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        left = tree(tmp_path / "killed")
        assert not index.exists() and all(whole[name] == content for name, content in left.items())
    export(many(tmp_path, 300), tmp_path / "killed" / "out", format, images="copy")
    assert tree(tmp_path / "killed") == whole


@pytest.mark.parametrize("format", ALL)
def test_memory_does_not_grow(tmp_path, format):
    (tmp_path / "one.jpg").write_bytes(b"jpeg")

    def peak(count):
        tracemalloc.start()
        export(many(tmp_path, count), tmp_path / f"{count}", format)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(20)
    assert peak(600) < peak(200) + 60_000


RUN = """
import resource, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {here!r}]
from test_label_formats import export, many
root, format = Path({root!r}), {format!r}
peaks = []
for count in (1_000, {count}):
    export(many(root, count), root / str(count), format)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(*peaks)
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", ALL)
def test_memory_of_very_many_images(tmp_path, format):
    """100,000; of the formats with files for every image 20,000, since so many files take minutes to remove."""
    count = 20_000 if format in ("voc", "yolo") else 100_000
    (tmp_path / "one.jpg").write_bytes(b"jpeg")
    here = Path(__file__).parent
    code = RUN.format(tests=str(here.parent), here=str(here), root=str(tmp_path), format=format, count=count)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, check=True)
    shutil.rmtree(tmp_path)  # not in the process that is timed: so many files may take longer to remove than to write
    few, all_of_them = map(int, ended.stdout.split())
    # Some MB, once and for all: pathlib (Python 3.11) interns every name it parses, and the table of these grows in steps.
    assert all_of_them < few + 8_000, f"{few:,} kB for 1,000 images, {all_of_them:,} kB for {count:,}"
