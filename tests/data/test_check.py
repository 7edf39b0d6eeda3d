"""`check` on data with every kind of fault, and on real data."""

import json

import numpy as np
import pytest
from PIL import Image

from conftest import draw_scene, melm, save_scenes
from melm.data import DataError, Source
from melm.data.check import check


def kinds(report, severity=None):
    return sorted({p.kind for p in report.problems if severity in (None, p.severity)})


def look(path, **options):
    return check(Source(path, **options), workers=1)


def scene(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw_scene(seed)[0]).save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    return save_scenes(tmp_path / "photos", 6)


def test_clean_data(photos):
    report = look(photos)
    assert report.ok and not report.problems
    assert (report.format, report.images, report.usable) == ("folders", 6, 6)
    assert report.classes == {"round": 3, "square": 3}
    assert report.tags_per_image == {1: 6}
    assert report.sizes["median"] == [160, 120]


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("empty.jpg", lambda p: p.write_bytes(b""), "the file is empty"),
        ("text.jpg", lambda p: p.write_text("hello, world"), "not an image (12 bytes)"),
        ("cut.jpg", lambda p: p.write_bytes(scene(p).read_bytes()[:-900]), "broken image"),
        ("cut.png", lambda p: p.write_bytes(scene(p).read_bytes()[:-9000]), "broken image"),
    ],
)
def test_unreadable_images(photos, name, spoil, words):
    spoil(photos / "round" / name)
    report = look(photos)
    assert not report.ok and kinds(report) == ["unreadable image"]
    assert report.problems[0].file.endswith(name) and words in report.problems[0].message
    assert report.usable == 6


