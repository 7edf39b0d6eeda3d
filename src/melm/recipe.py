"""`melm run --recipe`: a result written as one file. What is learned from what, with which seeds, and what it is measured on.

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
    [runs.WSDDN]
    method = "WSDDN"
    [runs.both]             # runs that detect together, of the same seed
    ensemble = ["MELM", "WSDDN"]

    [[measure]]             # one or more
    split = "val"
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from melm.data import Source, read_tags
from melm.detect.detector import DetectSettings
from melm.errors import MelmError, UsageError, did_you_mean, one_of
from melm.files import write_whole
from melm.learn.model_file import load_card, load_model
from melm.learn.network import branches_of
from melm.learn.presets import LearnConfig, learn_config
from melm.learn.retrain import retrain, teacher_digest
from melm.learn.run_folder import data_record, versions
from melm.learn.students import RetrainConfig
from melm.learn.train import features, train
from melm.measure.evaluation import Comparison, Evaluation, by_seed, comparisons, evaluate
from melm.measure.subjects import placed, subject_of_ensemble, subject_of_run
from melm.measure.truth import read_truth
from melm.progress import Steps, duration
from melm.proposals import ProposalSettings, ProposalStore, make_proposals
from melm.show.evaluation_report import Report
from melm.workers import available_cores

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

LEARN = ("split", "limit", "preset", "method", "proposals", "set")
RUN = ("method", "set", "of", "retrain", "branch", "ensemble")
MEASURE = ("split", "limit", "draws", "vote")
TOP = ("about", "not_run", "expect", "seeds", "learn", "runs", "measure")

TEXT, NUMBER, TABLE = (str, "a text"), (int, "a whole number"), (dict, "a table")
KINDS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("about", "not_run", "split", "preset", "method", "of", "retrain", "branch"), TEXT),
    **dict.fromkeys(("limit", "draws"), NUMBER),
    **dict.fromkeys(("set", "proposals"), TABLE),
    "vote": ((int, float), "a number"),
}


@dataclass(frozen=True)
class Run:
    """One line of a result: a detector that is learned, or another look at one."""

    name: str
    config: LearnConfig | RetrainConfig | None  # None: another look
    of: str  # the run that is looked at, itself or another
    branch: str | None
    teacher: str | None = None  # of a run that is retrained
    members: tuple[str, ...] = ()  # of runs that detect together


@dataclass(frozen=True)
class Measure:
    """On what the runs are measured."""

    split: str | None
    limit: int | None
    draws: int  # of the bootstrap
    vote: float | None  # as of `melm evaluate --vote`


@dataclass(frozen=True)
class Recipe:
    """What a recipe file says."""

    path: Path
    about: str
    not_run: str  # why, and what is expected, of a recipe that nobody has run yet
    expect: Mapping[str, Any]
    seeds: tuple[int, ...]
    split: str | None
    limit: int | None
    runs: tuple[Run, ...]
    measures: tuple[Measure, ...]


@dataclass
class Parts:
    """How long each part took, kept in a file: a recipe may be run in pieces."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.is_file():
            self.lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]

    def add(self, part: str, seconds: float, images: int, made: int) -> None:
        line = {"part": part, "seconds": round(seconds, 1), "images": images, "made": made}
        self.lines.append(line)
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in self.lines).encode())

    def totals(self) -> dict[str, dict[str, float]]:
        """Part -> its seconds, and for how many images they were spent."""
        result: dict[str, dict[str, float]] = {}
        for line in self.lines:
            total = result.setdefault(line["part"], {"seconds": 0.0, "made": 0})
            total["seconds"] = round(total["seconds"] + line["seconds"], 1)
            total["made"] += line["made"]
        return result


def read_recipe(path: Path) -> Recipe:
    """A recipe, with words for what is wrong in it."""
    try:
        kept = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such recipe") from None
    except (OSError, ValueError) as error:
        raise MelmError(f"{path}: not a recipe ({error})") from None
    _only(path, kept, TOP, "")
    learn = _table(path, kept, "learn")
    _only(path, learn, LEARN, "learn.")
    seeds = kept.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) < len(seeds):
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
    _check_branches(path, made)
    return Recipe(
        path,
        str(kept.get("about", path.stem)),
        str(kept.get("not_run", "")),
        _table(path, kept, "expect"),
        tuple(seeds),
        learn.get("split"),
        learn.get("limit"),
        made,
        tuple(Measure(m.get("split"), m.get("limit"), m.get("draws", 1000), m.get("vote")) for m in measures),
    )


def _run(path: Path, name: str, entry: Mapping[str, Any], learn: dict[str, Any], runs: Mapping[str, Any]) -> Run:
    if name in (".", "..") or "/" in name or "\\" in name:
        raise UsageError(f"{path}: runs.{name}: a name that can be that of a folder was expected")
    if "ensemble" in entry:
        return _ensemble(path, name, entry, runs)
    of, teacher = entry.get("of", name), entry.get("retrain")
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
            return Run(name, RetrainConfig().with_(**changes), name, entry.get("branch"), teacher)
        except (UsageError, TypeError) as error:
            raise UsageError(f"{path}: runs.{name}: {error}") from None
    try:
        if "proposals" in learn:
            changes["proposals"] = ProposalSettings(**learn["proposals"])
        config = learn_config(learn.get("preset", "fast"), entry.get("method", learn.get("method")), changes)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{path}: runs.{name}: {error}") from None
    return Run(name, config, name, entry.get("branch"))


