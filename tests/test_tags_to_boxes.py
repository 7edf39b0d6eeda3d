"""`melm run DATA`: the whole job, on the data sets that people really have."""

import json
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image

import melm
from conftest import draw_scene, save_scenes
from learners import alone, small_arguments
from melm.data import Source, read_image, read_tags
from melm.detect.labels import Labels
from melm.proposals import ProposalSettings, compute_proposals


def run(command, data, out, *rest, **changes):
    again = [] if "--retrain" in rest else ["--no-retrain"]
    return command("run", *small_arguments(data, out, **changes)[1:], *again, *rest)


def test_from_tags_to_boxes_and_once_more(small_scenes, command, tmp_path):
    """Everything is there after one command; the same command again learns nothing anew and says so."""
    out, data = tmp_path / "runs" / "creatures", small_scenes / "train-tags.csv"
    result = run(command, data, out, "--to", "yolo", "--to", "coco")
    assert result.returncode == 0, result.stderr
    for words in (
        "1 of 4: what is in",
        "Ready",
        "2 of 4: learning",
        "3 of 4: labelling",
        "4 of 4: the report",
        "Done.",
    ):
        assert words in result.stdout
    assert len(Labels(out / "labels")) == 13
    assert (out / "labels" / "yolo" / "data.yaml").is_file()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert melm.load(out, device="cpu").classes == Labels(out / "labels").classes
    kept = {name: (out / name).read_bytes() for name in ("model.json", "log.jsonl", "labels/labels.jsonl")}
    result = run(command, data, out, "--to", "yolo", "--to", "coco")
    assert result.returncode == 0, result.stderr
    assert "learned already" in result.stdout and "1 of 4" not in result.stdout
    assert kept == {name: (out / name).read_bytes() for name in kept}


@pytest.mark.slow
def test_two_processes_do_the_whole_job(small_scenes, shared_cache, tmp_path):
    """The first speaks and writes; labels are those of one process with the same detector."""
    out = tmp_path / "run"
    words = [*small_arguments(small_scenes / "train-tags.csv", out)[1:], "--no-retrain"]
    result = alone(
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "melm", "run", *words]
    )
    assert result.returncode == 0, result.stderr
    for said in ("1 of 4: what is in", "2 of 4: learning", "3 of 4: labelling", "4 of 4: the report", "Done."):
        assert result.stdout.count(said) == 1
    assert (out / "report.html").is_file() and (out / "labels" / "csv" / "labels.csv").is_file()
    again = [
        "-m",
        "melm",
        "label",
        out,
        small_scenes / "train-tags.csv",
        "--out",
        tmp_path / "labels",
        "--device",
        "cpu",
    ]
    assert alone([*again, "--workers", "1"]).returncode == 0
    assert (tmp_path / "labels" / "labels.jsonl").read_bytes() == (out / "labels" / "labels.jsonl").read_bytes()


def test_what_it_says_to_do_next_can_be_done(small_scenes, command, tmp_path):
    out, data = tmp_path / "a run", small_scenes / "train-tags.csv"
    said = run(command, data, out).stdout
    (line,) = [line for line in said.splitlines() if line.strip().startswith("melm label")]
    result = command(*shlex.split(line)[1:])
    assert result.returncode == 0 and (out / "labels" / "yolo" / "data.yaml").is_file(), result.stderr


def test_boxes_of_the_data_are_measured_and_not_learned_from(small_scenes, command, tmp_path):
    """Data with boxes: the report has scores, and the detector is the one that tags alone give."""
    outs = {}
    for name in ("train.json", "train-tags.csv"):
        outs[name] = tmp_path / name.replace(".", "-")
        assert run(command, small_scenes / name, outs[name]).returncode == 0
    log = [json.loads(line) for line in (outs["train.json"] / "log.jsonl").read_text().splitlines()]
    assert all("corloc" in line["measured"] for line in log if "mean" in line)
    weights = [(out / "model-1.safetensors").read_bytes() for out in outs.values()]
    assert weights[0] == weights[1]
    pages = [(out / "report.html").read_text() for out in outs.values()]
    assert ["CorLoc" in page for page in pages] == [True, False]


@pytest.mark.slow
def test_retrained(small_scenes, command, tmp_path):
    out = tmp_path / "run"
    result = run(command, small_scenes / "train-tags.csv", out, "--retrain", scales=(96, 144))
    assert result.returncode == 0, result.stderr
    assert "5 of 5: the report" in result.stdout and (tmp_path / "run-first" / "model.json").is_file()
    assert json.loads((out / "run.json").read_text())["retrained"] and len(Labels(out / "labels")) == 13


def folders(folder, names, count=4, size=(160, 120)):
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw_scene(100 * k + i, size)[0]).save(folder / name / f"{i}.jpg")
    return folder


def test_one_bad_image_is_named_before_the_work_and_can_be_left_out(command, tmp_path):
    photos = save_scenes(tmp_path / "photos", 8, ".jpg")
    (photos / "round" / "001.jpg").write_bytes((photos / "round" / "001.jpg").read_bytes()[:900])
    result = run(command, photos, tmp_path / "run")
    assert result.returncode == 1 and "round/001.jpg" in result.stdout
    assert "nothing was learned" in result.stderr and "--skip-bad" in result.stderr
    assert not (tmp_path / "run").exists()
    result = run(command, photos, tmp_path / "run", "--skip-bad")
    assert result.returncode == 0 and "001.jpg" in result.stderr, result.stderr
    assert len(Labels(tmp_path / "run" / "labels")) == 7


