"""`melm detect` as a whole: what it takes, what it writes, and going on after it was killed."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import melm
from learners import in_turns, small_train
from melm.detect.results import read_results
from melm.measure.truth import read_truth


def results_of(out):
    return {id: found for id, _, found in read_results(out / "detections.jsonl")}


def assert_same(found, other):
    np.testing.assert_array_equal(found.boxes, other.boxes)
    np.testing.assert_array_equal(found.scores, other.scores)
    np.testing.assert_array_equal(found.classes, other.classes)


def detect(command, run, *rest):
    return command("detect", run, *rest, "--workers", 1, "--device", "cpu")


def test_a_folder_of_images(small_scenes, learned, command, tmp_path):
    """What is written is what `melm.load` gives, bit for bit."""
    out = tmp_path / "out"
    result = detect(command, learned.run, small_scenes / "test", "--out", out)
    assert result.returncode == 0 and "4 images in" in result.stdout, result.stderr
    results = results_of(out)
    assert list(results) == ["00000", "00001", "00002", "00003"]
    detector = melm.load(learned.run, device="cpu")
    for id, found in results.items():
        assert_same(found, detector(small_scenes / "test" / f"{id}.jpg"))
    rows = list(csv.DictReader((out / "detections.csv").open()))
    assert len(rows) == sum(map(len, results.values()))
    assert {row["class"] for row in rows} <= set(detector.classes)
    best = next(row for row in rows if row["image"] == "00002")
    assert float(best["score"]) == pytest.approx(float(results["00002"].scores[0]))


def test_stored_features_serve_and_say_the_same(small_scenes, learned, shared_cache, command, tmp_path):
    """Of images that were learned from, features are at hand, in half precision."""
    photo = small_scenes / "train" / "00005.jpg"
    options = ("--max-boxes", 0, "--nms", 1, "--vote", 0)
    assert detect(command, learned.run, photo, "--out", tmp_path / "stored", *options).returncode == 0
    (stored,) = results_of(tmp_path / "stored").values()
    fresh = melm.load(learned.run, melm.DetectSettings(max_boxes=0, nms=1.0, vote=0.0), "cpu")(photo)
    by_box = [
        {(int(k), *box): score for box, k, score in zip(f.boxes.tolist(), f.classes, f.scores, strict=True)}
        for f in (stored, fresh)
    ]
    assert by_box[0].keys() == by_box[1].keys()
    apart = [abs(score - by_box[1][key]) for key, score in by_box[0].items()]
    assert max(apart) < 2e-3


def test_files_by_name(small_scenes, learned, command, tmp_path):
    photos = [small_scenes / "test" / "00003.jpg", small_scenes / "train" / "00001.jpg"]
    assert detect(command, learned.run, *photos, "--out", tmp_path / "out").returncode == 0
    assert list(results_of(tmp_path / "out")) == ["00003", "00001"]
    result = detect(command, learned.run, *photos, small_scenes / "train" / "00003.jpg", "--out", tmp_path / "other")
    assert result.returncode == 1 and "has the same name as" in result.stderr


def test_a_split_of_a_data_set(small_scenes, learned, command, tmp_path):
    for i, split in enumerate(("train", "val", "val")):
        folder = tmp_path / "photos" / split / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(small_scenes / "test" / f"0000{i}.jpg", folder)
    result = detect(command, learned.run, tmp_path / "photos", "--split", "val", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert sorted(id.split("/")[-1] for id in results_of(tmp_path / "out")) == ["00001", "00002"]
    result = detect(command, learned.run, tmp_path / "photos", "--split", "vall", "--out", tmp_path / "other")
    assert result.returncode == 2 and "there is no split 'vall'" in result.stderr


def test_every_format_and_drawings(small_scenes, learned, command, tmp_path):
    data, out = small_scenes / "test.json", tmp_path / "out"
    formats = [word for name in ("table", "coco", "comp4") for word in ("--to", name)]
    options = ("--draw", "--draw-score", 0.1, "--max-boxes", 20)
    result = detect(command, learned.run, data, "--out", out, *formats, *options)
    assert result.returncode == 0, result.stderr
    results = results_of(out)
    assert results.keys() == read_truth(melm.Source(data)).images.keys()
    count = sum(map(len, results.values()))
    assert 0 < count <= 80 and len(list(csv.reader((out / "detections.csv").open()))) == count + 1
    coco = json.loads((out / "detections.coco.json").read_text())
    assert len(coco) == count and {entry["image_id"] for entry in coco} <= results.keys()
    classes = melm.load(learned.run).classes
    lines = {name: (out / f"comp4_det_test_{name}.txt").read_text().splitlines() for name in classes}
    assert sum(map(len, lines.values())) == count
    assert all(len(line.split()) == 6 for of_class in lines.values() for line in of_class)
    drawn = sorted((out / "drawn").iterdir())
    assert [path.stem for path in drawn] == [id.replace("/", "__") for id in sorted(results)]
    assert all(min(Image.open(path).size) >= 120 for path in drawn)


def test_drawings_inside_the_folder_are_not_looked_at_in_turn(own_scenes, learned, command):
    out = own_scenes / "test" / "found"
    for _ in range(2):
        result = detect(command, learned.run, own_scenes / "test", "--out", out, "--draw")
        assert result.returncode == 0 and "4 images in" in result.stdout, result.stderr
    assert len(results_of(out)) == len(list((out / "drawn").iterdir())) == 4


def test_a_bad_image_is_named_and_the_others_are_done(own_scenes, learned, command, tmp_path):
    bad, out = own_scenes / "test" / "00001.jpg", tmp_path / "out"
    good = bad.read_bytes()
    bad.write_bytes(good[:100])
    result = detect(command, learned.run, own_scenes / "test", "--out", out, "--draw")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"error: {bad}: " in result.stderr and "3 images in" in result.stdout and "1 failed" in result.stdout
    assert list(results_of(out)) == ["00000", "00002", "00003"]
    assert len(list((out / "drawn").iterdir())) == 3
    bad.write_bytes(good)
    result = detect(command, learned.run, own_scenes / "test", "--out", out)
    assert result.returncode == 0 and sorted(results_of(out)) == ["00000", "00001", "00002", "00003"]


def test_killed_detecting_goes_on(small_scenes, learned, shared_cache, tmp_path):
    """Killed twice with SIGKILL, it ends with the file of one that was not; looks in two views, so none is stored."""
    arguments = {
        name: [
            "detect",
            learned.run,
            small_scenes / "train",
            "--out",
            tmp_path / name,
            "--views",
            "flip",
            "--workers",
            1,
        ]
        for name in "ab"
    }
    straight, often = ({"arguments": [str(a) for a in arguments[name]]} for name in "ab")
    killed = {**often, "file": str(tmp_path / "b" / "detections.jsonl")}
    codes, said = in_turns([straight, {**killed, "lines": 2}, {**killed, "lines": 4}, often])
    assert codes == [0, -9, -9, 0], said
    assert (tmp_path / "a" / "detections.jsonl").read_bytes() == (tmp_path / "b" / "detections.jsonl").read_bytes()
    assert (tmp_path / "a" / "detections.csv").read_bytes() == (tmp_path / "b" / "detections.csv").read_bytes()
    assert len(results_of(tmp_path / "b")) == 13


def test_what_is_done_is_not_done_again(small_scenes, learned, command, tmp_path):
    first, out = small_scenes / "test" / "00000.jpg", tmp_path / "out"
    assert detect(command, learned.run, first, "--out", out).returncode == 0
    line = (out / "detections.jsonl").read_bytes()
    marked = line.replace(b"00000.jpg", b"xxxxx.jpg")  # were it done again, this would be gone
    (out / "detections.jsonl").write_bytes(marked)
    assert detect(command, learned.run, small_scenes / "test", "--out", out).returncode == 0
    assert (out / "detections.jsonl").read_bytes().startswith(marked) and len(results_of(out)) == 4


def test_other_settings_are_refused_and_overwrite_starts_anew(small_scenes, learned, shared_cache, command, tmp_path):
    photo, out = small_scenes / "test" / "00000.jpg", tmp_path / "out"
    assert detect(command, learned.run, photo, "--out", out).returncode == 0
    before = (out / "detections.jsonl").read_bytes()
    result = detect(command, learned.run, photo, "--out", out, "--branch", "discovery", "--nms", 0.5)
    assert result.returncode == 2
    assert 'branch: "all" there, "discovery" now' in result.stderr and "nms: null there, 0.5 now" in result.stderr
    other = small_train(small_scenes / "train-tags.csv", tmp_path / "run", learning_rate=0.01)
    result = detect(command, other, photo, "--out", out)
    assert result.returncode == 2 and "run.config.learning_rate: 0.001 there, 0.01 now" in result.stderr
    assert (out / "detections.jsonl").read_bytes() == before
    assert detect(command, other, photo, "--out", out, "--overwrite").returncode == 0
    assert (out / "detections.jsonl").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{scenes}", "{photo}"], 1, "{scenes}: not the folder of a run"),
        (["{tmp}/nowhere", "{photo}"], 1, "{tmp}/nowhere: there is no such run"),
        (["{run}", "{tmp}/nowhere"], 1, "{tmp}/nowhere: there is no such file or folder"),
        (["{run}", "{tmp}"], 1, "{tmp}: no images in it"),
        (["{run}", "{photo}", "--branch", "localization 7"], 2, "Did you mean 'localization"),
        (["{run}", "{photo}", "--views", "papr"], 2, "Did you mean 'paper'"),
        (["{run}", "{photo}", "--to", "coc"], 2, "Did you mean 'coco'"),
        (["{run}", "{photo}", "--nms", "2"], 2, "--nms is 2.0; 0 to 1 was expected"),
        (["{run}", "{photo}", "--proposals", "edge-boxes", "--file", "x.mat"], 2, "takes no --file"),
        (["{run}", "{photo}", "--proposals", "file"], 2, "needs --file"),
    ],
)
def test_wrong_use_is_told_and_nothing_is_written(small_scenes, learned, command, tmp_path, arguments, code, words):
    places = {"scenes": small_scenes, "run": learned.run, "tmp": tmp_path, "photo": small_scenes / "test" / "00000.jpg"}
    result = detect(command, *[a.format(**places) for a in arguments], "--out", tmp_path / "out")
    assert result.returncode == code and words.format(**places) in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "out").exists()


def test_other_proposals_can_be_asked_for(small_scenes, learned, command, tmp_path):
    photo = small_scenes / "test" / "00000.jpg"
    result = detect(command, learned.run, photo, "--out", tmp_path / "a", "--proposals", "selective-search")
    assert result.returncode == 0, result.stderr
    assert detect(command, learned.run, photo, "--out", tmp_path / "b").returncode == 0
    boxes = [{tuple(box) for box in results_of(tmp_path / name)["00000"].boxes.tolist()} for name in "ab"]
    assert boxes[0] and boxes[0] != boxes[1]
    settings = json.loads((tmp_path / "a" / "detections.settings.json").read_text())
    assert settings["proposals"]["method"] == "selective-search" and settings["branch"] == "all"