def _check_branches(path: Path, runs: Sequence[Run]) -> None:
    """Refuses the name of a branch that the run it looks at does not have: before anything is learned."""
    by_name = {run.name: run for run in runs}
    for run in runs:
        learned = by_name[run.of]
        has = ["fused", "student"] if learned.teacher else []
        for _ in runs:  # at most so often: a circle is refused when they are put in turn
            learned = by_name[learned.teacher] if learned.teacher else learned
        if run.branch is not None and isinstance(learned.config, LearnConfig):
            try:
                one_of("branch", run.branch, branches_of(learned.config) + has)
            except UsageError as error:
                raise UsageError(f"{path}: runs.{run.name}: {error}") from None


def _ensemble(path: Path, name: str, entry: Mapping[str, Any], runs: Mapping[str, Any]) -> Run:
    members = entry["ensemble"]
    learned = [n for n, other in runs.items() if isinstance(other, dict) and not {"of", "ensemble"} & set(other)]
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
        if name in KINDS and (not isinstance(kept[name], KINDS[name][0]) or isinstance(kept[name], bool)):
            raise UsageError(f"{path}: {where}{name} = {kept[name]!r}; {KINDS[name][1]} was expected")
    if not 0 <= kept.get("vote", 0) <= 1 or kept.get("draws", 1) < 1 or kept.get("limit", 1) < 1:
        raise UsageError(f"{path}: {where.rstrip('.')}: vote is from 0 to 1, draws and limit are 1 or more")