def test_one_class_and_images_without_it(command, tmp_path):
    photos = folders(tmp_path / "photos", ["scratch", "fine"])
    result = run(command, photos, tmp_path / "run", "--background", "fine")
    assert result.returncode == 0, result.stderr
    labels = {image.id: image for image in Labels(tmp_path / "run" / "labels")}
    assert {bool(len(image.found)) == id.startswith("scratch") for id, image in labels.items()} == {True}


def test_one_class_and_no_image_without_it_is_refused_in_plain_words(command, tmp_path):
    result = run(command, folders(tmp_path / "photos", ["cat"], count=30), tmp_path / "run")
    assert result.returncode == 1 and "--background" in result.stdout
    assert not (tmp_path / "run").exists()


def test_names_in_chinese_and_with_blanks(command, tmp_path):
    photos = folders(tmp_path / "my photos", ["黑 鸟", "big <cat> & co"])
    formats = [word for name in ("csv", "coco", "voc", "yolo", "labelstudio", "cvat") for word in ("--to", name)]
    result = run(command, photos, tmp_path / "a run", *formats)
    assert result.returncode == 0, result.stderr
    assert "黑 鸟" in result.stdout and "黑 鸟" in (tmp_path / "a run" / "report.html").read_text(encoding="utf-8")
    assert {tag for image in Labels(tmp_path / "a run" / "labels") for tag in image.tags} == {"黑 鸟", "big <cat> & co"}


def test_two_files_of_one_name_in_different_folders(command, tmp_path):
    photos = folders(tmp_path / "photos", ["cat", "dog"])  # cat/0.jpg and dog/0.jpg
    result = run(command, photos, tmp_path / "run", "--to", "yolo", "--to", "voc", "--images-as", "copy")
    assert result.returncode == 0, result.stderr
    copies = [*(tmp_path / "run" / "labels" / "yolo" / "images").rglob("*.jpg")]
    contents = {path.read_bytes() for path in copies}
    assert len(copies) == len(contents) == 8
    assert contents == {path.read_bytes() for path in photos.rglob("*.jpg")}


def test_an_option_that_a_recipe_does_not_take(command, tmp_path):
    (tmp_path / "r.toml").write_text("about = 'x'")
    result = command("run", "--recipe", tmp_path / "r.toml", "--data", tmp_path, "--retrain")
    assert result.returncode == 2 and "--retrain" in result.stderr
    result = command("run", "--out", tmp_path / "run")
    assert result.returncode == 2 and "name the data set" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["model.json", "labels/labels.jsonl", "report.html"])
def test_goes_on_after_any_step(small_scenes, command, tmp_path, stage):
    """As if it had been killed just before a file was there: the rest is made, and comes out the same."""
    out = tmp_path / "run"
    assert run(command, small_scenes / "train-tags.csv", out).returncode == 0
    labels = sorted((out / "labels" / "labels.jsonl").read_text().splitlines())
    after = ["model.json", "labels/labels.jsonl", "report.html"]
    for name in after[after.index(stage) :]:
        (out / name).unlink()
    if stage != "report.html":
        shutil.rmtree(out / "labels")
    assert run(command, small_scenes / "train-tags.csv", out).returncode == 0
    assert (out / "report.html").is_file()
    again = [json.loads(line) for line in sorted((out / "labels" / "labels.jsonl").read_text().splitlines())]
    for before, now in zip(map(json.loads, labels), again, strict=True):
        np.testing.assert_array_equal(before["boxes"], now["boxes"])


def test_a_folder_that_cannot_be_used_is_refused_before_the_work(small_scenes, command, tmp_path):
    data, out = small_scenes / "train-tags.csv", tmp_path / "mine"
    (out / "tensorboard").mkdir(parents=True)
    (out / "tensorboard" / "events").write_text("precious")
    for words in ([], ["--overwrite"], ["--retrain"], ["--retrain", "--overwrite"]):
        result = run(command, data, out, *words)
        assert result.returncode == 2 and "holds no run" in result.stderr and "1 of" not in result.stdout
    assert (out / "tensorboard" / "events").read_text() == "precious"
    assert run(command, data, "/").returncode == 2


def test_a_run_of_the_other_kind_is_refused_before_the_work(small_scenes, command, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"config": {}}))
    result = run(command, small_scenes / "train-tags.csv", tmp_path / "run", "--retrain")
    assert result.returncode == 2 and "melm retrain" in result.stderr and not (tmp_path / "run-first").exists()


@pytest.mark.slow
def test_boxes_of_a_file_serve_every_step(small_scenes, command, tmp_path):
    data, out = small_scenes / "train-tags.csv", tmp_path / "run"
    settings = ProposalSettings("edge-boxes", max_boxes=50)
    boxes = {i.id: compute_proposals(read_image(i.path), settings).boxes for i in read_tags(Source(data))}
    np.savez(tmp_path / "boxes.npz", **boxes)
    words = [word for word in small_arguments(data, out)[1:] if word not in ("--proposals", "edge-boxes")]
    result = command("run", *words, "--file", tmp_path / "boxes.npz", "--retrain")
    assert result.returncode == 0, result.stderr
    assert len(Labels(out / "labels")) == 13
    result = command("retrain", tmp_path / "run-first", data, "--out", tmp_path / "other")
    assert result.returncode == 2 and "Give it with --file" in result.stderr
