"""Recipes: read with plain words for what is wrong, run in pieces, measured as `melm evaluate` measures."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import melm
from learners import SMALL
from melm.data import Source
from melm.errors import MelmError, UsageError
from melm.learn.model_file import load_model
from melm.learn.teaching import teacher_digest
from melm.recipe import Parts, commit, read_recipe, run_recipe, running
from melm.recipe.reading import in_precision
from melm.recipe.running import _check_weights

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
SET = {name: list(v) if isinstance(v, tuple) else v for name, v in SMALL.items() if name != "proposals"}
SMALL_RECIPE = f"""
about = "small"
seeds = [0, 3]
[learn]
split = "train"
preset = "fast"
proposals = {{ method = "edge-boxes", max_boxes = 60 }}
set = {{ {", ".join(f"{name} = {json.dumps(value)}" for name, value in SET.items())} }}
[runs.MELM]
method = "MELM"
[runs.discovery]
of = "MELM"
branch = "discovery"
[runs.WSDDN]
method = "WSDDN"
set = {{ epochs = 1 }}
[runs.both]
ensemble = ["MELM", "WSDDN"]
[[measure]]
split = "train"
draws = 10
"""


def written(folder, text):
    path = folder / "small.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_of_ours_reads(path):
    recipe = read_recipe(path)
    assert recipe.measures and recipe.runs and recipe.about
    assert path.read_text().startswith("# melm run --recipe")
    log = path.with_suffix(".json")
    if recipe.not_run:
        assert recipe.expect, "what is expected of it?"
        assert not log.exists()
    else:
        kept = json.loads(log.read_text())
        assert len(recipe.seeds) >= 2 and kept["commit"] and kept["parts"]["learning"]["seconds"] > 0
        assert {run["name"] for m in kept["measured"] for run in m["runs"]} == {
            f"{run.name}-{seed}" for run in recipe.runs if run.measured for seed in recipe.seeds
        }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeds = [0, 0]", "each once"),
        ("seeds = []", "a list of numbers"),
        ("seeds = [0, 'a']", "a list of numbers"),
        ("seeds = [0, -1]", "a list of numbers"),
        ("seeds = [0, true]", "a list of numbers"),
        ("[learn]\nproposals = { max_boxes = 'many' }", "max_boxes is 'many'"),
        ("[learn]\nproposals = { method = 3 }", "method is 3"),
        (
            "[runs.a]\n[runs.b]\nretrain = 'a'\nset = { folds = 4 }\n[runs.c]\nretrain = 'b'",
            "runs.c: b: its .* folds = 4",
        ),
        ("[runs.a]\nmethod = 'WSDDN'\n[runs.b]\nretrain = 'a'\nset = { teacher = 'mean' }", "runs.b: unknown teacher"),
        ("[runs.a]\n[runs.b]\nretrain = 'a'\nset = { backbone = 'lite2' }", "runs.b: .* needs a run of its own"),
        (
            "[runs.a]\n[runs.b]\nretrain = 'a'\nset = { backbone = 'resnet18', weights = 'x' }\n"
            "[runs.c]\nretrain = 'b'\nset = { backbone = 'resnet18', weights = 'x' }",
            "runs.c: b: its students go on",
        ),
        ("[runs.a]\nretrain = 'b'\n[runs.b]\nretrain = 'a'", "wait for each other"),
        ("[lern]", "Did you mean 'learn'"),
        ("[learn]\nsplits = 3", "Did you mean 'split'"),
        ("[runs.a]\nmethod = 'MELN'", "Did you mean 'MELM'"),
        ("[runs.a]\nof = 'b'", "names a run that is learned"),
        ("[runs.a]\n[runs.b]\nensemble = ['a']", "two or more other runs"),
        ("[runs.a]\n[runs.b]\nensemble = ['a', 'c']", "two or more other runs"),
        ("[runs.a]\n[runs.c]\n[runs.b]\nensemble = ['a', 'c']\nmethod = 'OICR'", "`ensemble` alone"),
        ("[runs.a]\n[runs.c]\n[runs.b]\nensemble = ['a', 'c']\n[runs.d]\nof = 'b'", "names a run that is learned"),
        ("[runs.'../a']", "a name that can be that of a folder"),
        ("[learn]\nset = { epoch = 3 }", "Did you mean 'epochs'"),
        ("[learn]\nproposals = { boxes = 3 }", "boxes"),
        ("[measure]\nsplit = 'val'", "two brackets"),
        ("[[measure]]\nspit = 'val'", "Did you mean 'split'"),
        ("learn = 3", "a table"),
        ("[runs.a]\nretrain = ['b']", "runs.a.retrain = .* a text was expected"),
        ("[runs.a]\nset = 3", "a table was expected"),
        ("[[measure]]\ndraws = 'x'", "measure.draws = 'x'; a whole number"),
        ("[[measure]]\nvote = 7", "vote is from 0 to 1"),
        ("[[measure]]\nagree = -1", "agree is 0 or more"),
        ("[runs.a]\nmeasured = 0", "runs.a.measured = 0; true or false"),
        ("[runs.a]\nmeasured = false\n[[measure]]\nsplit = 'val'", "every run says measured = false"),
        ("[[measure]]\ndraws = true", "measure.draws = True; a whole number"),
        ("[runs.a]\n[runs.b]\nof = 'a'\nbranch = 'discovry'", "runs.b: .*Did you mean 'discovery'"),
        ("[runs.a]\nbranch = 'fused'", "runs.a: "),
        ("[runs.a]\n[runs.b]\nretrain = 'a'\nset = { epochs = 'three' }", "epochs"),
        ("[runs.a]\nwith = ['b']\n[runs.b]", "`with` goes with `retrain`"),
        ("[runs.a]\n[runs.b]\nretrain = 'a'\nwith = 'c'\n[runs.c]", "a list of other runs"),
        ("[runs.a]\n[runs.b]\nretrain = 'a'\nwith = ['a']", "a list of other runs"),
        ("[runs.a]\n[runs.b]\nretrain = 'a'\nwith = ['c', 'c']\n[runs.c]", "a list of other runs"),
        ("[runs.a]\n[runs.b]\nretrain = 'a'\nwith = ['c']\n[runs.c]\nof = 'a'", "a list of other runs"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        read_recipe(written(tmp_path, text))


def test_what_is_no_recipe_is_said(tmp_path):
    with pytest.raises(UsageError, match="no such recipe"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(MelmError, match="not a recipe"):
        read_recipe(written(tmp_path, "[["))


def test_a_recipe_learns_measures_and_goes_on(small_scenes, shared_cache, tmp_path):
    recipe = read_recipe(written(tmp_path, SMALL_RECIPE.replace('split = "train"\n', "")))
    said, out = [], tmp_path / "out"
    results = run_recipe(recipe, Source(small_scenes / "train.json"), out, device="cpu", workers=1, say=said.append)
    assert json.loads((out / "results.json").read_text()) == results
    (measured,) = results["measured"]
    names = [f"{name}-{seed}" for seed in (0, 3) for name in ("MELM", "discovery", "WSDDN", "both")]
    assert [run["name"] for run in measured["runs"]] == names
    found = melm.evaluate(out / "MELM-3", small_scenes / "train.json")
    assert measured["runs"][4]["summary"]["CorLoc"] == pytest.approx(found.corloc.mean, abs=1e-5)
    assert measured["runs"][4]["summary"]["mAP VOC07"] == pytest.approx(found.precision["voc07"].mean, abs=1e-5)
    assert [(c["first"], c["second"]) for c in measured["comparisons"]] == [
        (f"MELM-{s}", f"{other}-{s}") for s in (0, 3) for other in ("discovery", "WSDDN", "both")
    ]
    assert set(measured["seeds"]) == {f"{n} ({n}-0, {n}-3)" for n in ("MELM", "discovery", "WSDDN", "both")}
    assert results["parts"]["learning"]["made"] == 4 * 13 and results["memory_mb"] > 50
    assert any("CorLoc" in text for text in said)
    # again: nothing is learned anew, and the same comes out
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/model-*.safetensors")}
    said.clear()
    again = run_recipe(recipe, Source(small_scenes / "train.json"), out, device="cpu", workers=1, say=said.append)
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/model-*.safetensors")} == before and len(before) == 4
    assert sum("is learned already" in text for text in said) == 4
    assert again["measured"] == results["measured"]
    with pytest.raises(UsageError, match="holds another run"):  # not what it found on other images
        run_recipe(recipe, Source(small_scenes / "train.json", limit=12), out, device="cpu", workers=1)


@pytest.mark.parametrize(
    ("measure", "backbone", "words"),
    [("split = 'valll'", "resnet18", "valll"), ("limit = 5", "resnet18", "no package carries weights for resnet18")],
)
def test_what_cannot_be_done_is_said_before_anything_is_learned(small_scenes, tmp_path, measure, backbone, words):
    text = SMALL_RECIPE.replace('split = "train"\n', "").split("[runs.disc")[0]
    text += f"[runs.whole]\nretrain = 'MELM'\nset = {{ backbone = '{backbone}' }}\n[[measure]]\n{measure}\n"
    recipe = read_recipe(written(tmp_path, text))
    with pytest.raises(MelmError, match=words):
        run_recipe(recipe, Source(small_scenes / "train.json"), tmp_path / "out", device="cpu", workers=1)
    assert not list((tmp_path / "out").iterdir())


def test_runs_are_taken_up_only_with_the_same_basis(small_scenes, shared_cache, tmp_path):
    """A basis for each backbone; of a run that is learned already, its own serves as well as that which it was given."""
    text = SMALL_RECIPE.replace('split = "train"\n', "").split("[runs.disc")[0].replace("[0, 3]", "[0]")
    recipe = read_recipe(written(tmp_path, text))
    data, rest = Source(small_scenes / "train.json"), {"device": "cpu", "workers": 1}
    (fewer := tmp_path / "fewer").mkdir()
    run_recipe(recipe, replace(data, limit=12), fewer, **rest)
    of_fewer, out, said = [fewer / "MELM-0"], tmp_path / "out", []
    run_recipe(recipe, data, out, bases=of_fewer, **rest)
    run_recipe(recipe, data, out, bases=of_fewer, say=said.append, **rest)
    assert f"{out / 'MELM-0'} is learned already" in said
    with pytest.raises(UsageError, match=r'basis: "[0-9a-f]+" in the run, null now'):
        run_recipe(recipe, data, out, **rest)
    said.clear()
    run_recipe(recipe, replace(data, limit=12), fewer, bases=of_fewer, say=said.append, **rest)
    assert f"{fewer / 'MELM-0'} is learned already" in said  # fitted to its images, which is the same
    with pytest.raises(UsageError, match="are both of lite0"):
        run_recipe(recipe, data, out, bases=[*of_fewer, out / "MELM-0"], **rest)
    other = read_recipe(written(tmp_path, text.replace('method = "MELM"', "set = { backbone = 'lite2' }")))
    with pytest.raises(UsageError, match="none is of lite2"):
        run_recipe(other, data, tmp_path / "other", bases=of_fewer, **rest)


def test_what_a_recipe_takes_of_the_data_is_not_said_twice(small_scenes, tmp_path):
    recipe = read_recipe(written(tmp_path, SMALL_RECIPE))
    with pytest.raises(UsageError, match="--split val: the recipe has its own, train"):
        run_recipe(recipe, Source(small_scenes / "train.json", split="val"), tmp_path / "out")


def test_a_whole_network_that_goes_on_needs_no_weights(small_scenes, tmp_path):
    text = "[runs.a]\n[runs.b]\nretrain = 'a'\nset = { backbone = 'resnet18', weights = 'none' }\n[runs.c]\nretrain = 'b'\n"
    text += "set = { backbone = 'resnet18' }\n"
    out = tmp_path / "out"
    _check_weights(read_recipe(written(tmp_path, text)), out)
    with pytest.raises(MelmError, match="no package carries weights for resnet18"):
        _check_weights(read_recipe(written(tmp_path, text.replace("retrain = 'b'", "retrain = 'a'"))), out)


def test_the_text_is_that_which_was_read(small_scenes, shared_cache, tmp_path):
    text = SMALL_RECIPE.replace('split = "train"\n', "").split("[runs.disc")[0].replace("[0, 3]", "[0]")
    recipe = read_recipe(path := written(tmp_path, text))
    path.unlink()
    data, out = Source(small_scenes / "train.json", classes=("grolt", "munno", "pelk")), tmp_path / "out"
    results = run_recipe(recipe, data, out, device="cpu", workers=1)
    assert results["text"] == text
    said = []
    run_recipe(recipe, data, out, device="cpu", workers=1, say=said.append)
    assert f"{out / 'MELM-0'} is learned already" in said


def test_a_recipe_runs_in_one_process(tmp_path, command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = command("run", "--recipe", written(tmp_path, ""), "--data", tmp_path)
    assert result.returncode == 2 and "without torchrun" in result.stderr


def test_a_run_that_only_teaches(small_scenes, shared_cache, tmp_path):
    students = "scales = [96, 128], hidden = 8, positives = 4, negatives = 6, epochs = 1"
    text = SMALL_RECIPE.replace('split = "train"\n', "").split("[runs.disc")[0].replace("[0, 3]", "[0]")
    text = text.replace("[runs.MELM]", "[runs.first]\nmeasured = false")
    text += f"[runs.once]\nretrain = 'first'\nmeasured = false\nset = {{ {students} }}\n"
    text += f"[runs.twice]\nretrain = 'once'\nwith = ['along']\nset = {{ {students} }}\n"
    text += "[runs.along]\nmethod = 'WSDDN'\nset = { epochs = 1 }\nmeasured = false\n[[measure]]\nlimit = 5\n"
    out = tmp_path / "out"
    recipe = read_recipe(written(tmp_path, text))
    results = run_recipe(recipe, Source(small_scenes / "train.json"), out, device="cpu", workers=1)
    assert [run["name"] for run in results["measured"][0]["runs"]] == ["twice-0"]
    assert len(json.loads((out / "twice-0" / "model.json").read_text())["rounds"]) == 1
    assert not list((out / "once-0").glob("seen*"))  # nothing was looked at
    along = json.loads((out / "twice-0" / "model.json").read_text())["teaches_along"]
    assert along == [teacher_digest(load_model(out / "along-0"))]
    said = []
    run_recipe(recipe, Source(small_scenes / "train.json"), out, device="cpu", workers=1, say=said.append)
    assert sum("is learned already" in text for text in said) == 4


def test_the_command(small_scenes, shared_cache, tmp_path, command):
    text = SMALL_RECIPE.replace('split = "train"\n', "").split("[runs.disc")[0].replace("[0, 3]", "[1]")
    path = written(tmp_path, text + "[[measure]]\nlimit = 5\n")
    data, out = str(small_scenes / "train.json"), str(tmp_path / "out")
    result = command("run", "--recipe", str(path), "--data", data, "--out", out, "--workers", "1")
    assert result.returncode == 0, result.stderr
    assert "CorLoc" in result.stdout and "learning: " in result.stdout
    assert json.loads((tmp_path / "out" / "results.json").read_text())["measured"][0]["images"] == 5


def test_parts_add_up(tmp_path):
    parts = Parts(tmp_path / "parts.jsonl")
    parts.add("features", 10.04, 5, 3)
    parts.add("learning", 2, 5, 5)
    Parts(tmp_path / "parts.jsonl").add("features", 1, 5, 2)
    assert Parts(tmp_path / "parts.jsonl").totals() == {
        "features": {"seconds": 11.0, "made": 5},
        "learning": {"seconds": 2, "made": 5},
    }


def test_the_commit_is_that_of_the_source():
    assert commit() is None or len(commit()) >= 7


def test_a_commit_of_something_else_is_not_named(tmp_path, monkeypatch):
    """Installed into a folder of another checkout."""
    for command in ("init", "commit --allow-empty --message first"):
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *command.split()], check=True, capture_output=True)
    (tmp_path / "installed").mkdir()
    monkeypatch.setattr(running, "__file__", str(tmp_path / "installed" / "running.py"))
    assert commit() is None


def test_a_recipe_in_another_precision(small_scenes, tmp_path, bf16):
    """All its runs, those that are retrained too; what the processor cannot do is said before anything is learned."""
    text = SMALL_RECIPE.replace('split = "train"\n', "") + "[runs.again]\nretrain = 'MELM'\n"
    recipe, data, out = read_recipe(written(tmp_path, text)), Source(small_scenes / "train.json"), tmp_path / "out"
    other = in_precision(recipe, "bf16")
    assert {run.config.precision for run in other.runs if run.config} == {"bf16"}
    assert {run.config.precision for run in recipe.runs if run.config} == {"fp32"}
    assert in_precision(other, "fp32") == recipe
    bf16(False)
    with pytest.raises(UsageError, match="precision bf16: too slow on this CPU"):
        run_recipe(recipe, data, out, device="cpu", precision="bf16")
    assert not out.exists()
    bf16(True)
    only = replace(other, runs=tuple(run for run in other.runs if run.name == "MELM"), seeds=(0,))
    results = run_recipe(only, data, out, device="cpu", workers=1, precision="bf16")
    assert results["precision"] == "bf16"
    assert json.loads((out / "MELM-0" / "run.json").read_text())["config"]["precision"] == "bf16"
