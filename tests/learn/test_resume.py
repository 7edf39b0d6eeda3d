"""A run that is killed or finds the disk full, and goes on: it ends as one that was never disturbed."""

import random
import re

import pytest

from learners import TUNED, in_turns, log_of, small_arguments, small_train, weights_of
from melm.learn.run_folder import RunFolder

KILLED = -9


def assert_equal_runs(run, other, turns):
    assert log_of(run) == log_of(other), turns
    assert weights_of(run) == weights_of(other), turns
    assert weights_of(run, "checkpoint") == weights_of(other, "checkpoint"), turns


def killed_at_random(data, folder, changes, kills, most):
    """The turns of a run that is not disturbed and of one that is killed after up to `most` lines of its log."""
    straight, often = ({"arguments": small_arguments(data, folder / name, **changes)} for name in ("straight", "often"))
    killed = {**often, "file": str(folder / "often" / "log.jsonl")}
    return [straight, *[{**killed, "lines": random.randint(1, most)} for _ in range(kills)], often]


def test_a_killed_run_ends_as_one_that_was_not(small_scenes, shared_cache, tmp_path):
    """Killed with SIGKILL at random points; bit for bit the same weights and the same log. An epoch has 8 lines."""
    data, one, two = small_scenes / "train-tags.csv", tmp_path / "one", tmp_path / "two"
    turns = killed_at_random(data, one, {"epochs": 4}, 4, most=6)
    turns += killed_at_random(data, two, {"epochs": 3, "feedback": "previous", "boxes_a_step": 0}, 2, most=10)
    codes, said = in_turns(turns)
    assert codes == [0, *[KILLED] * 4, 0, 0, KILLED, KILLED, 0], (turns, codes, said)
    for folder in (one, two):
        assert_equal_runs(folder / "straight", folder / "often", turns)


@pytest.mark.slow
def test_a_killed_run_whose_trunk_learns_ends_as_one_that_was_not(small_scenes, tmp_path):
    """SGD with momentum, at drawn scales and flips. An epoch has 5 lines."""
    turns = killed_at_random(small_scenes / "few.csv", tmp_path, {**TUNED, "epochs": 3}, 2, most=5)
    codes, said = in_turns(turns)
    assert codes == [0, KILLED, KILLED, 0], (turns, codes, said)
    assert_equal_runs(tmp_path / "straight", tmp_path / "often", turns)


def test_a_run_killed_while_it_prepares_goes_on(small_scenes, learned, tmp_path):
    """Before the first step, in an empty cache: proposals, components, features."""
    each = {"arguments": small_arguments(small_scenes / "train-tags.csv", tmp_path / "run")}
    codes, said = in_turns([{**each, "seconds": 0.5}, {**each, "seconds": random.uniform(0.5, 2)}, each])
    assert codes[0] == KILLED and codes[-1] == 0, (codes, said)
    assert_equal_runs(tmp_path / "run", learned.run, said)


def test_a_full_disk_leaves_the_checkpoint_whole(small_scenes, learned, shared_cache, tmp_path):
    """No file may be larger than half a checkpoint, then none larger than the log with half a line more; then there is room."""
    run = tmp_path / "run"
    each = {"arguments": small_arguments(small_scenes / "train-tags.csv", run)}
    log = str(run / "log.jsonl")
    half = (learned.run / "checkpoint-2.safetensors").stat().st_size // 2
    full = [{**each, "limit": half}, {**each, "limit": 150, "beyond": log, "save_every": 60}]
    codes, said = in_turns([{**each, "file": log, "lines": 9}, *full, each])
    assert codes == [KILLED, 1, 1, 0], said
    assert "Traceback" not in said
    number = r"checkpoint-\d+\.safetensors: cannot be written \(File too large\)"
    assert re.search(re.escape(f"{run}/") + number, said), said
    assert f"{log}: cannot be written (File too large)" in said
    assert said.count("going on in") == 3
    assert not list(run.glob(".*"))  # nor is anything left of what was not written to its end
    assert_equal_runs(run, learned.run, said)


def test_a_finished_run_stays_as_it_is(small_scenes, learned, shared_cache, tmp_path):
    said = []
    before = weights_of(learned.run), log_of(learned.run)
    small_train(small_scenes / "train-tags.csv", learned.run, say=said.append)
    assert (weights_of(learned.run), log_of(learned.run)) == before
    assert not any("epoch 3 of 2" in text for text in said), said


def test_a_log_that_was_cut_is_gone_on_with(tmp_path):
    """After a power cut it may be shorter than the checkpoint says."""
    run = RunFolder(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    run.open_log(12)
    assert run.log({"step": 7}) == 24
    run.close_log()
    run.open_log(1000)
    assert run.log({"step": 8}) == 36
    run.close_log()
    assert [record["step"] for record in log_of(tmp_path)] == [0, 7, 8]
