"""Two processes of torchrun learn what one process learns with twice the images a step."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from learners import alone, log_of, small_arguments, small_train, weights_of

TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "melm"]
WEIGHTS_APART = 1e-5  # sums of 13 images in another order, after 8 steps; 3e-8 was measured
MEANS_APART = 1e-4


def test_two_processes_learn_what_one_does(small_scenes, learned, shared_cache, tmp_path):
    """13 images, two processes with 2 a step: the last step has one image, and none for the second process."""
    data, settings = small_scenes / "train-tags.csv", {"epochs": 2, "accumulate": 2}
    result = alone([*TWO, *small_arguments(data, tmp_path / "two", **settings)])
    assert result.returncode == 0, result.stderr
    assert "2 processes x 2" in result.stdout and result.stdout.count("learned in") == 1
    one = small_train(data, tmp_path / "one", **{**settings, "accumulate": 4})
    both, alone_ = (log_of(run) for run in (tmp_path / "two", one))
    assert [(r["epoch"], r.get("step")) for r in both] == [(r["epoch"], r.get("step")) for r in alone_]
    assert sum("step" in r for r in both) == 2 * math.ceil(13 / 4)
    for record, other in zip(both, alone_, strict=True):
        figures, others = record.get("mean", record), other.get("mean", other)
        for name, value in figures.items():
            assert value == pytest.approx(others[name], rel=MEANS_APART, abs=MEANS_APART), (record, name)
    tensors, others = (load_file(run / "model-1.safetensors") for run in (tmp_path / "two", one))
    apart = {name: float((value - others[name]).abs().max()) for name, value in tensors.items()}
    assert tensors.keys() == others.keys() and max(apart.values()) <= WEIGHTS_APART
    moved = load_file(learned.run / "model-1.safetensors")  # another number of images a step is another training
    assert max(float((value - moved[name]).abs().max()) for name, value in tensors.items()) > 10 * WEIGHTS_APART
    about = json.loads((tmp_path / "two" / "run.json").read_text())
    assert (about["processes"], about["images_per_step"]) == (2, 4)


@pytest.mark.slow
def test_two_processes_that_were_killed_go_on(small_scenes, shared_cache, tmp_path):
    arguments = {
        name: [*TWO, *small_arguments(small_scenes / "train-tags.csv", tmp_path / name, epochs=4)] for name in "ab"
    }
    assert alone(arguments["a"]).returncode == 0
    log, here = tmp_path / "b" / "log.jsonl", {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (tmp_path / "said").open("w") as said:
        killed = subprocess.Popen([sys.executable, *arguments["b"]], env=here, stdout=said, stderr=said)
        until = time.monotonic() + 120
        while not log.exists() or len(log.read_text().splitlines()) < 7:  # an epoch has five lines
            assert killed.poll() is None and time.monotonic() < until, (tmp_path / "said").read_text()
            time.sleep(0.001)
        for worker in Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split():
            os.kill(int(worker), signal.SIGKILL)
        killed.kill()
        killed.wait()
    assert not (tmp_path / "b" / "model.json").exists()
    result = alone(arguments["b"])
    assert result.returncode == 0 and "going on in" in result.stdout, result.stderr
    assert log_of(tmp_path / "a") == log_of(tmp_path / "b")
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")
    assert np.isfinite([r["loss"] for r in log_of(tmp_path / "b") if "step" in r]).all()


OWN = {"scales": [96, 128], "hidden": 16, "positives": 4, "negatives": 6, "epochs": 1, "drop_after": 1}
WHOLE = {"backbone": "resnet18", "weights": "none", "scales": [64, 80], "positives": 4, "negatives": 6, "epochs": 1}


@pytest.mark.parametrize("settings", [OWN, {**OWN, "tail_share": 0.1}, WHOLE], ids=["own", "stages learn", "whole"])
def test_two_processes_retrain_as_one_does(small_scenes, learned, shared_cache, tmp_path, settings):

    def arguments(out, accumulate):
        sets = [f"--set={name}={json.dumps(value)}" for name, value in {**settings, "accumulate": accumulate}.items()]
        data = small_scenes / "train-tags.csv"
        return ["retrain", str(learned.run), str(data), "--out", str(out), "--workers", "1", "--device", "cpu", *sets]

    result = alone([*TWO, *arguments(tmp_path / "two", 2)])
    assert result.returncode == 0 and result.stdout.count("learned in") == 1, result.stderr
    assert alone(["-m", "melm", *arguments(tmp_path / "one", 4)]).returncode == 0
    tensors, others = (load_file(tmp_path / name / "model-1.safetensors") for name in ("two", "one"))
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():  # the whitened basis of a random network is large
        assert float((value - others[name]).abs().max()) <= WEIGHTS_APART * (1 + float(others[name].abs().max())), name
    found = [(tmp_path / name / "objects.npz").read_bytes() for name in ("two", "one")]
    assert found[0] == found[1]  # each process found its share


@pytest.mark.slow
def test_two_processes_store_the_features_that_one_does(small_scenes, tmp_path, monkeypatch):
    config = small_arguments(small_scenes / "train-tags.csv", "-")
    out = config.index("--out")
    arguments = ["features", *config[1:out], *config[out + 2 :]]
    stored = []
    for name, start in (("one", ["-m", "melm"]), ("two", TWO)):
        monkeypatch.setenv("MELM_CACHE", str(tmp_path / name))
        result = alone([*start, *arguments])
        assert result.returncode == 0 and result.stdout.count("kept in") == 1, result.stderr
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file() and path.name != "seconds.txt"]
        stored.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert stored[0].keys() == stored[1].keys() and len(stored[0]) > 2 * 13
    assert [name for name, content in stored[0].items() if content != stored[1][name]] == []


@pytest.mark.parametrize(("arguments", "code"), [(["presets"], 0), (["presets", "--wrong"], 2)])
def test_one_of_many_ends_without_being_taken_down(arguments, code):
    """Threads of gloo that are still at it would abort the interpreter on its way out; what was said is said nevertheless."""
    script = (
        "import atexit, sys; atexit.register(print, 'taken down'); import melm.learn.processes as processes; "
        "processes.talked = sys.argv.pop(1) == 'many'; from melm.cli import main; main()"
    )
    told = {}
    for who in ("one", "many"):
        result = subprocess.run([sys.executable, "-c", script, who, *arguments], capture_output=True, text=True)
        assert result.returncode == code
        told[who] = result.stdout + result.stderr
    assert told["one"].replace("taken down\n", "") == told["many"] != ""
    assert "taken down" in told["one"]
