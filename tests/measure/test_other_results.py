"""Results of other tools: what each kind of file means, and the words for everything that can be wrong in one."""

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from measure_scenes import objects
from PIL import Image

from melm.data import Source
from melm.data.formats import read
from melm.data.records import DataError
from melm.detect.detections import Detections, no_detections
from melm.detect.labels import LabelledImage, LabelsFile
from melm.detect.results import ResultsFile
from melm.errors import MelmError, UsageError
from melm.export.detections import write_coco_results, write_comp4, write_table
from melm.measure import truth as truth_module
from melm.measure.average_precision import average_precision
from melm.measure.gather import gather
from melm.measure.other_results import read_detections
from melm.measure.truth import Truth, read_truth
from writers import Picture, Thing, save_image, write_coco, write_text, write_voc

NAMES = ("cat", "big_cat", "猫")
SIZE = (100, 80)
NONE = objects([], [])


def truth_of(ids, names=NAMES, size=SIZE, image_numbers=None, class_numbers=None, ending=".jpg"):
    return Truth(
        tuple(names),
        dict.fromkeys(ids, NONE),
        files={id: Path("/data", id + ending) for id in ids},
        sizes=dict.fromkeys(ids, size),
        image_numbers=image_numbers or {},
        class_numbers=class_numbers or {},
    )


TRUTH = truth_of(
    ["a", "sub/b", "left/c", "right/c", "7"],
    image_numbers={100: "a", 101: "sub/b", 102: "left/c", 103: "right/c", 104: "7"},
    class_numbers={10: "cat", 20: "big_cat", 30: "猫", 40: "dog"},
)
BARE = Truth(NAMES, {"a": NONE, "sub/b": NONE})  # made by hand: no files, no sizes, no numbers
ENTRY = {"image_id": "a", "category_id": "cat", "bbox": [1, 2, 3, 4], "score": 0.5}


def changed(**changes):
    return {key: value for key, value in (ENTRY | changes).items() if value is not ...}


def rows(found):
    """(image, class, score, box) of all, in order."""
    return [
        (id, name, score, tuple(box))
        for id, these in found.items()
        for name, score, box in zip(these.class_names(), these.scores.tolist(), these.boxes.tolist(), strict=True)
    ]


@pytest.fixture
def of_json(tmp_path):
    def read_entries(entries, truth=TRUTH, **options):
        path = tmp_path / "results.json"
        path.write_text(json.dumps(entries))
        return read_detections(path, truth, **options)

    return read_entries


@pytest.fixture
def of_csv(tmp_path):
    def read_table(text, truth=TRUTH, encoding="utf-8", name="results.csv", **options):
        return read_detections(write_text(tmp_path / name, text, encoding), truth, **options)

    return read_table


@pytest.fixture
def of_comp4(tmp_path):
    def read_folder(lines, truth=TRUTH, split=None, start="comp4_det_val", **options):
        """`lines` by class; a class of the truth that is not named has an empty file."""
        for name, text in (dict.fromkeys(truth.classes, "") | lines).items():
            if text is not None:
                write_text(tmp_path / "voc" / f"{start}_{name}.txt", text)
        return read_detections(tmp_path / "voc", truth, split=split, **options)

    return read_folder


def refused(read_it, *arguments, **options):
    """The words of the refusal."""
    with pytest.raises(MelmError) as error:
        read_it(*arguments, **options)
    return str(error.value)


# COCO's results


def test_a_list_of_entries_is_read(of_json):
    entries = [
        changed(score=0.25),
        changed(image_id="sub/b", category_id="猫", bbox=[0.5, 0, 10.25, 80], area=7, segmentation=[[1, 2]]),
        changed(score=7, bbox=[5, 6, 0, 0]),
        changed(score=-1e9),
    ]
    found = of_json(entries)
    assert rows(found) == [
        ("a", "cat", 7, (5, 6, 5, 6)),
        ("a", "cat", 0.25, (1, 2, 4, 6)),
        ("a", "cat", -1e9, (1, 2, 4, 6)),
        ("sub/b", "猫", 0.5, (0.5, 0, 10.75, 80)),
    ]
    assert list(found) == ["a", "sub/b"]  # the others are left to `gather`
    assert all(these.names == NAMES and (these.width, these.height) == SIZE for these in found.values())
    assert all(these.boxes.dtype == these.scores.dtype == np.float64 for these in found.values())


def test_an_empty_list_means_that_nothing_was_found(of_json):
    assert of_json([]) == {}


def test_numbers_are_cocos_and_texts_are_names(of_json):
    entries = [changed(image_id=101, category_id=20), changed(image_id="7", category_id=30), changed(image_id=104)]
    assert [row[:2] for row in rows(of_json(entries))] == [("sub/b", "big_cat"), ("7", "猫"), ("7", "cat")]


@pytest.mark.parametrize("text", ["b", "b.jpg", "sub/b", "sub/b.jpg"])
def test_a_text_is_an_id_or_a_file_name_with_or_without_its_ending(of_json, text):
    assert list(of_json([changed(image_id=text)])) == ["sub/b"]


@pytest.mark.parametrize("text", ["c", "c.jpg"])
def test_a_file_name_of_two_images_is_ambiguous(of_json, text):
    said = refused(of_json, [ENTRY, changed(image_id=text)])
    assert "results.json, entry 2: " in said and f"{text!r} may be any of 'left/c', 'right/c'" in said
    assert list(of_json([changed(image_id="left/c")])) == ["left/c"]


@pytest.mark.parametrize("text", ["photos/b.jpg", "train/photos/b", "/home/me/b.jpg"])
def test_a_path_in_other_folders_is_the_image_of_its_name(of_json, text):
    assert list(of_json([changed(image_id=text)])) == ["sub/b"]


