"""A small run for tests of learning and detecting: scenes of 160 x 120, a trunk with random weights, two short epochs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from melm.data import Source
from melm.learn.presets import WITH_NAMES, learn_config
from melm.learn.train import train
from melm.proposals import ProposalSettings

IMAGES = 13  # so that no number of images a step divides it
FEW = 4
BOXES = ProposalSettings("edge-boxes", max_boxes=60)
SMALL = {
    "weights": "none",
    "scales": (96, 144),
    "components": 16,
    "named_components": 4,
    "hidden": 32,
    "accumulate": 2,
    "boxes_a_step": 40,
    "epochs": 2,
    "drop_after": 1,
    "proposals": BOXES,
}
TUNED = {  # a trunk that learns along, for few images
    "proposals": ProposalSettings("edge-boxes", max_boxes=10),
    "backbone": "resnet18",
    "trunk": "tuned",
    "optimizer": "sgd",
    "scales": (64, 80),
    "accumulate": 1,
    "flips": True,
    "surround": False,
    "branch_sees_surround": False,
    "contrast_weight": 0.0,
    "score_weight": 0.0,
}


def small(changes):
    """Settings of a small run; a backbone of another kind has no classifier on its map."""
    other = changes.get("backbone", "lite0") not in WITH_NAMES
    return {**SMALL, **({"named_components": 0} if other else {}), **changes}


def small_config(method="MELM", **changes):
    return learn_config("fast", method, small(changes))


def small_train(data, out, method="MELM", config=None, threads=1, **options):
    """Learns from DATA (a path or a Source) in this process. What is not an option of `train` is a setting."""
    of_train = ("overwrite", "skip_bad", "basis", "students", "after_epoch", "say", "proposals_file")
    given = {name: options.pop(name) for name in of_train if name in options}
    source = data if isinstance(data, Source) else Source(Path(data))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # one: sums in one order, as in the processes of `alone`
    try:
        return train(source, out, config or small_config(method, **options), device="cpu", workers=1, **given)
    finally:
        torch.set_num_threads(before)


def small_arguments(data, out, **changes):
    """The same as arguments of the command line."""
    changes = small(changes)
    boxes = changes.pop("proposals")
    arguments = ["train", data, "--out", out, "--device", "cpu", "--workers", 1]
    arguments += ["--proposals", boxes.method, "--max-boxes", boxes.max_boxes]
    for name in ("weights", "backbone", "seed"):
        if name in changes:
            arguments += [f"--{name}", changes.pop(name)]
    for name, value in changes.items():
        arguments += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return [str(argument) for argument in arguments]


def weights_of(run, name="model"):
    """Every tensor of a finished run, as bytes."""
    card = json.loads((Path(run) / f"{name}.json").read_text())
    return {key: value.numpy().tobytes() for key, value in load_file(Path(run) / card["numbers"]).items()}


def log_of(run):
    """Every record of the log but for the time it took."""
    records = [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def alone(command, **options):
    """Runs a command in a process of its own, on one thread, so that numbers can be compared bit for bit."""
    here = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=here, capture_output=True, text=True, timeout=300, **options)


def in_turns(turns):
    """Runs commands of melm as `turns.py` says; the exit code of each, and what they said."""
    result = alone([Path(__file__).parent / "learn" / "turns.py", json.dumps(turns)])
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]), result.stderr
