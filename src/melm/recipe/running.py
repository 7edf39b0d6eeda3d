"""`melm run --recipe`: everything a recipe says is learned and measured, in pieces that go on where they stopped."""

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
from melm.errors import MelmError, UsageError
from melm.files import write_whole
from melm.learn.model_file import basis_of, load_card, load_model
from melm.learn.presets import LearnConfig
from melm.learn.processes import Processes, device_named
from melm.learn.retrain import retrain
from melm.learn.run_folder import data_record, versions
from melm.learn.students import RetrainConfig, with_all_names
from melm.learn.teaching import teacher_digest
from melm.learn.train import basis_digest, features, train
from melm.measure.evaluation import Comparison, Evaluation, by_seed, comparisons, evaluate
from melm.measure.subjects import placed, subject_of_ensemble, subject_of_run
from melm.measure.truth import Truth, read_truth
from melm.model.backbones.sources import locate
from melm.progress import Steps, duration
from melm.proposals import ProposalStore, make_proposals
from melm.recipe.reading import Measure, Recipe, in_precision, in_turn, students_of
from melm.show.evaluation_report import Report
from melm.workers import available_cores

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


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
        _write(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def totals(self) -> dict[str, dict[str, float]]:
        """Part -> its seconds, and for how many images they were spent."""
        result: dict[str, dict[str, float]] = {}
        for line in self.lines:
            total = result.setdefault(line["part"], {"seconds": 0.0, "made": 0})
            total["seconds"] = round(total["seconds"] + line["seconds"], 1)
            total["made"] += line["made"]
        return result


def run_recipe(
    recipe: Recipe,
    data: Source,
    out: Path,
    *,
    bases: Sequence[Path] = (),
    device: str = "auto",
    workers: int | None = None,
    precision: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Learns and measures everything the recipe says, going on where it stopped; `out`/results.json, and the same as a value.
    `bases` are earlier runs, one for each backbone: images are read as they do it. `precision`: of all runs, in the place of
    the recipe's."""
    say(recipe.about)
    if recipe.not_run:
        say(f"Not run by us: {recipe.not_run}")
    workers = workers or available_cores()
    if precision is not None:
        Processes(0, 1, device_named(device)).check_precision(precision)
        recipe = in_precision(recipe, precision)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MelmError(f"{out}: cannot be written ({error.strerror}). Name another --out") from None
    parts = Parts(out / "parts.jsonl")
    sources = [_part(data, measure.split, measure.limit) for measure in recipe.measures]
    truths = [read_truth(source) for source in sources]  # what cannot be measured is said before anything is learned
    _check_weights(recipe, out)
    basis = _by_backbone(recipe, bases)
    learned_from = _part(data, recipe.split, recipe.limit)
    for run in in_turn(recipe.runs):
        for seed in recipe.seeds:
            folder = _folder(out, run.of, seed)
            if isinstance(run.config, LearnConfig):
                config, students = replace(run.config, seed=seed), students_of(run, recipe.runs)
                of = basis.get(config.backbone) if config.trunk == "frozen" else None
                _learn(learned_from, folder, config, students, of, device, workers, parts, say)
            elif run.config is not None:
                teachers = [_folder(out, name, seed) for name in (str(run.teacher), *run.along)]
                _retrain(learned_from, teachers, folder, replace(run.config, seed=seed), device, workers, parts, say)
    measured = [
        _measure(recipe, measure, source, truth, out, device, workers, parts, say)
        for measure, source, truth in zip(recipe.measures, sources, truths, strict=True)
    ]
    totals = {**parts.totals(), **_learning(recipe, out)}
    results = {
        "recipe": recipe.path.name,
        "text": recipe.text,
        "data": str(data.path),
        **({"precision": precision} if precision else {}),
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
        "parts": totals,
        "memory_mb": memory(),
        "measured": measured,
    }
    _write(out / "results.json", json.dumps(results, indent=1, ensure_ascii=False))
    for part, total in totals.items():
        say(f"{part}: {duration(total['seconds'])}, for {total['made']:,.0f} images")
    say(f"most memory: {memory():,} MB. Everything is in {out / 'results.json'}")
    return results


def _part(data: Source, split: str | None, limit: int | None) -> Source:
    """What the recipe takes of the data; where it does not say, what the caller does."""
    for name, own, given in (("split", split, data.split), ("limit", limit, data.limit)):
        if own is not None and given is not None:
            raise UsageError(f"--{name} {given}: the recipe has its own, {own}. Change its file, or leave --{name} out")
    return replace(data, split=split or data.split, limit=limit or data.limit)


def _check_weights(recipe: Recipe, out: Path) -> None:
    """Refuses weights that are not there, of runs that are not learned yet."""
    configs = {run.name: run.config for run in recipe.runs}
    for run in recipe.runs:
        config = run.config
        if config is None or config.weights == "none":
            continue
        if isinstance(config, RetrainConfig):
            teacher = configs[str(run.teacher)]
            goes_on = isinstance(teacher, RetrainConfig) and config.backbone == teacher.backbone
            if goes_on or not config.whole:  # with the weights of that run
                continue
        if not all((_folder(out, run.name, seed) / "model.json").is_file() for seed in recipe.seeds):
            locate(config.weights, config.backbone, config.weights_sha256 or None)


def _by_backbone(recipe: Recipe, bases: Sequence[Path]) -> dict[str, Path]:
    """Of every backbone the run whose basis serves; all of them or none."""
    found: dict[str, Path] = {}
    for run in bases:
        own = load_card(run)["config"]["backbone"]
        if own in found:
            raise UsageError(f"--basis: {found[own]} and {run} are both of {own}")
        found[own] = run
    for config in (run.config for run in recipe.runs) if bases else ():
        if isinstance(config, LearnConfig) and config.trunk == "frozen" and config.backbone not in found:
            raise UsageError(f"--basis: none is of {config.backbone}, which {recipe.path} learns with, too. Add one")
    return found


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror}). Make room and run again") from None


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-{seed}"


