"""A result written as one file: what is learned from what, with which seeds, and what it is measured on.

A recipe is TOML:

    about = "MELM against WSDDN"
    seeds = [0, 1]

    [learn]                 # what every run shares
    split = "train"
    preset = "fast"
    proposals = { method = "edge-boxes", max_boxes = 800 }
    set = { epochs = 4 }    # any setting that run.json names

    [runs.MELM]             # one or more; the first is compared with the others
    method = "MELM"
    [runs.discovery]        # another look at a run that is learned already
    of = "MELM"
    branch = "discovery"
    [runs.retrained]        # students that learn from what a run has found
    retrain = "MELM"
    set = { epochs = 3 }
    measured = false        # it only teaches another
    [runs."retrained again"]
    retrain = "retrained"
    with = ["WSDDN"]        # it learns from what several runs of the same seed find together
    [runs.WSDDN]
    method = "WSDDN"
    [runs.both]             # runs that detect together, of the same seed
    ensemble = ["MELM", "WSDDN"]

    [[measure]]             # one or more
    split = "val"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from melm.errors import MelmError, UsageError, did_you_mean, one_of
from melm.learn.network import branches_of, default_branch
from melm.learn.presets import LearnConfig, learn_config
from melm.learn.students import RetrainConfig, check_kind, check_trunk
from melm.proposals import ProposalSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEARN = ("split", "limit", "preset", "method", "proposals", "set")
RUN = ("method", "set", "of", "retrain", "with", "branch", "measured", "ensemble")
MEASURE = ("split", "limit", "draws", "vote", "agree")
TOP = ("about", "not_run", "expect", "seeds", "learn", "runs", "measure")

TEXT, NUMBER, TABLE = (str, "a text"), (int, "a whole number"), (dict, "a table")
KINDS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("about", "not_run", "split", "preset", "method", "of", "retrain", "branch"), TEXT),
    **dict.fromkeys(("limit", "draws"), NUMBER),
    **dict.fromkeys(("set", "proposals"), TABLE),
    "vote": ((int, float), "a number"),
    "agree": ((int, float), "a number"),
    "measured": (bool, "true or false"),
}


@dataclass(frozen=True)
class Run:
    """One line of a result: a detector that is learned, or another look at one."""

    name: str
    config: LearnConfig | RetrainConfig | None  # None: another look
    of: str  # the run that is looked at, itself or another
    branch: str | None
    teacher: str | None = None  # of a run that is retrained
    along: tuple[str, ...] = ()  # runs that teach it, too
    members: tuple[str, ...] = ()  # of runs that detect together
    measured: bool = True


@dataclass(frozen=True)
class Measure:
    """On what the runs are measured."""

    split: str | None = None
    limit: int | None = None
    draws: int = 1000  # of the bootstrap
    vote: float | None = None  # as of `melm evaluate --vote`
    agree: float = 0.0  # as of `melm evaluate --agree`


@dataclass(frozen=True)
class Recipe:
    """What a recipe file says."""

    path: Path
    text: str  # all of it
    about: str
    not_run: str  # why, and what is expected, of a recipe that nobody has run yet
    expect: Mapping[str, Any]
    seeds: tuple[int, ...]
    split: str | None
    limit: int | None
    runs: tuple[Run, ...]
    measures: tuple[Measure, ...]


def read_recipe(path: Path) -> Recipe:
    """A recipe, with words for what is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
        kept = tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such recipe") from None
    except (OSError, ValueError) as error:
        raise MelmError(f"{path}: not a recipe ({error})") from None
    _only(path, kept, TOP, "")
    learn = _table(path, kept, "learn")
    _only(path, learn, LEARN, "learn.")
    seeds = kept.get("seeds", [0])
    numbers = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not numbers or not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"{path}: seeds = {seeds}; a list of numbers, each once, was expected")
    runs = _table(path, kept, "runs") or {path.stem: {}}
    measures = kept.get("measure", [])
    if not isinstance(measures, list):
        raise UsageError(f"{path}: [[measure]] was expected, with two brackets: it is a list")
    for entry in measures:
        _only(path, entry, MEASURE, "measure.")
    for name, entry in runs.items():
        _only(path, entry, RUN, f"runs.{name}.")
    made = tuple(_run(path, name, entry, learn, runs) for name, entry in runs.items())
    in_turn(made)  # refuses a circle
    for run in made:
        try:
            _check(run, {one.name: one for one in made})
        except UsageError as error:
            raise UsageError(f"{path}: runs.{run.name}: {error}") from None
    if measures and not any(run.measured for run in made):
        raise UsageError(f"{path}: [[measure]] has nothing to measure: every run says measured = false")
    return Recipe(
        path,
        text,
        str(kept.get("about", path.stem)),
        str(kept.get("not_run", "")),
        _table(path, kept, "expect"),
        tuple(seeds),
        learn.get("split"),
        learn.get("limit"),
        made,
        tuple(Measure(**m) for m in measures),
    )


