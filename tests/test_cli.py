"""The command line: help with examples, exit codes, and words for mistakes."""

import json
import os

import pytest

import melm as package
from conftest import melm, save_scenes
from melm.commands.learning import learning_config

COMMANDS = ["check", "proposals"]


def test_version():
    result = melm("--version")
    assert result.returncode == 0 and result.stdout == f"melm {package.__version__}\n"


@pytest.mark.parametrize("command", [[], *[[c] for c in COMMANDS]])
def test_help_has_an_example(command):
    result = melm(*command, "--help")
    assert result.returncode == 0 and "Example:\n" in result.stdout and "\n    melm " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chek", "x"], "Did you mean 'check'"),
        (["check"], "Missing argument 'DATA'"),
        (["check", "{photos}", "--fromat", "voc"], "Did you mean '--format'"),
        (["check", "{photos}", "--format", "yollo"], "Did you mean 'yolo'"),
        (["check", "{photos}", "--workers", "0"], "--workers"),
        (["proposals", "{photos}", "--method", "selectiv-search"], "Did you mean 'selective-search'"),
        (["proposals", "{photos}", "--method", "file"], "needs --file"),
        (["proposals", "{photos}", "--method", "edge-boxes", "--file", "x.mat"], "takes no --file"),
        (["check", "{photos}", "--classes", "round,squre"], "Did you mean 'square'"),
        (["check", "{photos}", "--classes", ","], "names separated by commas"),
        (["check", "{photos}", "--background", "sqare"], "Did you mean 'square'"),
        (["check", "{photos}", "--split", "val"], "there is no split 'val'"),
        (["check", "{photos}", "--images", "{photos}"], "--images does not go with the format folders"),
        (["proposals", "{photos}", "--recall", "--plot", "nowhere/x.png"], "no such folder"),
        (["proposals", "{photos}", "--recall", "--plot", "x.xyz"], "ends in .png"),
        (["proposals", "{photos}", "--max-boxes", "0"], "at least 1"),
        (["proposals", "{photos}", "--max-boxes", "many"], "not a valid int"),
    ],
)
def test_wrong_use_ends_with_2(tmp_path, arguments, words):
    photos = save_scenes(tmp_path / "photos", 2)
    result = melm(*[a.format(photos=photos) for a in arguments])
    assert result.returncode == 2, result.stderr
    assert words in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "nowhere"], "nowhere: there is no such file or folder"),
        (["check", "{photos}", "--format", "voc"], "not PASCAL VOC"),
        (["proposals", "{photos}", "--recall"], "no boxes to measure against"),
        (["proposals", "{photos}", "--file", "nowhere.mat"], "nowhere.mat: cannot be read"),
    ],
)
def test_problems_end_with_1(tmp_path, arguments, words):
    photos = save_scenes(tmp_path / "photos", 2)
    result = melm(*[a.format(photos=photos) for a in arguments])
    assert result.returncode == 1, result.stderr
    assert words in result.stderr and "Traceback" not in result.stderr


def test_recall_table_plot_and_json(tmp_path):
    from writers import Picture, Thing, write_coco

    pictures = [Picture(f"{i}.png", [Thing("thing", (20, 20, 100, 90))], (160, 120)) for i in range(3)]
    write_coco(tmp_path / "data", pictures)
    plot = tmp_path / "curve.png"
    arguments = [
        "proposals",
        tmp_path / "data",
        "--recall",
        "--plot",
        plot,
        "--method",
        "edge-boxes",
        "--min-side",
        "5",
    ]
    result = melm(*arguments)
    assert result.returncode == 0, result.stderr
    assert "mean average best overlap" in result.stdout and "all objects" in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(melm(*arguments, "--json").stdout)
    assert figures["already_there"] == 3 and figures["recall"]["objects"] == 3
    assert 0 <= figures["recall"]["recall_50"] <= 1 and figures["recall"]["seconds_per_image_and_core"] > 0


def test_recall_leaves_out_what_is_broken(tmp_path):
    from writers import Picture, Thing, write_coco

    write_coco(tmp_path, [Picture(f"{i}.png", [Thing("thing", (20, 20, 100, 90))], (160, 120)) for i in range(3)])
    broken = next(tmp_path.rglob("1.png"))
    broken.write_bytes(b"x")
    result = melm("proposals", tmp_path, "--recall", "--plot", tmp_path / "c.png", "--method", "edge-boxes")
    assert result.returncode == 1 and "2 computed, 0 already there, 1 failed" in result.stdout
    assert "ERROR: boxes left out (1)" in result.stdout and "mean average best overlap" in result.stdout


def test_file_names_that_are_not_utf_8(tmp_path):
    photos = save_scenes(tmp_path / "photos", 2)
    (photos / "round" / "001.png").rename(photos / "round" / os.fsdecode(b"\xc3\xa8\xff.png"))
    (photos / "round" / os.fsdecode(b"bad\xff.png")).write_bytes(b"x")
    result = melm("check", photos, env=os.environ | {"PYTHONIOENCODING": "ascii:strict"})
    assert result.returncode == 1 and "bad" in result.stdout and "Traceback" not in result.stderr


def test_output_into_a_closed_pipe(tmp_path):
    import subprocess
    import sys

    photos = save_scenes(tmp_path / "photos", 2)
    shell = f"{sys.executable} -m melm check {photos} --all | true"
    assert "Traceback" not in subprocess.run(["bash", "-c", shell], capture_output=True, text=True).stderr


@pytest.mark.parametrize(
    ("given", "boxes"),
    [
        ({}, ("edge-boxes", 800)),
        ({"max_boxes": 300}, ("edge-boxes", 300)),
        ({"proposal_method": "edge-boxes"}, ("edge-boxes", 800)),
        ({"proposal_method": "selective-search"}, ("selective-search", 2000)),
        ({"proposal_method": "selective-search", "max_boxes": 300}, ("selective-search", 300)),
    ],
)
def test_what_is_not_said_of_proposals_is_the_presets(given, boxes):
    options = dict.fromkeys(("backbone", "weights", "weights_sha256", "precision", "file", "file_boxes", "method"))
    options |= {"proposal_method": None, "max_boxes": None, "preset": "fast", "changes": (), **given}
    config, ready_made = learning_config(options, {})
    assert (config.proposals.method, config.proposals.max_boxes) == boxes and ready_made is None