def test_two_paths_are_never_taken_for_one_image(of_json):
    said = refused(of_json, [changed(image_id="x/b"), changed(image_id="x/b"), changed(image_id="y/b")])
    assert "entry 3: the images 'x/b' and 'y/b' of the results would both be 'b' of the data" in said


def test_an_exact_id_wins_over_a_file_name(of_json):
    assert list(of_json([changed(image_id="a")], truth_of(["sub/a", "a"]))) == ["a"]
    assert list(of_json([changed(image_id="a.jpg")], truth_of(["sub/a", "a.jpg"], ending=".png"))) == ["a.jpg"]


def test_file_names_of_a_truth_without_files_are_the_ends_of_its_ids(of_json):
    found = of_json([changed(image_id="b", bbox=[-50, 0, 999, 9])], BARE)
    assert rows(found) == [("sub/b", "cat", 0.5, (-50, 0, 949, 9))]  # and without sizes, nothing lies outside
    assert (found["sub/b"].width, found["sub/b"].height) == (0, 0)
    assert rows(of_json([changed(bbox=[-50, 0, 999, 9])], BARE, clip=True))[0][3] == (-50, 0, 949, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_id": "d"}, "entry 2: unknown image 'd'. The data has 5 images: a, sub/b, left/c"),
        ({"image_id": "sub/bb"}, "Did you mean 'sub/b'?"),
        ({"image_id": 99}, "entry 2: unknown image 99."),
        ({"image_id": True}, "entry 2: image_id is True; a whole number or a text was expected"),
        ({"image_id": 100.0}, "entry 2: image_id is 100.0; a whole number or a text was expected"),
        ({"image_id": None}, "entry 2: image_id is None"),
        ({"category_id": "big cat"}, "entry 2, image 'a': unknown class 'big cat'. Did you mean 'big_cat'?"),
        ({"category_id": 99}, "entry 2, image 'a': unknown class 99."),
        ({"category_id": False}, "entry 2, image 'a': category_id is False"),
        ({"category_id": 40}, "the class 'dog' (category_id 40) is in the data, but not among the classes measured"),
        ({"category_id": "dog"}, "the class 'dog' is in the data, but not among the classes measured"),
        ({"image_id": ...}, "entry 2: 'image_id' is missing among category_id, bbox, score"),
        ({"category_id": ...}, "entry 2, image 'a': 'category_id' is missing"),
        ({"bbox": ...}, "entry 2, image 'a': 'bbox' is missing"),
        (
            {"score": ..., "scores": 1},
            "entry 2, image 'a': 'score' is missing among image_id, category_id, bbox, scores",
        ),
        ({"bbox": [1, 2, 3]}, "entry 2, image 'a': bbox is [1, 2, 3]; four numbers"),
        ({"bbox": [1, 2, 3, 4, 5]}, "four numbers (x, y, width, height) were expected"),
        ({"bbox": {"x": 1}}, "entry 2, image 'a': bbox is {'x': 1}; four numbers"),
        ({"bbox": "1 2 3 4"}, "bbox is '1 2 3 4'; four numbers"),
        ({"bbox": [1, 2, 3, "4"]}, "bbox is [1, 2, 3, '4'], score is 0.5; numbers were expected"),
        ({"bbox": [True, 2, 3, 4]}, "bbox is [True, 2, 3, 4], score is 0.5; numbers were expected"),
        ({"bbox": [1, 2, None, 4]}, "numbers were expected"),
        ({"score": "0.9"}, "score is '0.9'; numbers were expected"),
        ({"score": True}, "score is True; numbers were expected"),
        ({"score": None}, "score is None; numbers were expected"),
        ({"score": float("nan")}, "entry 2, image 'a': the score is nan; a finite number was expected"),
        ({"score": -float("inf")}, "the score is -inf"),
        ({"score": 10**400}, "the score is inf"),
        ({"bbox": [1, float("nan"), 3, 4]}, "entry 2, image 'a': the box from x 1 to 4, y nan to nan is not of finite"),
        ({"bbox": [1, 2, float("inf"), 4]}, "is not of finite numbers"),
        ({"bbox": [1, 2, 10**400, 4]}, "is not of finite numbers"),
        ({"bbox": [1e308, 2, 1e308, 4]}, "is not of finite numbers"),
        ({"bbox": [5, 2, -3, 4]}, "entry 2, image 'a': the box from x 5 to 2, y 2 to 6 has a negative width or height"),
        ({"bbox": [5, 2, 3, -0.5]}, "has a negative width or height"),
        (
            {"bbox": [90, 2, 11.5, 4]},
            "entry 2, image 'a': the box from x 90 to 101.5, y 2 to 6 reaches beyond the image",
        ),
        ({"bbox": [90, 2, 11.5, 4]}, "which has 100 x 80 pixels. --clip cuts boxes at the image's edge"),
        ({"bbox": [1, 2, 3, 79.5]}, "reaches beyond"),
        ({"bbox": [-1.5, 2, 3, 4]}, "reaches beyond"),
        ({"bbox": [1, -1.5, 3, 4]}, "reaches beyond"),
        ({"bbox": [200, 2, 3, 4]}, "lies outside the image, which has 100 x 80 pixels"),
    ],
)
def test_a_wrong_entry_is_named(of_json, changes, message):
    said = refused(of_json, [ENTRY, changed(**changes), changed(bbox=[0, 0, 500, 500])])
    assert "results.json, entry 2" in said and message in said


@pytest.mark.parametrize("entry", [7, "a", None, [1, 2], {}])
def test_an_entry_of_another_kind_is_named(of_json, entry):
    said = refused(of_json, [ENTRY, entry])
    assert "results.json, entry 2: " in said and '"bbox": [x, y, width, height]' in said


def test_numbers_mean_nothing_where_the_data_has_none(of_json):
    said = refused(of_json, [changed(image_id=100)], BARE)
    assert "image_id is 100, but the data's images have no COCO numbers. Write the image as text" in said
    said = refused(of_json, [changed(category_id=10)], BARE)
    assert "category_id is 10, but the data's classes have no COCO numbers. Write the class as text" in said


