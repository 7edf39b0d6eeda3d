"""Every format, read from real files."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from conftest import save_scenes
from melm.data import DataError, Source, read_tags
from melm.data.formats import find_format, read
from melm.errors import UsageError
from melm.measure.truth import read_truth
from writers import (
    BOXED,
    WRITERS,
    Picture,
    Thing,
    coco_json,
    map_det,
    save_image,
    voc_xml,
    write_coco,
    write_csv,
    write_folders,
    write_ilsvrc,
    write_labelimg,
    write_text,
    write_voc,
    write_yolo,
    yolo_line,
)

PICTURES = [
    Picture("a.jpg", (Thing("cat", (0, 0, 10, 12)), Thing("big dog", (5, 6, 40, 30))), (40, 30)),
    Picture("b.jpg", (Thing("cat", (3, 4, 5, 6)), Thing("cat", (31, 47, 32, 48))), (32, 48)),
    Picture("c.png", (), (24, 24)),
    Picture("d.jpg", (Thing("big dog", (1, 2, 20, 22), difficult=True), Thing("鳥", (0, 0, 30, 20))), (30, 25)),
]
CLASSES = ("big dog", "cat", "鳥")
KEEPS_DIFFICULT = ("voc", "labelimg", "ilsvrc", "ilsvrc-later")
TWO = [Picture("a.jpg", (Thing("cat"),)), Picture("b.jpg", (Thing("dog"),))]
SPLIT = [*TWO, Picture("c.jpg", (Thing("dog"),), split="val")]
APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        \x00\x02\xff\xfe"  # what macOS leaves as ._name


def look(path, boxes=False, **options):
    return read(Source(path, **options), boxes)


def tags(listing):
    return {entry.path.name: entry.tags for entry in listing.entries}


def found(listing, severity="error"):
    return [problem for problem in listing.problems if problem.severity == severity]


def true_boxes(path, **options):
    """File stem -> [(class, box, difficult)]."""
    truth = read_truth(Source(path, **options))
    return {
        Path(id).name: [
            (truth.classes[k], tuple(box), bool(hard))
            for k, box, hard in zip(image.classes, image.boxes, image.difficult, strict=True)
        ]
        for id, image in truth.images.items()
    }


# Every format


@pytest.mark.parametrize("format", WRITERS)
def test_format_is_found_and_tags_are_read(tmp_path, format):
    root = WRITERS[format](tmp_path, PICTURES)
    options = {"background": "background"} if format == "folders" else {}
    assert find_format(Source(root)) == format.removesuffix("-later")
    data = read_tags(Source(root, **options))
    assert data.classes == CLASSES
    assert not data.problems or format == "folders"
    hard = format in KEEPS_DIFFICULT
    by_file = {image.path.name: image for image in data}
    assert {file: image.tags for file, image in by_file.items()} == {
        "a.jpg": ("big dog", "cat"),
        "b.jpg": ("cat",),
        "c.png": (),
        "d.jpg": ("鳥",) if hard else ("big dog", "鳥"),
    }
    assert {file for file, image in by_file.items() if image.unknown} == ({"d.jpg"} if hard else set())
    assert by_file["d.jpg"].unknown == (("big dog",) if hard else ())
    before = {"yolo": dict.fromkeys("abcd", "images/train/")}.get(format, dict.fromkeys("abcd", ""))
    if format == "folders":
        before = {"a": "big dog/", "b": "cat/", "c": "background/", "d": "big dog/"}
    assert {image.id for image in data} == {f"{folder}{stem}" for stem, folder in before.items()}
    assert all(image.path.is_file() and image.path.is_absolute() for image in data)
    columns = [CLASSES.index("big dog"), CLASSES.index("鳥")]
    row = [image.path.name for image in data].index("d.jpg")
    assert data.tags()[row, columns].tolist() == ([0, 1] if hard else [1, 1])
    assert data.known()[row, columns].tolist() == ([0, 1] if hard else [1, 1])


@pytest.mark.parametrize("format", BOXED)
def test_boxes_are_those_written(tmp_path, format):
    read_back = true_boxes(BOXED[format](tmp_path, PICTURES))
    assert read_back.keys() == {picture.stem for picture in PICTURES}
    for picture in PICTURES:
        got = read_back[picture.stem]
        hard = format in KEEPS_DIFFICULT
        assert [(name, hard_) for name, _, hard_ in got] == [(t.name, t.difficult and hard) for t in picture.things]
        np.testing.assert_allclose(
            np.reshape([box for _, box, _ in got], (-1, 4)),
            np.reshape([t.box for t in picture.things], (-1, 4)),
            atol=1e-5 if format == "yolo" else 0,
        )


@pytest.mark.parametrize("format", ["csv", "folders"])
def test_formats_without_boxes_have_no_truth(tmp_path, format):
    with pytest.raises(DataError, match="no boxes"):
        read_truth(Source(WRITERS[format](tmp_path, TWO)))


@pytest.mark.parametrize("format", WRITERS)
def test_coordinates_are_not_parsed_for_tags(tmp_path, format):
    assert not any(thing.box for entry in look(WRITERS[format](tmp_path, TWO)).entries for thing in entry.objects)


@pytest.mark.parametrize("format", WRITERS)
def test_relative_path_with_parent_folder(tmp_path, monkeypatch, format):
    WRITERS[format](tmp_path / "data", TWO)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    listing = look(Path("../data"))
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}
    assert all(entry.path.is_file() for entry in listing.entries)


@pytest.mark.parametrize("format", WRITERS)
def test_leftovers_of_macos_are_skipped(tmp_path, format):
    root = WRITERS[format](tmp_path, TWO)
    clean = look(root, boxes=True)
    for folder, _, files in list(os.walk(root)):
        for file in files:
            Path(folder, f"._{file}").write_bytes(APPLE_DOUBLE)
            archive = root / "__MACOSX" / Path(folder).relative_to(root) / f"._{file}"
            archive.parent.mkdir(parents=True, exist_ok=True)
            archive.write_bytes(APPLE_DOUBLE)
    assert look(root, boxes=True) == clean


@pytest.mark.parametrize("format", ["voc", "coco", "ilsvrc", "csv"])
def test_relative_images_folder(tmp_path, monkeypatch, format):
    root = WRITERS[format](tmp_path / "data", TWO)
    photos = {"voc": "JPEGImages", "coco": "train", "ilsvrc": "ILSVRC2013_DET_val", "csv": "images"}[format]
    (root / photos).rename(tmp_path / "photos")
    if format == "ilsvrc":
        (root / photos).mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    listing = look(root, images=Path("../photos"))
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ("dog",)} and not listing.problems
    assert all(entry.path.is_file() for entry in listing.entries)


@pytest.mark.parametrize("name", ["old.json", "old.yaml", "old.csv"])
def test_dangling_link_beside_the_data(tmp_path, name):
    root = write_folders(tmp_path, TWO)
    (root / name).symlink_to(tmp_path / "gone")
    assert find_format(Source(root)) == "folders"
    assert tags(look(root)) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}


def test_forced_format(tmp_path):
    write_labelimg(tmp_path / "cat", TWO)  # XML beside images, in one folder below
    assert find_format(Source(tmp_path)) == "labelimg"
    assert tags(look(tmp_path)) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}
    assert tags(look(tmp_path, format="folders")) == {"a.jpg": ("cat",), "b.jpg": ("cat",)}
    with pytest.raises(UsageError, match="Did you mean 'folders'"):
        look(tmp_path, format="folder")
    with pytest.raises(DataError, match="VOC"):
        look(tmp_path, format="voc")


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        look(tmp_path / "none")
    with pytest.raises(DataError, match="no data set that melm knows"):
        look(tmp_path)


@pytest.mark.parametrize("format", ["coco", "csv", "yolo"])
def test_forced_format_of_an_empty_folder(tmp_path, format):
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        look(tmp_path, format=format)


# Splits


@pytest.mark.parametrize("format", ["voc", "labelimg", "coco", "yolo", "csv", "folders"])
def test_split_is_chosen(tmp_path, format):
    root = WRITERS[format](tmp_path, SPLIT)
    listing = look(root)
    assert listing.split == "train" and set(listing.splits) == {"train", "val"}
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}
    assert tags(look(root, split="val")) == {"c.jpg": ("dog",)}
    with pytest.raises(UsageError, match=r"no split 'test'.*train, val"):
        look(root, split="test")


@pytest.mark.parametrize(
    "names, chosen",
    [
        (["test"], "test"),  # the only one
        (["test", "train", "trainval", "val"], "trainval"),
        (["test", "train"], "train"),
        (["test", "val"], None),
    ],
)
def test_default_split(tmp_path, names, chosen):
    root = write_voc(tmp_path, [Picture(f"{name}.jpg", (Thing("cat"),), split=name) for name in names])
    if chosen:
        assert tags(look(root)) == {f"{chosen}.jpg": ("cat",)}
    else:
        with pytest.raises(DataError, match=r"several splits \(test, val\); choose one with --split"):
            look(root)


# --classes and --background


def test_classes_are_kept_in_the_order_given(tmp_path):
    root = write_voc(tmp_path, PICTURES)
    listing = look(root, boxes=True, classes=("鳥", "big dog"))
    assert listing.classes == ("鳥", "big dog")
    assert tags(listing) == {"a.jpg": ("big dog",), "b.jpg": (), "c.png": (), "d.jpg": ("鳥",)}
    assert [entry.unknown for entry in listing.entries] == [(), (), (), ("big dog",)]
    assert {thing.name for entry in listing.entries for thing in entry.objects} == {"鳥", "big dog"}
    assert true_boxes(root, classes=("cat",))["b"][0] == ("cat", (3, 4, 5, 6), False)


def test_background_images_keep_no_tag(tmp_path):
    root = write_folders(tmp_path, PICTURES)
    listing = look(root, background="background")
    assert listing.classes == CLASSES and tags(listing)["c.png"] == ()
    assert look(root).classes == ("background", *CLASSES)


@pytest.mark.parametrize("options", [{"classes": ("Cats",)}, {"background": "cta"}])
def test_unknown_class_is_answered_with_the_closest(tmp_path, options):
    root = write_folders(tmp_path, TWO)
    with pytest.raises(UsageError, match="Did you mean 'cat'"):
        look(root, **options)


# Two images with one id


@pytest.mark.parametrize("format", ["labelimg", "yolo", "coco", "csv", "folders"])
def test_two_images_with_one_id(tmp_path, format):
    root = WRITERS[format](tmp_path, [Picture("a.jpg", (Thing("cat"),)), Picture("a.png", (Thing("cat"),))])
    listing = look(root)
    assert tags(listing) == {"a.jpg": ("cat",)}
    (problem,) = found(listing)
    assert problem.kind == "two images with one id" and problem.file.endswith("a.png")


# PASCAL VOC


def test_voc_zero_in_a_list_is_unknown_whatever_the_xml_says(tmp_path):
    root = write_voc(tmp_path, TWO)
    write_text(root / "ImageSets/Main/dog_train.txt", "a  0\nb  1\n")
    (a, b) = look(root).entries
    assert (a.tags, a.unknown) == (("cat",), ("dog",))
    assert (b.tags, b.unknown) == (("dog",), ())


def test_voc_without_class_lists_reads_xml(tmp_path):
    hard = Picture("h.jpg", (Thing("cat", difficult=True), Thing("dog", difficult=True), Thing("dog")))
    root = write_voc(tmp_path, [hard, *TWO])
    for path in (root / "ImageSets/Main").glob("*_train.txt"):
        path.unlink()
    entry = look(root).entries[0]
    assert (entry.tags, entry.unknown) == (("dog",), ("cat",))


def test_voc_without_image_sets(tmp_path):
    root = write_voc(tmp_path, PICTURES, lists=False)
    assert find_format(Source(root)) == "voc"
    listing = look(root)
    assert listing.split == "all"
    assert [entry.id for entry in listing.entries] == ["a", "b", "c", "d"]
    assert listing.entries[3].unknown == ("big dog",)


@pytest.mark.parametrize("parent", ["VOC2007", "VOCdevkit/VOC2012"])
def test_voc_parent_folder(tmp_path, parent):
    write_voc(tmp_path / parent, TWO)
    assert find_format(Source(tmp_path)) == "voc"
    assert tags(look(tmp_path)) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}


def test_voc_several_years(tmp_path):
    for year in ("VOC2007", "VOC2012"):
        write_voc(tmp_path / year, TWO)
    with pytest.raises(DataError, match="VOC2007, VOC2012"):
        look(tmp_path)
    assert len(look(tmp_path / "VOC2012").entries) == 2


def test_voc_2012_float_coordinates(tmp_path):
    root = write_voc(tmp_path, TWO)
    xml = voc_xml((20, 16), TWO[0].things).replace("<xmin>2</xmin>", "<xmin>2.70000076</xmin>")
    write_text(root / "Annotations/a.xml", xml)
    np.testing.assert_allclose(true_boxes(root)["a"][0][1], (1.70000076, 2, 9, 8))


@pytest.mark.parametrize("line", ["a", "a 2", "a 1 1", "a x"])
def test_voc_bad_line_in_a_list(tmp_path, line):
    root = write_voc(tmp_path, TWO)
    path = write_text(root / "ImageSets/Main/cat_train.txt", f"b -1\n{line}\n")
    with pytest.raises(DataError, match=re.escape(f"{path}, line 2")):
        look(root)


def test_voc_image_missing_from_a_list(tmp_path):
    root = write_voc(tmp_path, TWO)
    path = write_text(root / "ImageSets/Main/cat_train.txt", "a 1\n")
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}.*image b"):
        look(root)


# COCO


def test_coco_crowd_is_a_tag_and_kept_in_the_truth(tmp_path):
    root = write_coco(tmp_path, [Picture("a.jpg", (Thing("cat", (0, 0, 20, 16), crowd=True),)), TWO[1]])
    assert tags(look(root))["a.jpg"] == ("cat",)
    truth = read_truth(Source(root))
    assert truth.images["a"].crowd.tolist() == [True] and truth.images["b"].crowd.tolist() == [False]


def roboflow_coco(root):
    for split, picture in (("train", TWO[0]), ("valid", TWO[1])):
        save_image(root / split / picture.file)
        write_text(root / split / "_annotations.coco.json", json.dumps(coco_json([picture])))
    return root


def test_coco_of_roboflow(tmp_path):
    root = roboflow_coco(tmp_path)
    assert find_format(Source(root)) == "coco"
    assert look(root).splits == ("train", "valid")
    assert tags(look(root)) == {"a.jpg": ("cat",)}
    assert tags(look(root, split="valid")) == {"b.jpg": ("dog",)}
    assert tags(look(root / "valid/_annotations.coco.json")) == {"b.jpg": ("dog",)}


@pytest.mark.parametrize("place", ["", "images", "images/train", "../photos"])
def test_coco_image_folders(tmp_path, place):
    root = tmp_path / "set"
    path = write_text(root / "annotations/instances_train.json", json.dumps(coco_json(TWO)))
    for picture in TWO:
        save_image(root / place / picture.file)
    options = {"images": root / place} if place.startswith("..") else {}
    for source in (root, path):
        listing = look(source, **options)
        assert [entry.id for entry in listing.entries] == ["a", "b"] and not listing.problems
        assert all(entry.path.is_file() for entry in listing.entries)


def test_images_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"--images .*nowhere: there is no such folder"):
        look(write_coco(tmp_path, TWO), images=tmp_path / "nowhere")


def changed_coco(root, change):
    """The set TWO, with its JSON changed by `change`."""
    write_coco(root, TWO)
    path = root / "annotations/instances_train.json"
    coco = json.loads(path.read_text())
    change(coco)
    return write_text(path, json.dumps(coco))


def put(*keys, value):
    def change(coco):
        for key in keys[:-1]:
            coco = coco[key]
        coco[keys[-1]] = value

    return change


def drop(*keys):
    def change(coco):
        for key in keys[:-1]:
            coco = coco[key]
        del coco[keys[-1]]

    return change


@pytest.mark.parametrize(
    "change, kind",
    [
        (put("annotations", 1, "category_id", value=99), "unknown class"),
        (put("annotations", 1, "image_id", value=99), "unknown image"),
        (drop("annotations", 1, "category_id"), "unknown class"),
        (drop("annotations", 1, "image_id"), "unknown image"),
    ],
)
def test_coco_annotation_of_nothing_known(tmp_path, change, kind):
    path = changed_coco(tmp_path, change)
    listing = look(tmp_path)
    (problem,) = found(listing)
    assert problem.kind == kind and problem.file == f"{path}, annotation 2"
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ()}


@pytest.mark.parametrize(
    "change",
    [
        put("categories", 1, "name", value="cat"),  # two of one name
        put("categories", 1, "id", value=10),  # two of one id
        put("images", 1, "id", value=100),
        drop("images"),
        drop("annotations"),
        drop("categories"),
        drop("images", 1, "id"),
        drop("images", 1, "file_name"),
        drop("categories", 1, "id"),
        drop("categories", 1, "name"),
        put("images", value=[1]),
        put("images", value={}),
        put("images", 1, "id", value=[1]),  # cannot be a key
        put("categories", 1, "id", value={}),
        put("categories", 1, "name", value="  "),
        put("categories", 1, "name", value=7),
    ],
)
def test_coco_that_makes_no_sense(tmp_path, change):
    path = changed_coco(tmp_path, change)
    with pytest.raises(DataError, match=re.escape(str(path))):
        look(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        put("annotations", 1, "image_id", value=[1]),
        put("annotations", 1, "category_id", value={}),
        put("images", 1, "file_name", value=""),
        put("images", 1, "file_name", value="."),
    ],
)
def test_coco_value_that_makes_no_sense_is_said(tmp_path, change):
    """As an error of the whole file or as a problem of the row."""
    path = changed_coco(tmp_path, change)
    try:
        (said,) = (problem.file for problem in found(look(tmp_path)))
    except DataError as error:
        said = str(error)
    assert str(path) in said


@pytest.mark.parametrize("box", [None, [1, 2, 3], [1, 2, 3, "4"], [1, 2, 3, float("nan")], [1, 2, 3, 10**400], 5])
def test_coco_box_of_other_than_four_numbers(tmp_path, box):
    path = changed_coco(tmp_path, put("annotations", 1, "bbox", value=box))
    assert tags(look(tmp_path))["b.jpg"] == ("dog",)  # learning does not look at it
    listing = look(tmp_path, boxes=True)
    assert tags(listing)["b.jpg"] == ("dog",)  # nor does a broken box take the tag away
    assert [(p.severity, p.file, p.message[:4]) for p in listing.problems] == [
        ("error", f"{path}, annotation 2", "bbox")
    ]
    truth = read_truth(Source(tmp_path))
    assert [len(image.boxes) for image in truth.images.values()] == [1, 0] and truth.problems == tuple(listing.problems)


@pytest.mark.parametrize("end", [0, 1, 40, -1])
def test_coco_file_cut_off(tmp_path, end):
    write_coco(tmp_path, TWO)
    path = tmp_path / "annotations/instances_train.json"
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(DataError, match=re.escape(str(path))):
        look(tmp_path)


def test_coco_image_outside(tmp_path):
    path = changed_coco(tmp_path, put("images", 1, "file_name", value="../../b.jpg"))
    listing = look(tmp_path)
    assert tags(listing) == {"a.jpg": ("cat",)}
    assert str(path) in found(listing)[0].file


# YOLO


def yolo(root, config, lines="0 0.5 0.5 0.5 0.5\n", image="images/train/a.jpg", label="labels/train/a.txt"):
    save_image(root / image, (20, 16))
    if lines is not None:
        write_text(root / label, lines)
    write_text(root / "data.yaml", config)
    return root


NAMES = "train: images/train\nnames: [cat, dog]\n"


@pytest.mark.parametrize(
    "names",
    [
        "names: [cat, dog]",
        "names:\n- cat\n- dog",
        "names: {0: cat, 1: dog}",
        "names:\n  1: dog\n  0: cat",
        "nc: 2\nnames: [cat, dog]",
    ],
)
def test_yolo_names(tmp_path, names):
    root = yolo(tmp_path, f"train: images/train\n{names}\n", "1 0.5 0.5 0.5 0.5\n")
    listing = look(root)
    assert listing.classes == ("cat", "dog") and tags(listing) == {"a.jpg": ("dog",)}
    assert tags(look(root / "data.yaml")) == tags(listing)


@pytest.mark.parametrize(
    "line, box",
    [
        ("0 0.5 0.5 0.5 0.25", (5, 6, 15, 10)),
        ("0 0.5 0.5 0.5 0.25 0.9", (5, 6, 15, 10)),  # a confidence
        ("0.0\t0.5  0.5 0.5 0.25\r", (5, 6, 15, 10)),
        ("0 0.25 0.375 0.75 0.5 0.5 0.625", (5, 6, 15, 10)),  # a polygon
    ],
)
def test_yolo_lines(tmp_path, line, box):
    root = yolo(tmp_path, NAMES, f"\n{line}\n")
    np.testing.assert_allclose(true_boxes(root)["a"][0][1], box)


@pytest.mark.parametrize("lines", [None, "", "\n  \n"])
def test_yolo_without_labels_has_no_tags(tmp_path, lines):
    listing = look(yolo(tmp_path, NAMES, lines))
    assert tags(listing) == {"a.jpg": ()} and not listing.problems


@pytest.mark.parametrize(
    "line, boxes",
    [
        ("2 0.5 0.5 0.5 0.5", False),
        ("-1 0.5 0.5 0.5 0.5", False),
        ("cat 0.5 0.5 0.5 0.5", False),
        ("0.5 0.5 0.5 0.5 0.5", False),  # no class number
        ("nan 0.5 0.5 0.5 0.5", False),
        ("inf 0.5 0.5 0.5 0.5", False),
        ("0 0.5 0.5 0.5 x", False),
        ("0 0.5 0.5 0.5 nan", True),
        ("0 0.5 0.5 0.5 1e999", True),
        ("0 0.5 0.5", True),
        ("0", True),
        ("0 0.1 0.1 0.2 0.2 0.3 0.3 0.4", True),
    ],
)
def test_yolo_bad_line_names_file_and_line(tmp_path, line, boxes):
    root = yolo(tmp_path, NAMES, f"0 0.5 0.5 0.5 0.5\n{line}\n")
    listing = look(root, boxes=boxes)
    (problem,) = found(listing)
    assert problem.file == str(root / "labels/train/a.txt") and "line 2" in problem.message
    assert not listing.entries


def test_yolo_label_that_is_not_text(tmp_path):
    root = yolo(tmp_path, NAMES)
    (root / "labels/train/a.txt").write_bytes(b"0 0.5 0.5 0.5 0.5\n\xff\n")
    (problem,) = found(look(root))
    assert "line 2" in problem.message and problem.file.endswith("a.txt")


def test_yolo_of_roboflow(tmp_path):
    config = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n"
    yolo(tmp_path, config, image="train/images/a.jpg", label="train/labels/a.txt")
    yolo(tmp_path, config, "1 0.5 0.5 1 1\n", image="valid/images/b.jpg", label="valid/labels/b.txt")
    assert tags(look(tmp_path)) == {"a.jpg": ("cat",)}
    assert tags(look(tmp_path, split="val")) == {"b.jpg": ("dog",)}


@pytest.mark.parametrize("prefix", ["", "./", "{root}/"])
def test_yolo_list_of_images(tmp_path, prefix):
    root = yolo(tmp_path, "train: train.txt\nnames: [cat, dog]\n")
    write_text(root / "train.txt", f"{prefix.format(root=root)}images/train/a.jpg\n\n../../b.jpg\n")
    listing = look(root)
    assert tags(listing) == {"a.jpg": ("cat",)} and listing.entries[0].id == "images/train/a"
    assert found(listing)[0].kind == "path outside the data"


def test_yolo_several_folders_and_path(tmp_path):
    config = "path: sets/one\ntrain: [images/x, images/y]\nnames: [cat, dog]\n"
    yolo(tmp_path / "sets/one", config, image="images/x/a.jpg", label="labels/x/a.txt")
    yolo(tmp_path / "sets/one", config, "1 0.5 0.5 1 1\n", image="images/y/b.jpg", label="labels/y/b.txt")
    path = write_text(tmp_path / "data.yaml", config)
    assert tags(look(path)) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}


def test_yolo_labels_beside_the_images(tmp_path):
    root = yolo(tmp_path, "train: photos\nnames: [cat]\n", image="photos/a.jpg", label="photos/a.txt")
    assert tags(look(root)) == {"a.jpg": ("cat",)}


@pytest.mark.parametrize(
    "config, words",
    [
        ("train: images/train\nnc: 3\nnames: [cat, dog]\n", "nc is 3, but 2 names"),
        ("train: images/train\nnames: [cat, cat]\n", "same name"),
        ("train: images/train\nnames: cat\n", "neither a list nor numbers"),
        ("train: images/train\nnames: {a: cat}\n", "neither a list nor numbers"),
        ("train: images/train\nnames: []\n", "names"),
        ("train: images/none\nnames: [cat]\n", "images/none is neither"),
        ("train: ../..\nnames: [cat]\n", "outside"),
        ("names: [cat]\n", "split"),
        ("names: [cat\n", "YAML"),
        ("names: [cat]\ndate: 2024-13-45\n", "YAML"),  # not a date
        ("names: [cat]\nx: !!bool maybe\n", "YAML"),
        ("names: [cat]\nx: !!python/object:os.system {}\n", "YAML"),
        ("names: " + "[" * 5000, "YAML"),
        (f"path: {'x' * 300}\ntrain: {'y' * 300}\nnames: [cat]\n", "neither"),  # names too long for the disk
    ],
)
def test_yolo_config_that_makes_no_sense(tmp_path, config, words):
    root = yolo(tmp_path, config)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        look(root)
    assert str(root) in str(caught.value)


def test_yolo_list_with_the_folder_itself(tmp_path):
    root = yolo(tmp_path, "train: train.txt\nnames: [cat]\n")
    write_text(root / "train.txt", "images/train/a.jpg\n.\n")
    listing = look(root)
    assert tags(listing) == {"a.jpg": ("cat",)} and found(listing)


# CSV


def table(root, text, name="tags.csv", encoding="utf-8"):
    for file in ("a.jpg", "b.jpg"):
        save_image(root / file)
    return write_text(root / name, text, encoding)


SAME = {  # each says: a.jpg shows a cat and a dog, b.jpg a cat
    "comma": "file,tags\na.jpg,cat|dog\nb.jpg,cat\n",
    "semicolon": "file;tags\na.jpg;cat|dog\nb.jpg;cat\n",
    "semicolon, tags with comma": "file;tags\na.jpg;cat, dog\nb.jpg;cat\n",
    "tab": "file\ttags\na.jpg\tcat|dog\nb.jpg\tcat\n",
    "tab, tags with comma": "file\ttags\na.jpg\tcat,dog\nb.jpg\tcat\n",
    "any order": "note,tags,file\nx,cat|dog,a.jpg\ny,cat,b.jpg\n",
    "other words for the columns": "Image, Label\na.jpg,cat|dog\nb.jpg,cat\n",
    "no header": "a.jpg,cat,dog\nb.jpg,cat\n",
    "no header, one cell of tags": "a.jpg,cat|dog\nb.jpg,cat\n",
    "row per tag": "file,tags\na.jpg,cat\nb.jpg,cat\na.jpg,dog\n",
    "row per tag, no header": "a.jpg,cat\nb.jpg,cat\na.jpg,dog\n",
    "column per class": "file,cat,dog\na.jpg,1,1\nb.jpg,1,0\n",
    "quotes": '"file","tags"\n"a.jpg","cat,dog"\n"b.jpg","cat"\n',
    "no ending": "file,tags\na,cat|dog\nb,cat\n",
    "dot and slash": "file,tags\n./a.jpg,cat|dog\n./b.jpg,cat\n",
    "Windows line ends, blank lines, blanks": "\r\nfile , tags\r\n\r\n a.jpg , cat | dog |\r\nb.jpg,cat\r\n,\r\n",
    "old Mac line ends": "file,tags\ra.jpg,cat|dog\rb.jpg,cat\r",
    "no line end": "file,tags\na.jpg,cat|dog\nb.jpg,cat",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("kind", SAME)
def test_csv_relatives(tmp_path, kind, encoding):
    path = table(tmp_path, SAME[kind], encoding=encoding)
    for source in (path, tmp_path):
        assert find_format(Source(source)) == "csv"
        listing = look(source)
        assert tags(listing) == {"a.jpg": ("cat", "dog"), "b.jpg": ("cat",)}
        assert listing.classes == ("cat", "dog") and not listing.problems


def test_tsv(tmp_path):
    path = table(tmp_path, "file\ttags, and more, of, them\tlabel\na.jpg\tx\tcat\n", "tags.tsv")
    assert tags(look(path)) == {"a.jpg": ("cat",)}


@pytest.mark.parametrize("name", ["sub\\a.jpg", "sub/a.jpg", "sub\\..\\sub\\a.jpg", ".\\sub\\a"])
def test_csv_folders_in_names(tmp_path, name):
    save_image(tmp_path / "sub/a.jpg")
    (entry,) = look(write_text(tmp_path / "tags.csv", f"file,tags\n{name},cat\n")).entries
    assert entry.id == "sub/a" and entry.path == tmp_path / "sub/a.jpg"


def test_csv_split_column(tmp_path):
    root = write_csv(tmp_path, SPLIT)
    assert "split" in (root / "tags.csv").read_text().splitlines()[0]
    assert tags(look(root, split="val")) == {"c.jpg": ("dog",)}


def test_csv_image_without_tags(tmp_path):
    assert tags(look(table(tmp_path, "file,tags\na.jpg,\nb.jpg,cat\n"))) == {"a.jpg": (), "b.jpg": ("cat",)}


@pytest.mark.parametrize("name", ["../x.jpg", "..\\x.jpg", "/x.jpg", "sub/../../x.jpg", "."])
def test_csv_file_outside(tmp_path, name):
    path = table(tmp_path / "data", f"file,tags\na.jpg,cat\n{name},cat\n")
    save_image(tmp_path / "x.jpg")
    listing = look(path)
    (problem,) = found(listing)
    assert problem.file == f"{path}, line 3" and tags(listing) == {"a.jpg": ("cat",)}


def test_csv_images_folder(tmp_path):
    save_image(tmp_path / "photos/a.jpg")
    path = write_text(tmp_path / "tables/tags.csv", "file,tags\na,cat\n")
    (entry,) = look(path, images=tmp_path / "photos").entries
    assert entry.path == tmp_path / "photos/a.jpg" and entry.id == "a"


def test_csv_missing_image_is_listed(tmp_path):
    assert tags(look(table(tmp_path, "file,tags\nnone.jpg,cat\n"))) == {"none.jpg": ("cat",)}


def test_csv_name_too_long_for_the_disk(tmp_path):
    name = "x" * 300
    assert tags(look(table(tmp_path, f"file,tags\na.jpg,cat\n{name},cat\n"))) == {"a.jpg": ("cat",), name: ("cat",)}


@pytest.mark.parametrize(
    "text, words",
    [
        ("file,tags\na.jpg,cat\nb.jpg,cat,dog\n", "line 3: 3 columns, the header has 2"),
        ("file,tags\na.jpg,cat\nb.jpg\n", "line 3: 1 columns"),
        ("file,tags\na.jpg,cat\n,dog\n", "line 3: no file name"),
        ('file,tags\na.jpg,"cat\n', "line 2: not a readable table"),
        ("fil,tags\na.jpg,cat\n", "Did you mean 'file'"),
        ("file,tgas\na.jpg,cat\n", "Did you mean 'tags'"),
        ("file\na.jpg\n", "no column of tags"),
        ("file,cat,dog\na.jpg,1,2\n", "no column of tags among file, cat, dog"),
        ("", "empty"),
        ("\n \n", "empty"),
    ],
)
def test_csv_that_makes_no_sense(tmp_path, text, words):
    path = table(tmp_path, text)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        look(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_csv_in_an_old_encoding_names_the_line(tmp_path, encoding):
    path = table(tmp_path, "file,tags\na.jpg,cat\nb.jpg,chéri\n", encoding=encoding)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}, line 3: not UTF-8 text"):
        look(path)


def test_csv_two_tables(tmp_path):
    table(tmp_path, SAME["comma"], "one.csv")
    table(tmp_path, SAME["comma"], "two.csv")
    with pytest.raises(DataError, match="2 tables"):
        look(tmp_path, format="csv")


# A folder per class


def test_folders_in_folders_and_names(tmp_path):
    for file in ("猫/a.jpg", "猫/deep/er/b.jpg", "big dog/c.JPG", "big dog/d.webp"):
        save_image(tmp_path / file)
    listing = look(tmp_path)
    assert listing.classes == ("big dog", "猫")
    assert {entry.id: entry.tags for entry in listing.entries} == {
        "big dog/c": ("big dog",),
        "big dog/d": ("big dog",),
        "猫/a": ("猫",),
        "猫/deep/er/b": ("猫",),
    }
    assert not listing.problems


def test_folders_same_picture_in_two_classes(tmp_path):
    for file in ("cat/a.jpg", "dog/other name.jpg", "dog/b.jpg"):
        save_image(tmp_path / file, seed=0 if "b" not in file else 1)
    listing = look(tmp_path)
    assert {entry.id: entry.tags for entry in listing.entries} == {"cat/a": ("cat", "dog"), "dog/b": ("dog",)}
    (problem,) = listing.problems
    assert problem.severity == "note" and problem.file.endswith("cat/a.jpg") and "other name.jpg" in problem.message


def test_folders_same_picture_twice_in_one_class(tmp_path):
    for file in ("cat/a.jpg", "cat/b.jpg"):
        save_image(tmp_path / file, seed=0)
    listing = look(tmp_path)
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ("cat",)} and not listing.problems


def test_folders_what_is_skipped_and_what_is_said(tmp_path):
    for file in ("cat/a.jpg", "cat/.b.jpg", ".git/c.jpg", "__MACOSX/cat/d.jpg", "cat/.thumbs/e.jpg", "beside.jpg"):
        save_image(tmp_path / file)
    Image.new("P", (20, 16)).save(tmp_path / "cat/f.gif")
    write_text(tmp_path / "cat/Thumbs.db", "x")
    listing = look(tmp_path)
    assert tags(listing) == {"a.jpg": ("cat",)} and listing.classes == ("cat",)
    said = {Path(problem.file).name: (problem.severity, problem.kind) for problem in listing.problems}
    assert said == {"f.gif": ("warning", "kind of image not read"), "beside.jpg": ("warning", "image without tags")}


def test_folders_of_splits_keep_the_split_in_the_id(tmp_path):
    listing = look(write_folders(tmp_path, SPLIT), split="val")
    assert [entry.id for entry in listing.entries] == ["val/dog/c"] and listing.classes == ("dog",)


def test_folder_called_train_beside_other_classes_is_a_class(tmp_path):
    for file in ("train/a.jpg", "bus/b.jpg"):
        save_image(tmp_path / file)
    assert look(tmp_path).classes == ("bus", "train")


def test_folders_links(tmp_path):
    save_image(tmp_path / "photos/a.jpg")
    root = tmp_path / "data"
    (root / "cat").mkdir(parents=True)
    (root / "cat/a.jpg").symlink_to(tmp_path / "photos/a.jpg")
    (root / "cat/loop").symlink_to(root / "cat")
    (root / "cat/gone.jpg").symlink_to(tmp_path / "gone.jpg")
    assert sorted(entry.id for entry in look(root).entries) == ["cat/a", "cat/gone"]


# ILSVRC 2013 detection


def test_ilsvrc_lists_of_val(tmp_path):
    root = write_ilsvrc(tmp_path, TWO)
    lists = root / "ILSVRC2013_devkit/data/det_lists"
    write_text(lists / "val1.txt", "a 1\n")
    write_text(lists / "val2.txt", "b 2\n")
    assert look(root, split="val").splits == ("val", "val1", "val2")
    assert tags(look(root, split="val1")) == {"a.jpg": ("cat",)}
    assert tags(look(root, split="val2")) == {"b.jpg": ("dog",)}
    with pytest.raises(DataError, match="val, val1, val2"):
        look(root)


def test_ilsvrc_ending_of_its_images(tmp_path):
    root = write_ilsvrc(tmp_path, [Picture("ILSVRC2012_val_00000001.JPEG", (Thing("cat"),))])
    write_text(root / "ILSVRC2013_devkit/data/det_lists/val.txt", "ILSVRC2012_val_00000001 1\n")
    (entry,) = look(root).entries
    assert entry.id == "ILSVRC2012_val_00000001" and entry.path.is_file()


def test_ilsvrc_without_names_keeps_synsets(tmp_path):
    root = write_ilsvrc(tmp_path, TWO)
    (root / "ILSVRC2013_devkit/data/map_det.txt").unlink()
    assert tags(look(root)) == {"a.jpg": ("n00000001",), "b.jpg": ("n00000002",)}


def test_ilsvrc_names_from_mat(tmp_path):
    root = write_ilsvrc(tmp_path, TWO)
    (root / "ILSVRC2013_devkit/data/map_det.txt").unlink()
    rows = [(2, "n00000002", "big dog"), (1, "n00000001", "cat"), (201, "n00000003", "animal")]  # 201: not a class
    synsets = np.array(rows, dtype=[("ILSVRC2013_DET_ID", "O"), ("WNID", "O"), ("name", "O")]).reshape(-1, 1)
    scipy.io.savemat(root / "ILSVRC2013_devkit/data/meta_det.mat", {"synsets": synsets})
    listing = look(root)
    assert listing.classes == ("cat", "big dog")
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ("big dog",)}


@pytest.mark.parametrize(
    "name, content",
    [
        ("map_det.txt", b"n00000001 1\n"),
        ("map_det.txt", b"n00000001 one cat\n"),
        ("map_det.txt", b"n00000001 1 \xff\n"),
        ("meta_det.mat", b""),
        ("meta_det.mat", b"MATLAB 5.0 MAT-file" + b" " * 200),
    ],
)
def test_ilsvrc_broken_names(tmp_path, name, content):
    root = write_ilsvrc(tmp_path, TWO)
    (root / "ILSVRC2013_devkit/data/map_det.txt").unlink()
    path = root / "ILSVRC2013_devkit/data" / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path))):
        look(root)


def ilsvrc_train(root, names=("cat", "dog", "bird")):
    save_image(root / "Data/DET/train/n00000001/n00000001_7.jpg")
    save_image(root / "Data/DET/train/extra/e_1.jpg")
    write_text(root / "devkit/data/map_det.txt", map_det(list(names)))
    return root


def test_ilsvrc_train_lists_leave_the_rest_unknown(tmp_path):
    root = ilsvrc_train(tmp_path)
    lists = root / "ImageSets/DET"
    write_text(lists / "train_1.txt", "n00000001/n00000001_7 1\nextra/e_1 -1\n")
    write_text(lists / "train_2.txt", "n00000001/n00000001_7 -1\nextra/e_1 0\n")
    listing = look(root)
    assert listing.split == "train" and listing.classes == ("cat", "dog", "bird")
    by_id = {entry.id: (entry.tags, entry.unknown) for entry in listing.entries}
    assert by_id == {
        "n00000001/n00000001_7": (("cat",), ("bird",)),  # no list says anything of birds
        "extra/e_1": ((), ("bird", "dog")),  # 0: a dog in part of its annotations only
    }


def test_ilsvrc_train_lists_with_a_word_for_a_number(tmp_path):
    root = ilsvrc_train(tmp_path)
    path = write_text(root / "ImageSets/DET/train_1.txt", "extra/e_1 yes\n")
    with pytest.raises(DataError, match=re.escape(str(path))):
        look(root)


def test_ilsvrc_train_folder_is_a_tag(tmp_path):
    entries = look(ilsvrc_train(tmp_path)).entries
    assert {entry.id: entry.tags for entry in entries} == {"n00000001/n00000001_7": ("cat",), "extra/e_1": ()}


def test_ilsvrc_broken_annotation(tmp_path):
    root = write_ilsvrc(tmp_path, TWO)
    path = write_text(root / "ILSVRC2013_DET_bbox_val/a.xml", "<annotation>")
    listing = look(root)
    assert tags(listing) == {"b.jpg": ("dog",)} and found(listing)[0].file == str(path)


# labelImg


def test_labelimg_image_without_xml_is_left_out(tmp_path):
    root = write_labelimg(tmp_path, TWO)
    save_image(root / "c.jpg")
    listing = look(root)
    assert tags(listing) == {"a.jpg": ("cat",), "b.jpg": ("dog",)}
    (problem,) = listing.problems
    assert problem.severity == "warning" and problem.file == str(root / "c.jpg")


def test_labelimg_xml_without_image(tmp_path):
    root = write_labelimg(tmp_path, TWO)
    (root / "a.jpg").unlink()
    listing = look(root)
    (problem,) = listing.problems
    assert (problem.severity, problem.kind, problem.file) == ("error", "missing file", str(root / "a.xml"))


def test_labelimg_in_folders(tmp_path):
    write_labelimg(tmp_path / "one", TWO[:1])
    write_labelimg(tmp_path / "two/deep", TWO[1:])
    assert [entry.id for entry in look(tmp_path).entries] == ["one/a", "two/deep/b"]


GOOD = voc_xml((20, 16), TWO[0].things)
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    + "]><annotation><object><name>&j;</name></object></annotation>"
)


@pytest.mark.parametrize(
    "xml, words",
    [
        ("", "XML"),
        ("cat", "XML"),
        (GOOD[:-20], "XML"),
        ("<a>" * 100_000, "XML"),
        ('<?xml version="1.0" encoding="none"?><annotation/>', "a.xml"),
        (LAUGHS, "document type or entities"),
        ('<!DOCTYPE a SYSTEM "file:///etc/hostname"><a/>', "document type or entities"),
        (GOOD.replace("<name>cat</name>", ""), "without a name"),
        (GOOD.replace("cat", "  "), "without a name"),
        (GOOD.replace("<xmin>2<", "<xmin>two<"), "bndbox/xmin is 'two'"),
        (GOOD.replace("<xmin>2<", "<xmin>nan<"), "bndbox/xmin is 'nan'"),
        (GOOD.replace("<ymax>8<", "<ymax>1e999<"), "bndbox/ymax is '1e999'"),
        (GOOD.replace("<xmin>2</xmin>", ""), "bndbox/xmin is ''"),
        (GOOD.replace("bndbox", "box"), "without a bndbox"),
        (GOOD.replace("<width>20<", "<width>wide<"), "size/width is 'wide'"),
    ],
)
def test_labelimg_broken_xml(tmp_path, xml, words):
    root = write_labelimg(tmp_path, TWO)
    path = write_text(root / "a.xml", xml)
    listing = look(root, boxes=True)
    (problem,) = found(listing)
    assert problem.file == str(path) and words in problem.message
    assert tags(listing) == {"b.jpg": ("dog",)}


def test_labelimg_size_of_zero_is_no_size(tmp_path):
    root = write_labelimg(tmp_path, TWO)
    write_text(root / "a.xml", voc_xml((0, 0), TWO[0].things))
    assert true_boxes(root)["a"] == [("cat", (1, 2, 9, 8), False)]


def test_boxes_of_another_size(tmp_path):
    root = write_labelimg(tmp_path, TWO)
    write_text(root / "a.xml", voc_xml((40, 32), TWO[0].things))
    truth = read_truth(Source(root))
    assert list(truth.images) == ["b"]  # left out, and said
    assert truth.problems[0].message == "its boxes were drawn on 40 x 32 pixels, the image has 20 x 16"


def test_truth_of_a_missing_image(tmp_path):
    root = write_voc(tmp_path, TWO)
    (root / "JPEGImages/a.jpg").unlink()
    truth = read_truth(Source(root))
    assert list(truth.images) == ["b"] and truth.problems[0].message == "there is no such file"


def test_yolo_line_writer_agrees_with_the_format():
    assert yolo_line(1, (5, 6, 15, 10), (20, 16)).split() == ["1", *("0.50000000",) * 3, "0.25000000"]


def test_yolo_written_by_hand(tmp_path):
    root = write_yolo(tmp_path, TWO)
    assert (root / "labels/train/b.txt").read_text().startswith("1 ")


def test_some_images_spread_over_the_data(tmp_path):
    save_scenes(tmp_path, 10)
    every = read_tags(Source(tmp_path))
    for most in (1, 3, 10, 50):
        some = read_tags(Source(tmp_path, limit=most))
        assert len(some) == min(most, 10) and some.classes == every.classes
        assert [image.id for image in some] == [every[i * 10 // len(some)].id for i in range(len(some))]
    with pytest.raises(UsageError, match="at least 1 image"):
        read_tags(Source(tmp_path, limit=0))
