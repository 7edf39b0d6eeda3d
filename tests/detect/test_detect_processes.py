"""Many processes of torchrun find, label and draw what one does: the same files, byte for byte."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from learners import alone

TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "melm"]
ON_ONE_CORE = ("--workers", "1", "--device", "cpu")


@pytest.fixture
def one(command):
    """Runs the command line in this process on one thread, so that numbers can be compared bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda *arguments: command(*arguments, *ON_ONE_CORE)
    torch.set_num_threads(before)


def two(*arguments):
    return alone([*TWO, *arguments, *ON_ONE_CORE])


def files_in(folder):
    """The content of every file, which may name the folder itself."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes().replace(bytes(folder), b"HERE") for path in paths}


def assert_same_files(folder, other):
    files, others = files_in(folder), files_in(other)
    assert files.keys() == others.keys()
    assert [name for name, content in files.items() if content != others[name]] == []


def test_two_processes_detect_what_one_does(own_scenes, learned, shared_cache, one, tmp_path):
    """13 images and one that cannot be read, which is named once, by the first process."""
    bad = own_scenes / "train" / "00007b.jpg"
    bad.write_bytes(b"not an image")
    formats = [word for name in ("table", "coco", "comp4") for word in ("--to", name)]
    arguments = ["detect", learned.run, own_scenes / "train", *formats, "--draw", "--max-boxes", 20, "--out"]
    alone_ = one(*arguments, tmp_path / "one")
    both = two(*arguments, tmp_path / "two")
    assert alone_.returncode == both.returncode == 1, both.stderr
    assert both.stdout == alone_.stdout.replace(str(tmp_path / "one"), str(tmp_path / "two"))
    assert "13 images in" in both.stdout and both.stderr.count(f"error: {bad}: not an image") == 1
    assert_same_files(tmp_path / "two", tmp_path / "one")
    ids = [json.loads(line)["id"] for line in (tmp_path / "two" / "detections.jsonl").read_text().splitlines()]
    assert ids == [f"{i:05d}" for i in range(13)]
    assert len(list((tmp_path / "two" / "drawn").iterdir())) == 13


@pytest.mark.slow
def test_two_processes_label_what_one_does(small_scenes, learned, shared_cache, one, tmp_path):
    every = [word for name in ("csv", "coco", "voc", "yolo", "labelstudio", "cvat") for word in ("--to", name)]
    arguments = ["label", learned.run, small_scenes / "train-tags.csv", *every, "--images-as", "copy", "--out"]
    alone_ = one(*arguments, tmp_path / "one" / "labels")
    both = two(*arguments, tmp_path / "two" / "labels")
    assert alone_.returncode == both.returncode == 0, both.stderr
    assert both.stdout == alone_.stdout.replace(str(tmp_path / "one"), str(tmp_path / "two"))
    assert_same_files(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "two" / "labels" / "labels.jsonl").read_text().count("\n") == 13


def worker(launcher, rank):
    """The process id of one of torchrun's two workers."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if b"RANK=%d" % rank in environment and b"WORLD_SIZE=2" in environment:
            return int(child)
    raise AssertionError(f"no worker {rank}")


def lines_in(path):
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


@pytest.mark.slow
def test_a_killed_process_stops_all_and_one_goes_on(small_scenes, learned, shared_cache, one, tmp_path):
    """The second process is killed with SIGKILL while it works: torchrun ends the first, too, and one process takes up what
    both have done. Looks in two views, so none is stored."""
    arguments = ["detect", learned.run, small_scenes / "train", "--views", "flip", "--out"]
    assert one(*arguments, tmp_path / "straight").returncode == 0
    out, here = tmp_path / "killed", {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    own, part = out / "detections.jsonl", out / "detections.2-of-2.jsonl"
    with (tmp_path / "said").open("w") as said:
        words = [str(word) for word in (sys.executable, *TWO, *arguments, out, *ON_ONE_CORE)]
        launcher = subprocess.Popen(words, env=here, stdout=said, stderr=said)
        until = time.monotonic() + 120
        while len(lines_in(part)) < 2:
            assert launcher.poll() is None and time.monotonic() < until, (tmp_path / "said").read_text()
            time.sleep(0.001)
        os.kill(worker(launcher.pid, 1), signal.SIGKILL)
        assert launcher.wait(timeout=60) != 0
    assert "images in" not in (tmp_path / "said").read_text()
    assert len(lines_in(own)) + len(lines_in(part)) < 13, "it ended before it was killed"
    whole = lines_in(part)[:2]
    marked = whole[0].replace(b"/train/", b"/TRAIN/")  # were it done again, this would be gone
    part.write_bytes(marked + whole[1] + whole[1][:50])
    assert one(*arguments, out).returncode == 0
    assert marked in lines_in(own)
    assert own.read_bytes().replace(b"/TRAIN/", b"/train/") == (tmp_path / "straight" / own.name).read_bytes()
    assert sorted(files_in(out)) == ["detections.csv", "detections.jsonl", "detections.settings.json"]


@pytest.mark.slow
def test_a_mistake_ends_all_processes_in_words(small_scenes, learned, shared_cache, one, tmp_path):
    arguments = ["detect", learned.run, small_scenes / "test", "--out", tmp_path / "out"]
    assert one(*arguments).returncode == 0
    before = files_in(tmp_path / "out")
    result = two(*arguments, "--nms", "0.5")
    assert result.returncode != 0 and result.stdout == ""
    assert "nms: null there, 0.5 now" in result.stderr and "RuntimeError" not in result.stderr
    assert files_in(tmp_path / "out") == before