def test_results_in_an_image_that_was_left_out_are_left_out(of_json):
    truth = Truth(
        NAMES, {"a": NONE}, image_numbers={1: "a", 2: "sub/gone"}, left_out={"sub/gone": Path("sub/gone.jpg")}
    )
    for id in (2, "sub/gone", "gone", "gone.jpg"):
        found = of_json([changed(image_id=id, bbox=[0, 0, 9999, 9]), changed(image_id="a")], truth)
        assert {id: len(these) for id, these in found.items()} == {"a": 1}


def test_a_pixel_beyond_the_image_is_taken_as_it_is(of_json):
    assert rows(of_json([changed(bbox=[-1, -1, 102, 82])]))[0][3] == (-1, -1, 101, 81)


@pytest.mark.parametrize(
    ("bbox", "box"),
    [
        ([-50, -50, 60, 70], (0, 0, 10, 20)),
        ([90, 70, 60, 70], (90, 70, 100, 80)),
        ([-5, -5, 1000, 1000], (0, 0, 100, 80)),
        ([-0.5, 3, 5, 5], (0, 3, 4.5, 8)),
        ([1, 2, 3, 4], (1, 2, 4, 6)),
        ([0, -10, 0, 15], (0, 0, 0, 5)),  # as thin as before
        ([-0.5, 3, 0.25, 5], (0, 3, 0, 8)),  # outside by less than a pixel, which is no error without clipping
    ],
)
def test_boxes_are_cut_at_the_edge_if_asked_to(of_json, bbox, box):
    assert rows(of_json([changed(bbox=bbox)], clip=True))[0][3] == box


@pytest.mark.parametrize(
    "bbox", [[-20, 5, 10, 10], [5, 90, 10, 10], [100, 5, 10, 10], [-10, 5, 10, 10], [-9, -9, 0, 50]]
)
def test_a_box_wholly_outside_is_wrong_even_if_boxes_are_cut(of_json, bbox):
    said = refused(of_json, [ENTRY, changed(bbox=bbox)], clip=True)
    assert "entry 2, image 'a': the box from x " in said and "lies outside the image" in said