def _learn(
    source: Source,
    folder: Path,
    config: LearnConfig,
    students: RetrainConfig | None,
    basis: Path | None,
    device: str,
    workers: int,
    parts: Parts,
    say: Callable[[str], None],
) -> None:
    """One run, its parts by themselves so that the time of each is known."""
    images = read_tags(source)
    wanted = {"config": config.as_dict(), "data": data_record(source, len(images))}
    if _is_learned(folder, wanted) and _reads_as(folder, basis, config.backbone):
        say(f"{folder} is learned already")
        return
    say(f"\n{folder}")
    started = time.monotonic()
    with Steps("proposals", len(images)) as steps:
        done = make_proposals(images, ProposalStore(config.proposals), workers, advance=steps.advance)
    parts.add("proposals", time.monotonic() - started, len(images), sum(d.seconds is not None for d in done))
    if config.trunk == "frozen":
        started = time.monotonic()
        store = features(source, config, basis=basis, students=students, device=device, workers=workers)
        parts.add("features and maps" if students else "features", time.monotonic() - started, len(images), store.made)
    train(source, folder, config, basis=basis, device=device, workers=workers, say=say)


def _is_learned(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a run is there that was learned so. Of another one `train` and `retrain` say in what it differs."""
    if not (folder / "model.json").is_file():
        return False
    card = with_all_names(load_card(folder))
    return all(card.get(name) == value for name, value in wanted.items())


def _reads_as(folder: Path, basis: Path | None, backbone: str) -> bool:
    """Whether a run has the basis of another one; or, of none, its own."""
    if basis is None:
        return load_card(folder)["basis"] is None
    mine, given = (basis_digest(basis_of(run, backbone)) for run in (folder, basis))
    return mine == given


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
    teachers: Sequence[Path],
    folder: Path,
    config: RetrainConfig,
    device: str,
    workers: int,
    parts: Parts,
    say: Callable[[str], None],
) -> None:
    teacher, *along = [teacher_digest(load_model(path)) for path in teachers]
    learned = {"retrained": config.as_dict(), "data": data_record(source, len(read_tags(source)))}
    if _is_learned(folder, {**learned, "teacher": teacher, "teaches_along": along}):
        say(f"{folder} is learned already")
        return
    say(f"\n{folder}")
    started = time.monotonic()
    retrain(teachers[0], source, folder, config, others=teachers[1:], device=device, workers=workers, say=say)
    card = load_card(folder)
    images, learning = card["data"]["images"], card["seconds"]
    parts.add("maps and objects", max(0.0, time.monotonic() - started - learning), images, images)


def _measure(
    recipe: Recipe,
    measure: Measure,
    source: Source,
    truth: Truth,
    out: Path,
    device: str,
    workers: int,
    parts: Parts,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """All runs on one part of the data: each run's figures, their spread over seeds, and the first run against each other."""
    images = placed(truth, read_tags(source))
    truth = truth.only(images.classes)
    started = time.monotonic()
    of_seed: dict[int, list[Evaluation]] = {}
    for run in (run for run in recipe.runs if run.measured):
        for seed in recipe.seeds:
            settings = DetectSettings(branch=run.branch, vote=measure.vote, agree=measure.agree, max_boxes=0)
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

    def git(*command: str) -> str:
        here = ["git", "-C", str(Path(__file__).parent), *command]
        return subprocess.run(here, capture_output=True, text=True, timeout=10).stdout.strip()

    try:  # an installed package may lie in the checkout of something else
        return git("describe", "--always", "--dirty", "--abbrev=12") if git("ls-files", Path(__file__).name) else None
    except (OSError, subprocess.TimeoutExpired):
        return None