def run_recipe(
    recipe: Recipe,
    data: Source,
    out: Path,
    *,
    basis: Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Learns and measures everything the recipe says, going on where it stopped; `out`/results.json, and the same as a value."""
    say(recipe.about)
    if recipe.not_run:
        say(f"Not run by us: {recipe.not_run}")
    workers = workers or available_cores()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MelmError(f"{out}: cannot be written ({error.strerror}). Name another --out") from None
    parts = Parts(out / "parts.jsonl")
    learned_from = replace(data, split=recipe.split or data.split, limit=recipe.limit or data.limit)
    for run in in_turn(recipe.runs):
        for seed in recipe.seeds:
            folder = _folder(out, run.of, seed)
            if isinstance(run.config, LearnConfig):
                _learn(learned_from, folder, replace(run.config, seed=seed), basis, device, workers, parts, say)
            elif run.config is not None:
                teacher = _folder(out, str(run.teacher), seed)
                _retrain(learned_from, teacher, folder, replace(run.config, seed=seed), device, workers, parts, say)
    measured = [_measure(recipe, measure, data, out, device, workers, parts, say) for measure in recipe.measures]
    totals = {**parts.totals(), **_learning(recipe, out)}
    results = {
        "recipe": recipe.path.name,
        "text": recipe.path.read_text(encoding="utf-8"),
        "data": str(data.path),
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
        "parts": totals,
        "memory_mb": memory(),
        "measured": measured,
    }
    write_whole(out / "results.json", json.dumps(results, indent=1, ensure_ascii=False).encode())
    for part, total in totals.items():
        say(f"{part}: {duration(total['seconds'])}, for {total['made']:,.0f} images")
    say(f"most memory: {memory():,} MB. Everything is in {out / 'results.json'}")
    return results


def in_turn(runs: Sequence[Run]) -> list[Run]:
    """Those that are learned, each after its teacher."""
    waiting = [run for run in runs if run.config is not None]
    done: list[Run] = []
    while waiting:
        names = {run.name for run in done}
        ready = [run for run in waiting if run.teacher is None or run.teacher in names]
        if not ready:
            raise UsageError(f"runs.{waiting[0].name}: it and its teacher wait for each other")
        done += ready
        waiting = [run for run in waiting if run not in ready]
    return done


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-{seed}"


def _learn(
    source: Source,
    folder: Path,
    config: LearnConfig,
    basis: Path | None,
    device: str,
    workers: int,
    parts: Parts,
    say: Callable[[str], None],
) -> None:
    """One run, its parts by themselves so that the time of each is known."""
    images = read_tags(source)
    if _is_learned(folder, {"config": config.as_dict(), "data": data_record(source, len(images))}):
        say(f"{folder} is learned already")
        return
    say(f"\n{folder}")
    started = time.monotonic()
    with Steps("proposals", len(images)) as steps:
        done = make_proposals(images, ProposalStore(config.proposals), workers, advance=steps.advance)
    parts.add("proposals", time.monotonic() - started, len(images), sum(d.seconds is not None for d in done))
    if config.trunk == "frozen":
        started = time.monotonic()
        store = features(source, config, basis=basis, device=device, workers=workers)
        parts.add("features", time.monotonic() - started, len(images), store.made)
    train(source, folder, config, basis=basis, device=device, workers=workers, say=say)


def _is_learned(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a run is there that was learned so. Of another one `train` and `retrain` say in what it differs."""
    if not (folder / "model.json").is_file():
        return False
    card = load_card(folder)
    return all(card.get(name) == value for name, value in wanted.items())


def _learning(recipe: Recipe, out: Path) -> dict[str, dict[str, float]]:
    """How long each run learned, over all its starts: it knows itself."""
    totals: dict[str, dict[str, float]] = {}
    for run in in_turn(recipe.runs):
        for seed in recipe.seeds:
            card = load_card(_folder(out, run.of, seed))
            total = totals.setdefault("retraining" if run.teacher else "learning", {"seconds": 0.0, "made": 0})
            total["seconds"] = round(total["seconds"] + card["seconds"], 1)
            total["made"] += card["data"]["images"]
    return totals


def _retrain(
    source: Source,
    teacher: Path,
    folder: Path,
    config: RetrainConfig,
    device: str,
    workers: int,
    parts: Parts,
    say: Callable[[str], None],
) -> None:
    learned = {"retrained": config.as_dict(), "data": data_record(source, len(read_tags(source)))}
    if _is_learned(folder, {**learned, "teacher": teacher_digest(load_model(teacher))}):
        say(f"{folder} is learned already")
        return
    say(f"\n{folder}")
    started = time.monotonic()
    retrain(teacher, source, folder, config, device=device, workers=workers, say=say)
    card = load_card(folder)
    images, learning = card["data"]["images"], card["seconds"]
    parts.add("maps and objects", max(0.0, time.monotonic() - started - learning), images, images)


def _measure(
    recipe: Recipe,
    measure: Measure,
    data: Source,
    out: Path,
    device: str,
    workers: int,
    parts: Parts,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """All runs on one part of the data: each run's figures, their spread over seeds, and the first run against each other."""
    source = replace(data, split=measure.split or data.split, limit=measure.limit or data.limit)
    truth = read_truth(source)
    images = placed(truth, read_tags(source))
    truth = truth.only(images.classes)
    started = time.monotonic()
    of_seed: dict[int, list[Evaluation]] = {}
    for run in recipe.runs:
        for seed in recipe.seeds:
            settings = DetectSettings(branch=run.branch, vote=measure.vote, max_boxes=0)
            name = f"{run.name}-{seed}"
            given = (name, truth, images, settings, None, workers, device)
            if run.members:
                subject = subject_of_ensemble([_folder(out, member, seed) for member in run.members], *given)
            else:
                subject = subject_of_run(_folder(out, run.of, seed), *given)
            subject = replace(subject, method=run.name, seeds=(seed,), alike=run.name)
            with Steps(f"{name}: measuring", 2) as steps:
                evaluation = evaluate(subject, truth, images)
                steps.advance()
                # small, so that memory does not grow with the runs
                of_seed.setdefault(seed, []).append(evaluation.sample(truth, measure.draws).small())
                steps.advance()
    every = [evaluation for evaluations in of_seed.values() for evaluation in evaluations]
    against: list[Comparison] = []
    for evaluations in of_seed.values():
        against += comparisons(evaluations, truth, measure.draws, every_two=False)
    where = f"split {source.split}: {len(truth.images):,} images"
    report = Report(where, every, by_seed(every), against)
    parts.add("measuring", time.monotonic() - started, len(images) * len(every), len(images) * len(every))
    say("\n" + report.text())
    kept = report.as_dict()
    return {
        "split": source.split,
        "images": len(truth.images),
        "runs": [_short(evaluation) for evaluation in every],
        "seeds": rounded(kept["seeds"]),
        "comparisons": rounded(kept["comparisons"]),
    }


def _short(evaluation: Evaluation) -> dict[str, Any]:
    """What a table needs of an evaluation; the rest is a `melm evaluate --json` away."""
    every, classes = evaluation.as_dict(), evaluation.per_class()
    result = {key: every[key] for key in ("name", "method", "seed", "summary", "randomness")}
    result["errors_of_best_boxes"] = every["errors_of_best_boxes"]["shares"]
    result["classes"] = {measure: classes[measure] for measure in ("CorLoc", "AP voc07")}
    return dict(rounded(result))


def rounded(value: Any) -> Any:
    """Numbers to five digits after the point: a log that people keep is small."""
    if isinstance(value, Mapping):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return value


def memory() -> int:
    """The most memory this process or one of its workers held, in MB; 0 where the system does not say."""
    if resource is None:
        return 0
    unit = 1024 if sys.platform != "darwin" else 1024 * 1024
    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return int(most // unit)


def machine() -> str:
    return f"{platform.machine()}, {available_cores()} of {os.cpu_count()} cores, {platform.system()}"


def commit() -> str | None:
    """The commit of the source this runs from, where it runs from a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