@pytest.mark.parametrize(
    ("end", "whole"), [(-1, 3), (-2, 2), (-30, 2), (-len(json.dumps(ENTRY)) - 1, 2), (90, 1), (30, 0), (1, 0)]
)
def test_of_a_file_that_was_cut_the_last_whole_entry_is_named(tmp_path, end, whole):
    (tmp_path / "r.json").write_text(json.dumps([ENTRY] * 3)[:end])
    said = refused(read_detections, tmp_path / "r.json", TRUTH)
    assert "r.json: not readable as JSON" in said
    assert (f"Entry {whole} is the last whole one" if whole else "No entry is whole") in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.json: empty; where nothing was found, a JSON file holds []"),
        (" \n", "r.json: empty"),
        (
            '{"images": [], "annotations": [], "categories": []}',
            "a COCO data set, not results. Results are a plain list",
        ),
        ('{"a": 1}', "holds {'a': 1}, where a plain list was expected"),
        ("7", "holds 7, where a plain list was expected"),
        ("nothing", "not readable as JSON"),
        ('[{"image_id": 1}] and', "Entry 1 is the last whole one"),
        ('{"image_id": 1}\n{"image_id": 1}', "Results are a plain list"),
        ("[" * 100_000, "not readable as JSON"),
        ("[" + "1" * 5000 + "]", "not readable as JSON"),
    ],
)
def test_what_is_no_list_of_entries_is_refused(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    said = refused(read_detections, tmp_path / "r.json", TRUTH)
    assert str(tmp_path / "r.json") in said and message in said


def test_json_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "r.json").write_bytes(b'[{"image_id": "\xe9"}]')
    assert "r.json: not UTF-8 text from byte 15; save it as UTF-8" in refused(
        read_detections, tmp_path / "r.json", TRUTH
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_is_known_by_its_text_where_the_ending_does_not_tell(tmp_path, encoding):
    name = "r.json" if encoding == "utf-16" else "r.results"
    write_text(tmp_path / name, json.dumps([changed(category_id="猫")], ensure_ascii=False), encoding)
    assert rows(read_detections(tmp_path / name, TRUTH)) == [("a", "猫", 0.5, (1, 2, 4, 6))]


def test_scores_that_differ_beyond_float32_keep_their_order(of_json):
    low, high = 0.5, 0.5 + 1e-12
    assert np.float32(low) == np.float32(high)
    truth = Truth(("cat",), {"a": objects([[50, 50, 60, 60]], [0])}, sizes={"a": SIZE})
    right, wrong = [50, 50, 10, 10], [0, 0, 10, 10]  # of equal scores, the wrong one would go first
    found = of_json([changed(bbox=wrong, score=low), changed(bbox=right, score=high)], truth)
    assert found["a"].scores.tolist() == [high, low]
    assert gather(truth, found).scores.tolist() == [high, low]
    assert average_precision(truth, found).mean == 1


# COCO's numbers, through a data set


CATS = [
    Picture("one.jpg", (Thing("cat"), Thing("dog", (3, 3, 12, 12)))),
    Picture("two.jpg", (Thing("cat", (0, 0, 20, 16)),)),
    Picture("three.jpg", ()),
]


def coco_results(numbers, score=0.5, bbox=(1, 2, 8, 6)):
    return [{"image_id": i, "category_id": k, "bbox": list(bbox), "score": score} for i, k in numbers]


def test_a_coco_data_set_brings_its_numbers_its_files_and_its_sizes(tmp_path, of_json):
    truth = read_truth(Source(write_coco(tmp_path / "data", CATS)))
    assert truth.image_numbers == {100: "one", 101: "two", 102: "three"}
    assert truth.class_numbers == {10: "cat", 20: "dog"}
    assert truth.files == {p.stem: tmp_path / "data/train" / p.file for p in CATS}
    assert truth.sizes == {p.stem: p.size for p in CATS}
    found = of_json(coco_results([(100, 10), (100, 20), (102, 10)]), truth)
    assert [row[:2] for row in rows(found)] == [("one", "cat"), ("one", "dog"), ("three", "cat")]
    assert average_precision(truth, found).per_class()["cat"] > 0


def test_other_data_has_no_numbers(tmp_path):
    truth = read_truth(Source(write_voc(tmp_path, CATS)))
    assert truth.image_numbers == truth.class_numbers == {}
    assert truth.sizes == {p.stem: p.size for p in CATS}


def test_sizes_are_those_of_the_upright_image(tmp_path):
    root = write_coco(tmp_path, CATS)
    turned = Image.Exif()
    turned[0x0112] = 6
    save_image(root / "train/two.jpg", (20, 16), exif=turned)
    assert read_truth(Source(root)).sizes["two"] == (16, 20)


def test_each_image_file_is_looked_at_once(tmp_path, monkeypatch):
    looked, look = [], truth_module.image_info
    monkeypatch.setattr(truth_module, "image_info", lambda path: looked.append(path.name) or look(path))
    read_truth(Source(write_coco(tmp_path, CATS)))
    assert sorted(looked) == sorted(p.file for p in CATS)


def changed_coco(root, change):
    path = write_coco(root, CATS) / "annotations/instances_train.json"
    coco = json.loads(path.read_text())
    change(coco)
    path.write_text(json.dumps(coco))
    return Source(root)


def test_texts_and_truth_values_are_no_numbers(tmp_path):
    def change(coco):
        coco["images"][0]["id"], coco["images"][2]["id"] = "x", True
        coco["categories"][1]["id"] = "y"
        for annotation in coco["annotations"]:
            annotation["image_id"] = {100: "x"}.get(annotation["image_id"], 101)
            annotation["category_id"] = {20: "y"}.get(annotation["category_id"], 10)

    listing = read(changed_coco(tmp_path, change), boxes=False)
    assert listing.image_numbers == {101: "two"} and listing.class_numbers == {10: "cat"}


@pytest.mark.parametrize("options", [{"classes": ("cat",)}, {"background": "dog"}])
def test_a_class_that_is_not_measured_is_no_unknown_one(tmp_path, of_json, options):
    truth = read_truth(Source(write_coco(tmp_path / "data", CATS), **options))
    assert truth.classes == ("cat",)
    assert [row[:2] for row in rows(of_json(coco_results([(100, 10)]), truth))] == [("one", "cat")]
    for category in (20, "dog"):
        said = refused(of_json, coco_results([(100, 10), (100, category)]), truth)
        assert "entry 2, image 100: the class 'dog'" in said and "not among the classes measured" in said


@pytest.mark.parametrize("again", ["one.png", "one.jpg"])  # another image with the same id; the same image again
def test_the_number_of_an_image_that_was_dropped_leads_nowhere(tmp_path, of_json, again):
    save_image(tmp_path / "data/train" / again)

    def change(coco):
        coco["images"].insert(1, coco["images"][0] | {"id": 555, "file_name": again})

    truth = read_truth(changed_coco(tmp_path / "data", change))
    assert truth.image_numbers == {100: "one", 101: "two", 102: "three"}
    assert "unknown image 555" in refused(of_json, coco_results([(555, 10)]), truth)


def test_of_two_images_with_one_id_the_second_is_not_found_by_its_number_if_the_first_has_none(tmp_path):
    def change(coco):
        coco["images"].insert(0, coco["images"][2] | {"id": "x"})

    assert read(changed_coco(tmp_path, change), boxes=False).image_numbers == {100: "one", 101: "two"}


def test_results_in_an_image_that_cannot_be_read_are_left_out(tmp_path, of_json):
    root = write_coco(tmp_path / "data", CATS)
    (root / "train/two.jpg").unlink()
    truth = read_truth(Source(root))
    assert "two" not in truth.files and "two" not in truth.sizes and list(truth.left_out) == ["two"]
    assert not of_json(coco_results([(101, 10)]), truth)


# Tables


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(
    ("header", "cells"),
    [
        (["image_id", "category_id", "score", "x", "y", "width", "height"], ["a", "猫", "0.5", "1", "2", "3", "4"]),
        (["Image", "Category", "Score", "X", "Y", "W", "H"], ["a", "猫", "5e-1", "1", "2.0", "3", "4"]),
        (["y2", "x2", "y1", "x1", "class", "file", "image", "score"], ["6", "4", "2", "1", "猫", "?", "a", ".5"]),
        (["image", "class", "score", "bbox"], ["a", "猫", "0.5", '"[1, 2, 3.0, 4]"']),
        (["image", "class", "bbox", "score"], ["a", "猫", '"1,2,3, 4"', "0.5"]),
        (["image", "class", "bbox", "score"], ["a", "猫", "1 2  3 4", "0.5"]),
        (["image", "width", "height", "class", "score", "x1", "y1", "x2", "y2"], ["a", "9", "8", "猫", "0.5", *"1246"]),
        (["image", "width", "height", "class", "score", "x", "y", "w", "h"], ["a", "9", "8", "猫", "0.5", *"1234"]),
    ],
)
def test_a_table_is_read(of_csv, header, cells, delimiter, encoding):
    text = "\n" + "".join(delimiter.join(row) + "\r\n" for row in (header, cells)) + "\n"
    assert rows(of_csv(text, encoding=encoding)) == [("a", "猫", 0.5, (1, 2, 4, 6))]


def test_a_table_is_known_by_its_header_where_the_ending_does_not_tell(of_csv):
    text = "image\tclass\tscore\tbbox\na\tcat\t0.5\t1 2 3 4\n"
    for name in ("r.tsv", "r.txt", "r"):
        assert rows(of_csv(text, name=name)) == [("a", "cat", 0.5, (1, 2, 4, 6))]


def test_a_table_of_only_a_header_means_that_nothing_was_found(of_csv):
    assert of_csv("image,class,score,bbox\n") == {}


HEADER = "image,class,score,bbox\n"


def test_texts_in_a_table_are_names_or_else_numbers(of_csv):
    text = HEADER + "100,10,0.5,1 2 3 4\n b ,20,0.5,1 2 3 4\n7, big_cat,0.5,1 2 3 4\nleft/c.jpg,猫,0.5,1 2 3 4\n"
    found = [("a", "cat"), ("sub/b", "big_cat"), ("left/c", "猫"), ("7", "big_cat")]
    assert [row[:2] for row in rows(of_csv(text))] == found


def test_a_name_and_a_number_that_agree_are_no_matter(of_csv):
    truth = truth_of(["000012", "12x"], image_numbers={12: "000012", 13: "12x"}, class_numbers={3: "cat"})
    for text in ("000012", "12"):
        assert list(of_csv(f"{HEADER}{text},3,0.5,1 2 3 4\n", truth)) == ["000012"]


def test_a_name_and_a_number_that_disagree_are_ambiguous_in_a_table_only(of_csv, of_json):
    truth = truth_of(
        ["1", "sub/2"], ["3", "4"], image_numbers={1: "sub/2", 2: "1"}, class_numbers={3: "4", 4: "3", 5: "gone"}
    )
    said = refused(of_csv, f"{HEADER}sub/2,3,0.5,1 2 3 4\n", truth)
    assert "results.csv, line 2, image 'sub/2': '3' is the class '3' by name and '4' by COCO's number" in said
    for text, number in (("1", "sub/2"), ("2", "1")):
        said = refused(of_csv, f"{HEADER}{text},5,0.5,1 2 3 4\n", truth)
        assert f"line 2: '{text}' is the image" in said and f"{number!r} by COCO's number" in said
    assert list(of_json([changed(image_id=1, category_id=4)], truth)) == ["sub/2"]
    assert [row[:2] for row in rows(of_json([changed(image_id="1", category_id="4")], truth))] == [("1", "4")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("d,cat,0.5,1 2 3 4", "line 3: unknown image 'd'"),
        ("99,cat,0.5,1 2 3 4", "line 3: unknown image '99'"),
        ("c,cat,0.5,1 2 3 4", "line 3: the image 'c' may be any of 'left/c', 'right/c'"),
        ("a,cad,0.5,1 2 3 4", "line 3, image 'a': unknown class 'cad'. Did you mean 'cat'?"),
        ("a,40,0.5,1 2 3 4", "line 3, image 'a': the class 'dog' (category_id 40) is in the data, but not among"),
        ("a,cat,0.5", "line 3: 3 fields, the header has 4"),
        ("a,cat,0.5,1,2,3,4", "line 3: 7 fields, the header has 4. A cell that holds the delimiter goes in quotes"),
        ("a,cat,,1 2 3 4", "line 3, image 'a': bbox '1 2 3 4', score ''; numbers were expected"),
        ('a,cat,"0,5",1 2 3 4', "score '0,5'; numbers were expected, with a point for decimals"),
        ("a,cat,high,1 2 3 4", "score 'high'; numbers were expected"),
        ("a,cat,2007_000027,1 2 3 4", "score '2007_000027'; numbers were expected"),
        ("a,cat,0.5,1 2 3", "bbox '1 2 3', score '0.5'; numbers were expected"),
        ('a,cat,0.5,"1,,2,3,4"', "numbers were expected"),
        ('a,cat,0.5,"[1,2,3,4"', "numbers were expected"),
        ('a,cat,0.5,"[1,2,3,true]"', "numbers were expected"),
        ("a,cat,0.5,", "numbers were expected"),
        ("a,cat,nan,1 2 3 4", "line 3, image 'a': the score is nan"),
        ("a,cat,0.5,1 2 inf 4", "line 3, image 'a': the box from x 1 to inf, y 2 to 6 is not of finite numbers"),
        ("a,cat,0.5,1 2 -3 4", "line 3, image 'a': the box from x 1 to -2, y 2 to 6 has a negative width or height"),
        ("a,cat,0.5,1 2 300 4", "line 3, image 'a': the box from x 1 to 301, y 2 to 6 reaches beyond the image"),
        ('a,"cat,0.5,1 2 3 4', "not a readable table"),
    ],
)
def test_a_wrong_line_of_a_table_is_named(of_csv, line, message):
    said = refused(of_csv, f"{HEADER}a,cat,0.5,1 2 3 4\n{line}\n")
    assert "results.csv, line " in said and message in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "results.csv: empty; where nothing was found, a JSON file holds [], a CSV its header"),
        ("picture,class,score,bbox\n", "no column image_id or image. The columns are picture, class, score, bbox"),
        ("image,label,score,bbox\n", "no column category_id or category or class"),
        ("image,class,scores,bbox\n", "no column score or confidence. Did you mean 'scores'?"),
        ("image,class,score,x,y,w\n", "no box: a column bbox, or x, y, width, height, or x1, y1, x2, y2"),
        ("image,class,score,score,bbox\n", "two columns are called score. Rename one"),
        (",,\n", "no column image_id or image"),
    ],
)
def test_a_table_without_what_is_needed_is_refused(of_csv, text, message):
    assert message in refused(of_csv, text)


