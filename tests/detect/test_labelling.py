"""`melm label` as a whole: which images get which boxes, what it says, and going on after it was stopped."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import melm
from conftest import draw_scene
from melm.boxes import iou
from melm.data import Source, read_tags
from melm.detect.labelling import LabelSettings, label_images
from melm.detect.labels import Labels
from melm.errors import MelmError


def label(command, run, *rest):
    return command("label", run, *rest, "--workers", 1, "--device", "cpu")


def test_only_tags_are_labelled_and_every_tag_is(small_scenes, learned, shared_cache, command, tmp_path):
    data = small_scenes / "train-tags.csv"
    result = label(command, learned.run, data, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    images, labels = read_tags(Source(data)), {image.id: image for image in Labels(tmp_path / "out")}
    assert labels.keys() == {image.id for image in images}
    for image in images:
        found = labels[image.id].found
        assert set(found.class_names()) == set(image.tags)
        best = [found.class_names()[i] for i in np.flatnonzero(labels[image.id].best)]
        assert sorted(best) == sorted(image.tags), "one best box for each tag"
        assert (found.boxes >= 0).all() and (found.boxes[:, 2] <= 160).all() and (found.boxes[:, 3] <= 120).all()
    rows = list(csv.DictReader((tmp_path / "out" / "csv" / "labels.csv").open()))
    assert len(rows) == sum(len(image.found) for image in labels.values())
    doubts = [float(row["doubt"]) for row in rows]
    assert doubts == sorted(doubts, reverse=True) and doubts[0] > 0


def test_the_best_box_is_the_detectors(small_scenes, learned, shared_cache, tmp_path):
    detector = melm.load(learned.run, device="cpu")
    images = read_tags(Source(small_scenes / "test-tags.csv"))
    label_images(detector, images, tmp_path, LabelSettings(alike=1.0))
    for image in Labels(tmp_path):
        assert len(image.found) == len(image.tags) and image.best.all()
        detected = detector(image.path).best_of(image.tags)
        assert (iou(image.found.boxes, detected.boxes).diagonal() > 0.999).all()


def test_goes_on_where_it_stopped(small_scenes, learned, shared_cache, command, tmp_path):
    data, out, once = small_scenes / "train-tags.csv", tmp_path / "out", tmp_path / "once"
    assert label(command, learned.run, data, "--out", once).returncode == 0
    assert label(command, learned.run, data, "--limit", 5, "--out", out).returncode == 0
    lines = (out / "labels.jsonl").read_bytes().splitlines(keepends=True)
    (out / "labels.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])  # as a kill leaves it
    assert label(command, learned.run, data, "--out", out).returncode == 0
    assert sorted((out / "labels.jsonl").read_bytes().splitlines()) == sorted(
        (once / "labels.jsonl").read_bytes().splitlines()
    )
    rows = [sorted((folder / "csv" / "labels.csv").read_text().splitlines()) for folder in (out, once)]
    assert rows[0] == rows[1]


def test_several_formats_of_the_same_labels(small_scenes, learned, shared_cache, command, tmp_path):
    data, out = small_scenes / "train-tags.csv", tmp_path / "out"
    assert label(command, learned.run, data, "--out", out).returncode == 0
    before = (out / "labels.jsonl").read_bytes()
    every = [word for format in ("coco", "voc", "yolo", "labelstudio", "cvat") for word in ("--to", format)]
    result = label(command, learned.run, data, "--out", out, *every)
    assert result.returncode == 0, result.stderr
    assert (out / "labels.jsonl").read_bytes() == before
    written = [line.removeprefix("written: ") for line in result.stdout.splitlines() if line.startswith("written: ")]
    assert len(written) == 6
    found = read_tags(Source(out / "voc"))
    assert len(found) == 13
    (coco,) = [path for path in written if "coco" in path]
    boxes = json.loads(Path(coco).read_text())["annotations"]
    assert len(boxes) == sum(len(image.found) for image in Labels(out))
    assert all(0 <= box["score"] <= 1 for box in boxes)


def test_an_image_that_cannot_be_read_is_named_and_the_others_are_done(own_scenes, learned, command, tmp_path):
    (own_scenes / "train" / "00004.jpg").write_bytes(b"not an image")
    result = label(command, learned.run, own_scenes / "train-tags.csv", "--out", tmp_path / "out")
    assert result.returncode == 1 and "00004.jpg: not an image" in result.stderr
    assert len(Labels(tmp_path / "out")) == 12


def test_an_image_without_proposals_gets_the_whole_of_it(learned, command, tmp_path):
    name = melm.load(learned.run, device="cpu").classes[0]
    (tmp_path / "photos" / name).mkdir(parents=True)
    Image.new("RGB", (14, 12), "red").save(tmp_path / "photos" / name / "tiny.png")
    out = tmp_path / "out"
    assert label(command, learned.run, tmp_path / "photos", "--out", out).returncode == 0
    (image,) = Labels(out)
    assert image.found.boxes.tolist() == [[0, 0, 14, 12]] and image.best.tolist() == [True]


def test_tags_that_were_not_learned(small_scenes, learned, shared_cache, command, tmp_path):
    detector = melm.load(learned.run, device="cpu")
    rows = [f"train/00001.jpg,{detector.classes[0]}|unicorn\n", "train/00002.jpg,\n"]
    (tmp_path / "tags.csv").write_text("file,tags\n" + "".join(rows))
    result = label(command, learned.run, tmp_path / "tags.csv", "--images", small_scenes, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "No boxes for the tag 'unicorn' (1 images)" in result.stdout
    by_id = {image.id: image for image in Labels(tmp_path / "out")}
    assert by_id["train/00001"].tags == (detector.classes[0],) and not len(by_id["train/00002"].found)
    (tmp_path / "tags.csv").write_text(f"file,tags\ntrain/00001.jpg,{detector.classes[0]}x\n")
    result = label(command, learned.run, tmp_path / "tags.csv", "--images", small_scenes, "--out", tmp_path / "b")
    assert result.returncode == 1 and f"Did you mean '{detector.classes[0]}'?" in result.stderr.replace('"', "'")


def test_data_without_tags(small_scenes, learned, tmp_path):
    (tmp_path / "tags.csv").write_text("file,tags\ntrain/00001.jpg,\n")
    images = read_tags(Source(tmp_path / "tags.csv", images=small_scenes))
    with pytest.raises(MelmError, match=r"no image has a tag.*melm detect"):
        label_images(melm.load(learned.run, device="cpu"), images, tmp_path / "out")


MEMORY = """
import resource, sys
from pathlib import Path
from melm.data import Source, read_tags
from melm.detect.detector import load
from melm.detect.labelling import label_images
from melm.detect.labels import Labels
from melm.export.labels import ExportSettings, write_exports
run, data, out = sys.argv[1:]
label_images(load(run, None, "cpu"), read_tags(Source(data)), Path(out))
write_exports(Labels(Path(out)), [(name, ExportSettings()) for name in ("csv", "coco", "yolo", "labelstudio")])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images(learned, tmp_path):
    """Peak memory of labelling 100 images and of labelling 1,000 differs by less than 5 %."""
    name = melm.load(learned.run, device="cpu").classes[0]
    peaks = {}
    for count in (100, 1000):
        folder = tmp_path / str(count) / name
        folder.mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw_scene(i)[0]).save(folder / f"{i:04d}.jpg")
        arguments = [str(learned.run), str(folder.parent), str(tmp_path / f"out-{count}")]
        done = subprocess.run([sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True)
        peaks[count] = int(done.stdout)
        assert len(Labels(tmp_path / f"out-{count}")) == count
        shutil.rmtree(folder)
    assert peaks[1000] < 1.05 * peaks[100], peaks