def _run(path: Path, name: str, entry: Mapping[str, Any], learn: dict[str, Any], runs: Mapping[str, Any]) -> Run:
    if name in (".", "..") or "/" in name or "\\" in name:
        raise UsageError(f"{path}: runs.{name}: a name that can be that of a folder was expected")
    if "ensemble" in entry:
        return _ensemble(path, name, entry, runs)
    of, teacher, measured = entry.get("of", name), entry.get("retrain"), entry.get("measured", True)
    if of != name:
        if of not in runs or {"of", "ensemble"} & set(runs[of]) or set(entry) - {"of", "branch"}:
            raise UsageError(f"{path}: runs.{name}: `of` names a run that is learned, and only `branch` goes with it")
        return Run(name, None, of, entry.get("branch"))
    changes = {**({} if teacher else learn.get("set", {})), **entry.get("set", {})}
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in changes.items()}
    if teacher is not None:
        if teacher not in runs or teacher == name or {"of", "ensemble"} & set(runs[teacher]) or "method" in entry:
            raise UsageError(f"{path}: runs.{name}: `retrain` names another run, which has a method of its own")
        try:
            students = RetrainConfig().with_(**changes)
        except (UsageError, TypeError) as error:
            raise UsageError(f"{path}: runs.{name}: {error}") from None
        return Run(
            name, students, name, entry.get("branch"), teacher, _along(path, name, entry, runs), measured=measured
        )
    if "with" in entry:
        raise UsageError(f"{path}: runs.{name}: `with` goes with `retrain`")
    try:
        if "proposals" in learn:
            changes["proposals"] = ProposalSettings(**learn["proposals"])
        config = learn_config(learn.get("preset", "fast"), entry.get("method", learn.get("method")), changes)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{path}: runs.{name}: {error}") from None
    return Run(name, config, name, entry.get("branch"), measured=measured)


def _check(run: Run, runs: Mapping[str, Run]) -> None:
    """Refuses, before anything is learned, what learning or looking would refuse hours later: a branch that is not there, and
    students that cannot learn from the runs that teach them."""
    learned = runs[run.of]
    if run.branch is not None:
        one_of(
            "branch", run.branch, branches_of(_first(learned, runs)) + (["fused", "student"] if learned.teacher else [])
        )
    if not isinstance(run.config, RetrainConfig):
        return
    for name in (str(run.teacher), *run.along):
        first = _first(runs[name], runs)
        one_of("teacher", run.config.branch(default_branch(first)), branches_of(first))
    teacher = runs[str(run.teacher)]
    if not run.config.whole:
        first = _first(teacher, runs)
        check_trunk(first.backbone, first.trunk == "frozen", run.config)
    check_kind(teacher.name, teacher.config if isinstance(teacher.config, RetrainConfig) else None, run.config)


def _first(run: Run, runs: Mapping[str, Run]) -> LearnConfig:
    """Of the run that all rounds of retraining began with."""
    while run.teacher is not None:
        run = runs[run.teacher]
    assert isinstance(run.config, LearnConfig)
    return run.config


def _along(path: Path, name: str, entry: Mapping[str, Any], runs: Mapping[str, Any]) -> tuple[str, ...]:
    """The runs that teach another along with its own teacher."""
    along, learned = entry.get("with", []), [n for n in _learned(runs) if n not in (name, entry["retrain"])]
    if not isinstance(along, list) or any(one not in learned for one in along) or len(set(along)) < len(along):
        raise UsageError(f"{path}: runs.{name}: `with`, a list of other runs that are learned, was expected")
    return tuple(along)


def _learned(runs: Mapping[str, Any]) -> list[str]:
    return [n for n, other in runs.items() if isinstance(other, dict) and not {"of", "ensemble"} & set(other)]


def _ensemble(path: Path, name: str, entry: Mapping[str, Any], runs: Mapping[str, Any]) -> Run:
    members, learned = entry["ensemble"], _learned(runs)
    good = isinstance(members, list) and len(members) > 1 and all(member in learned for member in members)
    if not good or len(set(members)) < len(members) or set(entry) - {"ensemble"}:
        raise UsageError(
            f"{path}: runs.{name}: `ensemble` alone, a list of two or more other runs that are learned, was expected"
        )
    return Run(name, None, name, None, members=tuple(members))


def _table(path: Path, kept: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = kept.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [{name}] was expected to be a table")
    return table


def _only(path: Path, kept: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(kept, dict):
        raise UsageError(f"{path}: {where.rstrip('.')} was expected to be a table")
    for name in kept:
        if name not in known:
            raise UsageError(f"{path}: there is no {where}{name}.{did_you_mean(name, known)} Known: {', '.join(known)}")
        kind, words = KINDS.get(name, (object, ""))
        if words and (not isinstance(kept[name], kind) or isinstance(kept[name], bool) != (kind is bool)):
            raise UsageError(f"{path}: {where}{name} = {kept[name]!r}; {words} was expected")
    if kept.get("agree", 0) < 0:
        raise UsageError(f"{path}: {where.rstrip('.')}: agree is 0 or more")
    if not 0 <= kept.get("vote", 0) <= 1 or kept.get("draws", 1) < 1 or kept.get("limit", 1) < 1:
        raise UsageError(f"{path}: {where.rstrip('.')}: vote is from 0 to 1, draws and limit are 1 or more")


def in_precision(recipe: Recipe, precision: str) -> Recipe:
    """The same with every run learned and looked at in another precision."""
    learned = [None if run.config is None else replace(run.config, precision=precision) for run in recipe.runs]
    runs = [replace(run, config=config) for run, config in zip(recipe.runs, learned, strict=True)]
    return replace(recipe, runs=tuple(runs))


def in_turn(runs: Sequence[Run]) -> list[Run]:
    """Those that are learned, each after its teachers."""
    waiting = [run for run in runs if run.config is not None]
    done: list[Run] = []
    while waiting:
        names = {run.name for run in done}
        ready = [run for run in waiting if run.teacher is None or names >= {run.teacher, *run.along}]
        if not ready:
            raise UsageError(f"runs.{waiting[0].name}: it and its teacher wait for each other")
        done += ready
        waiting = [run for run in waiting if run not in ready]
    return done


def students_of(teacher: Run, runs: Sequence[Run]) -> RetrainConfig | None:
    """Those that will learn from a run first, if any."""
    taught = (run.config for run in runs if run.teacher == teacher.name)
    return next((config for config in taught if isinstance(config, RetrainConfig)), None)