def test_edges_in_the_wrong_order_have_a_negative_width(of_csv):
    said = refused(of_csv, "image,class,score,x1,y1,x2,y2\na,cat,0.5,9,2,4,6\n")
    assert "line 2, image 'a': the box from x 9 to 4, y 2 to 6 has a negative width" in said


def test_a_table_that_is_not_utf8_is_said_to_be(of_csv):
    truth = truth_of(["a"], ["café"])
    said = refused(of_csv, f"{HEADER}a,café,0.5,1 2 3 4\n", truth, encoding="latin-1")
    assert "unknown class" in said and "Did you mean 'café'?" in said and "save the file as UTF-8" in said


def test_a_file_name_that_is_not_utf8_comes_back_from_our_own_table(tmp_path):
    truth = truth_of(["a\udcff"], ["cat"])
    found = Detections(np.array([[1, 2, 4, 6]]), np.array([0.5]), np.array([0]), ("cat",), *SIZE)
    write_table([("a\udcff", "a\udcff.jpg", found)], tmp_path / "t.csv")
    write_coco_results([("a\udcff", "a\udcff.jpg", found)], tmp_path / "r.json")
    write_comp4([("a\udcff", "a\udcff.jpg", found)], tmp_path / "voc", "val", ("cat",))
    for path in (tmp_path / "t.csv", tmp_path / "r.json", tmp_path / "voc"):
        assert rows(read_detections(path, truth)) == [("a\udcff", "cat", 0.5, (1, 2, 4, 6))]