def test_missing_files(tmp_path):
    scene(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("file,tags\na.png,cat\nb.png,dog\n")
    report = look(tmp_path / "t.csv")
    assert kinds(report, "error") == ["class without images", "missing file"]
    assert report.problems[1].file == str(tmp_path / "b.png")


def test_duplicates(photos, tmp_path):
    (photos / "round" / "copy.png").write_bytes((photos / "round" / "001.png").read_bytes())
    report = look(photos)
    assert report.ok and kinds(report, "warning") == ["duplicate image"]
    scene(tmp_path / "a.png", 1)
    scene(tmp_path / "b.png", 1)
    scene(tmp_path / "c.png", 2)
    (tmp_path / "t.csv").write_text("file,tags\na.png,cat\nb.png,dog\nc.png,cat|dog\n")
    report = look(tmp_path / "t.csv")
    assert kinds(report, "error") == ["duplicate image with different tags"]
    assert "tags dog here and cat there" in report.problems[0].message


@pytest.mark.parametrize("names", [("Cat", "cat"), ("traffic light", "traffic_light"), ("ｃａｔ", "cat")])
def test_almost_equal_class_names(tmp_path, names):
    for i, name in enumerate(names):
        scene(tmp_path / "d" / name / f"{i}.png", i)
    assert "almost equal class names" in kinds(look(tmp_path / "d"), "error")


def test_different_class_names_are_not_almost_equal(tmp_path):
    for i, name in enumerate(("C", "C++", "猫", "狗")):
        scene(tmp_path / "d" / name / f"{i}.png", i)
    assert look(tmp_path / "d").ok


def test_images_without_tags(tmp_path):
    for i, name in enumerate("abc"):
        scene(tmp_path / f"{name}.png", i)
    (tmp_path / "t.csv").write_text("file,tags\na.png,cat\nb.png,dog\nc.png,\n")
    report = look(tmp_path / "t.csv")
    assert report.ok and kinds(report) == ["image without tags"] and report.tags_per_image == {0: 1, 1: 2}


def test_one_class_needs_images_without_it(tmp_path):
    scene(tmp_path / "d" / "cat" / "1.png", 1)
    assert kinds(look(tmp_path / "d"), "error") == ["one class and no image without it"]
    scene(tmp_path / "d" / "none" / "2.png", 2)
    report = look(tmp_path / "d")
    assert report.ok and kinds(report) == ["background as a class"]
    report = look(tmp_path / "d", background="none")
    assert report.ok and report.classes == {"cat": 1} and report.tags_per_image == {0: 1, 1: 1}


def test_boxes_outside_and_empty(tmp_path):
    scene(tmp_path / "a.png")
    boxes = {
        1: [0, 0, 160, 120],
        2: [150, 10, 30, 30],
        3: [10, 10, 0, 30],
        4: [-5, 0, 30, 30],
        5: [130, 90, 30.5, 30.5],
    }
    coco = {
        "images": [{"id": 1, "file_name": "a.png", "width": 160, "height": 120}, {"id": 2, "file_name": "b.png"}],
        "annotations": [{"id": i, "image_id": 1, "category_id": 1, "bbox": box} for i, box in boxes.items()],
        "categories": [{"id": 1, "name": "cat"}],
    }
    scene(tmp_path / "b.png", 5)
    (tmp_path / "a.json").write_text(json.dumps(coco))
    report = look(tmp_path / "a.json")
    found = [(p.kind, p.message) for p in report.problems if "box" in p.kind]
    assert report.ok  # boxes do not spoil training: it never sees them
    assert sorted(found) == [  # half a pixel over the edge is no fault
        ("box outside the image", "x -5 to 25, y 0 to 30 in 160 x 120 pixels"),
        ("box outside the image", "x 150 to 180, y 10 to 40 in 160 x 120 pixels"),
        ("empty box", "x 10 to 10, y 10 to 40 in 160 x 120 pixels"),
    ]
    coco["images"][0]["width"] = 80
    (tmp_path / "a.json").write_text(json.dumps(coco))
    assert "boxes of another size" in kinds(look(tmp_path / "a.json"), "warning")


def test_no_usable_image(tmp_path):
    (tmp_path / "d" / "cat").mkdir(parents=True)
    (tmp_path / "d" / "cat" / "1.jpg").write_bytes(b"x")
    assert "no usable image" in kinds(look(tmp_path / "d"), "error")
    (tmp_path / "t.csv").write_text("file,tags\n")
    with pytest.raises(DataError, match="no images in it"):
        look(tmp_path / "t.csv")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no data set that melm knows"):
        look(tmp_path / "nothing")


def test_odd_images_are_said(photos):
    Image.fromarray(np.full((20, 300, 3), 9, np.uint8)).save(photos / "round" / "thin.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 4095, (64, 64)).astype(np.uint16)).save(
        photos / "round" / "x.tif"
    )
    pages = [Image.fromarray(draw_scene(i)[0]) for i in (50, 51)]
    pages[0].save(photos / "round" / "pages.tif", save_all=True, append_images=pages[1:])
    assert kinds(look(photos)) == ["dark 16-bit image", "several pages", "tiny image"]


def test_split_folders_are_not_classes(tmp_path):
    for i, name in enumerate(("train/cat", "test/cat", "backup/cat")):
        scene(tmp_path / "d" / name / f"{i}.png", i)
    with pytest.raises(DataError, match="test, train look like splits, backup does not"):
        look(tmp_path / "d")
    assert look(tmp_path / "d", split="train").images == 1
    for i, name in enumerate(("images", "annotations")):
        scene(tmp_path / "e" / name / f"{i}.png", i)
    assert kinds(look(tmp_path / "e"), "error") == ["folder that is hardly a class"]


def test_a_table_that_is_not_the_data(photos):
    (photos / "prices.csv").write_text("what,price\npear,3\n")
    assert look(photos).format == "folders"


def test_yolo_labels_without_an_image(tmp_path):
    from writers import Picture, Thing, write_yolo

    write_yolo(tmp_path, [Picture(f"{i}.png", [Thing(name, (2, 2, 9, 9))], (64, 64)) for i, name in enumerate("ab")])
    (next(tmp_path.rglob("0.txt")).parent / "gone.txt").write_text("0 .5 .5 .1 .1\n")
    report = look(tmp_path)
    assert [(p.kind, p.file.rsplit("/", 1)[1]) for p in report.problems if p.severity == "error"] == [
        ("missing file", "gone.txt")
    ]


def test_voc_lists_and_annotations_that_disagree(tmp_path):
    from writers import Picture, Thing, write_voc

    write_voc(tmp_path, [Picture(f"{i}.png", [Thing(name, (2, 2, 9, 9))], (64, 64)) for i, name in enumerate("ab")])
    xml = next(tmp_path.rglob("0.xml"))
    xml.write_text(xml.read_text().replace("<name>a</name>", "<name>b</name>"))
    assert kinds(look(tmp_path), "warning") == ["annotation and lists disagree"]


def test_many_classes(tmp_path):
    scene(tmp_path / "a.png", 1)
    scene(tmp_path / "b.png", 2)
    names = [f"class {i}" for i in range(500)]
    (tmp_path / "t.csv").write_text(f"file,tags\na.png,{'|'.join(names[:250])}\nb.png,{'|'.join(names[250:])}\n")
    report = look(tmp_path / "t.csv")
    assert report.ok and len(report.classes) == 500


def test_the_command(photos):
    (photos / "round" / "broken.jpg").write_bytes(b"x")
    result = melm("check", photos)
    assert result.returncode == 1
    assert "ERROR: unreadable image (1)" in result.stdout and "broken.jpg: not an image (1 bytes)" in result.stdout
    assert "1 problem would spoil training" in result.stdout
    report = json.loads(melm("check", photos, "--json").stdout)
    assert report["ok"] is False and report["usable"] == 6 and report["problems"][0]["kind"] == "unreadable image"
    (photos / "round" / "broken.jpg").unlink()
    result = melm("check", photos)
    assert result.returncode == 0 and "Ready: nothing wrong was found." in result.stdout


def test_long_lists_are_cut_unless_all_are_asked_for(photos):
    for i in range(14):
        (photos / "round" / f"broken{i}.jpg").write_bytes(b"x")
    assert "... and 4 more (--all prints every one)" in melm("check", photos).stdout
    assert melm("check", photos, "--all").stdout.count("not an image") == 14


def test_voc2007(voc2007):
    """Nothing is wrong with it, and the figures are those of its own lists and files."""
    report = look(voc2007, split="val")
    ids = (voc2007 / "ImageSets/Main/val.txt").read_text().split()
    cats = [line.split()[1] for line in (voc2007 / "ImageSets/Main/cat_val.txt").read_text().splitlines()]
    assert report.ok and not report.problems
    assert report.images == report.usable == len(ids) and len(report.classes) == 20
    assert report.classes["cat"] == cats.count("1") and report.unknown["cat"] == cats.count("0")
    assert report.boxes == sum((voc2007 / f"Annotations/{id}.xml").read_text().count("<object>") for id in ids)