# The VOC devkit's files


def test_files_of_the_devkit_count_pixels_from_one_and_hold_the_last(of_comp4):
    found = of_comp4({"cat": "a 0.5 1 1 10 20\r\n\nsub/b 1e-3 2.5 3 100 80\nb.jpg .25 1 1 1 1\n", "猫": "7 2 5 5 4 9"})
    assert rows(found) == [
        ("a", "cat", 0.5, (0, 0, 10, 20)),
        ("sub/b", "cat", 0.25, (0, 0, 1, 1)),
        ("sub/b", "cat", 0.001, (1.5, 2, 100, 80)),
        ("7", "猫", 2, (4, 4, 4, 9)),
    ]


def test_files_of_comp3_are_read_too(of_comp4):
    assert list(of_comp4({"cat": "a 0.5 1 1 10 20\n"}, start="comp3_det_val")) == ["a"]


def test_files_of_comp3_and_comp4_together_are_refused(of_comp4):
    of_comp4({})
    assert "files of both comp3 and comp4" in refused(of_comp4, {}, start="comp3_det_val")


def test_empty_files_mean_that_nothing_was_found(of_comp4):
    assert of_comp4({}) == {}


def test_one_of_several_splits_is_chosen(of_comp4):
    assert list(of_comp4({"cat": "a 0.5 1 1 10 20\n"})) == ["a"]
    with pytest.raises(UsageError, match=r"voc: files of several splits \(val, val_2\). Choose one with --split"):
        of_comp4({"big_cat": "7 0.5 1 1 10 20\n"}, start="comp4_det_val_2")
    assert list(of_comp4({}, split="val", start="comp4_det_test")) == ["a"]
    assert list(of_comp4({}, split="val_2")) == ["7"]
    assert of_comp4({}, split="test") == {}
    with pytest.raises(UsageError, match=r"several splits \(test, val, val_2\)"):
        of_comp4({})
    with pytest.raises(UsageError, match=r"no files of the split 'tset'. Did you mean 'test'\? Splits here: test, val"):
        of_comp4({}, split="tset")


def test_a_split_with_a_class_of_its_own_or_a_class_too_few_is_still_another_split(of_comp4, tmp_path):
    of_comp4({})
    for name in ("train_zebra", "train_cat"):
        file = write_text(tmp_path / f"voc/comp4_det_{name}.txt", "")
        with pytest.raises(UsageError, match=r"several splits \(train, val\)"):
            of_comp4({})
        assert of_comp4({}, split="val") == {}
        file.unlink()


def test_the_only_split_may_have_underscores(of_comp4):
    assert list(of_comp4({"cat": "a 0.5 1 1 10 20\n"}, start="comp4_det_my_own_val")) == ["a"]


@pytest.mark.parametrize("split", [None, "val"])
@pytest.mark.parametrize(("name", "close"), [("cut", "cat"), ("huge_cat", ""), ("dog", ""), ("bigcats", "big_cat")])
def test_a_file_of_an_unknown_class_is_refused(of_comp4, split, name, close):
    said = refused(of_comp4, {name: ""}, split=split)
    assert f"comp4_det_val_{name}.txt: {name!r} is not among the classes measured: cat, big_cat, 猫." in said
    assert f"Did you mean {close!r}" in said or not close


@pytest.mark.parametrize("split", [None, "val"])
def test_files_of_none_but_unknown_classes_are_refused(tmp_path, split):
    write_text(tmp_path / "comp4_det_val_dog.txt", "")
    said = refused(read_detections, tmp_path, TRUTH, split=split)
    assert "comp4_det_val_dog.txt: 'dog' is not among" in said


@pytest.mark.parametrize("split", [None, "val"])
@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_its_file_is_named(of_comp4, split, name):
    said = refused(of_comp4, {name: None}, split=split)
    assert f"comp4_det_val_{name}.txt: there is no such file. An empty one means that no {name} was found" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a 0.5 1 1 10", "line 2: 'a 0.5 1 1 10', where an image's id and five numbers"),
        ("a 0.5 1 1 10 20 30", "line 2: 'a 0.5 1 1 10 20 30', where an image's id and five numbers"),
        ("a", "line 2: 'a', where"),
        ("a 0.5 1 1 10 x", "line 2: 'a 0.5 1 1 10 x', where"),
        ("d 0.5 1 1 10 20", "line 2: unknown image 'd'"),
        ("100 0.5 1 1 10 20", "line 2: unknown image '100'"),
        ("c 0.5 1 1 10 20", "line 2: the image 'c' may be any of 'left/c', 'right/c'"),
        ("a nan 1 1 10 20", "line 2, image 'a': the score is nan"),
        ("a 0.5 1 inf 10 20", "line 2, image 'a': the box from x 0 to 10, y inf to 20 is not of finite numbers"),
        ("a 0.5 5 1 3 20", "line 2, image 'a': the box from x 4 to 3, y 0 to 20 has a negative width"),
        ("a 0.5 1 1 10 200", "line 2, image 'a': the box from x 0 to 10, y 0 to 200 reaches beyond the image"),
    ],
)
def test_a_wrong_line_of_the_devkits_files_is_named(of_comp4, line, message):
    said = refused(of_comp4, {"big_cat": f"a 0.5 1 1 10 20\n{line}\n"})
    assert "comp4_det_val_big_cat.txt, line 2" in said and message in said


def test_boxes_of_the_devkits_files_are_cut_if_asked_to(of_comp4):
    assert rows(of_comp4({"cat": "a 0.5 1 1 10 200\n"}, clip=True))[0][3] == (0, 0, 10, 80)


# melm's own


def found_in(size=SIZE, names=("dog", "cat")):
    return Detections(
        np.array([[1, 2, 4, 6], [0, 0, 10, 10]], np.float32),
        np.array([0.1, 0.9], np.float32),
        np.array([1, names.index("cat")]),
        names,
        *size,
    )


def write_own(folder, results, names=("dog", "cat")):
    with ResultsFile(folder, names, {}) as file:
        for id, found in results:
            file.append(id, f"{id}.jpg", found)
    return folder


def test_our_own_results_are_read_from_the_file_or_its_folder(tmp_path):
    nothing = no_detections(("dog", "cat"), 5, 5)
    write_own(tmp_path, [("a", found_in()), ("b", found_in()), ("7", nothing)])
    write_text(tmp_path / "comp4_det_val_cat.txt", "7 0.5 1 1 10 20\n")  # written by the same command
    for path in (tmp_path, tmp_path / "detections.jsonl"):
        found = read_detections(path, TRUTH)
        assert list(found) == ["a", "sub/b"] and found["a"].names == NAMES
        assert found["a"].class_names() == ["cat", "cat"]
        np.testing.assert_array_equal(found["a"].scores, np.array([0.9, 0.1], np.float32))
        assert found["a"].boxes.tolist() == [[0, 0, 10, 10], [1, 2, 4, 6]]


def test_our_own_labels_are_read_from_their_folder(tmp_path):
    found = found_in().best(2)
    with LabelsFile(tmp_path, found.names, {}, {}) as file:
        file.append(LabelledImage("a", Path("a.jpg"), ("cat",), found, np.array([True, False])))
    (back,) = read_detections(tmp_path, TRUTH).values()
    np.testing.assert_array_equal(back.boxes, found.boxes)
    assert back.class_names() == found.class_names()


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([("a", found_in()), ("d", found_in())], "detections.jsonl, line 2: unknown image 'd'"),
        ([("a", found_in((50, 40)))], "line 1, image 'a': detected in 50 x 40 pixels, but the image has 100 x 80"),
        ([("a", found_in()[[0]]), ("b", found_in())], ""),
        ([], "detections.jsonl: empty: no image was looked at"),
    ],
)
def test_our_own_results_of_other_images_are_refused(tmp_path, results, message):
    write_own(tmp_path, results)
    if message:
        assert message in refused(read_detections, tmp_path, TRUTH)
    else:
        assert list(read_detections(tmp_path, TRUTH)) == ["a", "sub/b"]


def test_our_own_results_of_another_class_are_refused(tmp_path):
    names = ("cot", "cat")
    found = Detections(np.array([[1, 2, 4, 6]]), np.array([0.1]), np.array([0]), names, *SIZE)
    write_own(tmp_path, [("a", found)], names)
    said = refused(read_detections, tmp_path, TRUTH)
    assert "detections.jsonl, line 1, image 'a': unknown class 'cot'. Did you mean 'cat'?" in said


def test_our_own_results_with_an_image_twice_are_refused(tmp_path):
    path = write_own(tmp_path, [("a", found_in())]) / "detections.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    assert "line 2, image 'a': the image is there twice" in refused(read_detections, path, TRUTH)


def test_our_own_results_that_were_cut_are_refused(tmp_path):
    path = write_own(tmp_path, [("a", found_in())]) / "detections.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert "detections.jsonl, line 1: damaged" in refused(read_detections, path, TRUTH)


# Anything else


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("r.txt", b"a 0.5 1 1 10 20\n"),
        ("r.quoted", b'"image,class'),
        ("r.pkl", b"\x80\x04\x95\xff"),
        ("r.xml", b"<annotation/>"),
        ("folder/notes.txt", b"hello"),
        ("folder/comp4_det.txt", b""),
    ],
)
def test_what_is_not_known_is_answered_with_what_is(tmp_path, name, data):
    (tmp_path / "folder").mkdir()
    (tmp_path / name).write_bytes(data)
    path = tmp_path / name.split("/")[0]
    said = refused(read_detections, path, TRUTH)
    assert str(path) in said
    for kind in ("COCO's results JSON", "CSV", "comp4_det_SPLIT_CLASS.txt", "detections.jsonl"):
        assert kind in said


def test_text_that_cannot_be_decoded_is_refused(tmp_path):
    (tmp_path / "r.csv").write_bytes("image".encode("utf-16") + b"x")
    assert "r.csv: not readable as text" in refused(read_detections, tmp_path / "r.csv", TRUTH)


def test_a_file_of_the_devkit_that_is_a_folder_is_refused(of_comp4, tmp_path):
    (tmp_path / "voc/comp4_det_val_cat.txt").mkdir(parents=True)
    assert "comp4_det_val_cat.txt: cannot be read" in refused(of_comp4, {"cat": None})


def test_of_a_single_file_of_the_devkit_the_folder_is_asked_for(tmp_path):
    path = write_text(tmp_path / "comp4_det_val_cat.txt", "a 0.5 1 1 10 20\n")
    assert f"Name the folder: {tmp_path}." in refused(read_detections, path, TRUTH)


def test_a_path_with_nothing_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'r.json'}: there is no such file or folder")):
        read_detections(tmp_path / "r.json", TRUTH)


# What our own writers wrote comes back

FEW = settings(max_examples=40, deadline=None)
ODD = ["a b", " a", "猫 2", "12", "012", "a_b", "b", "_", "x.y", "1e3", "-5", "nan", 'q"', "a,b;c\td", "true"]
WORD = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1, max_size=5)
NAME = st.one_of(st.sampled_from(ODD), WORD, st.lists(WORD, min_size=2, max_size=3).map("_".join))
ID = st.one_of(NAME, st.lists(NAME, min_size=2, max_size=3).map("/".join))
SCORE = st.floats(0, 1, width=32)


@st.composite
def results(draw, id=ID, name=NAME):
    """A truth, and detections in some of its images; no score is there twice in an image."""
    names = tuple(draw(st.lists(name, min_size=1, max_size=4, unique=True)))
    ids = draw(st.lists(id, min_size=1, max_size=5, unique=True))
    written = []
    for one in draw(st.lists(st.sampled_from(ids), unique=True)):
        scores = draw(st.lists(SCORE, max_size=4, unique=True))
        edges = st.tuples(st.floats(0, SIZE[0], width=32), st.floats(0, SIZE[1], width=32))
        pairs = draw(st.lists(st.tuples(edges, edges), min_size=len(scores), max_size=len(scores)))
        boxes = [[min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1])] for a, b in pairs]
        classes = draw(st.lists(st.integers(0, len(names) - 1), min_size=len(scores), max_size=len(scores)))
        arrays = np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(classes, np.intp)
        written.append((one, f"{one}.jpg", Detections(*arrays, names, *SIZE)))
    return truth_of(ids, names), written


def assert_same(found, written, atol=0.0):
    assert set(found) == {id for id, _, these in written if len(these)}
    for id, _, these in written:
        if len(these):
            best = np.argsort(-these.scores)
            assert found[id].class_names() == these[best].class_names()
            np.testing.assert_array_equal(found[id].scores.astype(np.float32), these.scores[best])
            np.testing.assert_allclose(found[id].boxes.astype(np.float32), these.boxes[best], rtol=0, atol=atol)


@FEW
@given(results(st.one_of(ID, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))))
def test_our_table_comes_back(made):
    truth, written = made
    with tempfile.TemporaryDirectory() as folder:
        write_table(written, Path(folder, "t.csv"))
        assert_same(read_detections(Path(folder, "t.csv"), truth), written)


@FEW
@given(results(st.one_of(ID, st.text(min_size=1)), st.one_of(NAME, st.text(min_size=1))), st.booleans())
def test_our_coco_results_come_back_by_name_and_by_number(made, by_number):
    truth, written = made
    numbers = dict(enumerate(truth.images)), dict(enumerate(truth.classes, 5))
    truth = truth_of(truth.images, truth.classes, image_numbers=numbers[0], class_numbers=numbers[1])
    written_as = [{name: n for n, name in these.items()} if by_number else None for these in numbers]
    with tempfile.TemporaryDirectory() as folder:
        write_coco_results(written, Path(folder, "r.json"), *written_as)
        assert_same(read_detections(Path(folder, "r.json"), truth), written, atol=1e-5)


@FEW
@given(
    results(ID.filter(lambda id: id.split() == [id]), NAME.filter(str.isprintable)),
    st.sampled_from(["val", "test_b", "2007_a"]),
    st.booleans(),
)
@example((truth_of(["a"], ["cat", "b_cat", "b"]), []), "val", False)
@example((truth_of(["a"], ["a_a", "a"]), []), "a", False)
@example(
    (
        truth_of(["a"], ["cat"]),
        [("a", "", Detections(np.array([[6e-10, 0, 6e-10, 5]]), np.array([1.0]), np.array([0]), ("cat",), *SIZE))],
    ),
    "val",
    True,
)
def test_our_files_for_the_devkit_come_back(made, split, named):
    truth, written = made
    with tempfile.TemporaryDirectory() as folder:
        write_comp4(written, Path(folder), split, truth.classes)
        assert_same(read_detections(Path(folder), truth, split=split if named else None), written, atol=1e-5)


# No file makes it fail in other than plain words

VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["a", "cat", 100, 10]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CHANGED = st.dictionaries(st.sampled_from(sorted(ENTRY)), VALUE, max_size=2).map(lambda changes: ENTRY | changes)
CUT = st.tuples(st.lists(VALUE | CHANGED, max_size=3), st.integers(0, 200)).map(lambda p: json.dumps(p[0])[: p[1]])
CELL = st.sampled_from(["image", "class", "score", "bbox", "a", "cat", "0.5", "1 2 3 4", "nan", ""]) | st.text(
    max_size=4
)
TABLE = st.lists(st.lists(CELL, max_size=5).map(",".join), max_size=4).map(lambda r: "\n".join([HEADER.strip(), *r]))
LINES = st.lists(st.lists(CELL | st.just("a"), max_size=7).map(" ".join), max_size=4).map("\n".join)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["r.json", "r.csv", "r.txt", "r.jsonl", "comp4_det_val_cat.txt"]),
    st.one_of(CUT, TABLE, LINES, st.text(max_size=20)).map(lambda text: text.encode(errors="replace")) | st.binary(),
    st.booleans(),
)
def test_any_file_is_read_or_refused_in_words(name, data, clip):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        try:
            found = read_detections(path.parent if "comp4" in name else path, truth_of(["a"], ["cat"]), clip)
        except MelmError as error:
            assert str(path.parent) in str(error)
        else:
            assert all(np.isfinite(these.boxes).all() and np.isfinite(these.scores).all() for these in found.values())
