"""What a run's folder and its labels say: the facts that a report is made of, read once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from melm.detect.detections import Detections
from melm.detect.labels import LABELS, Labels
from melm.errors import MelmError
from melm.learn.model_file import load_card, load_model
from melm.learn.run_folder import RunFolder, epochs_of
from melm.learn.teaching import teacher_digest
from melm.measure.watching import Look, read_looks

IN_LABELS = (
    "data_digest",
    "config",
    "retrained",
    "teacher",
    "teaches_along",
)  # what labels.settings.json keeps of the run that made them


@dataclass(frozen=True)
class RunFacts:
    """A run on disk."""

    path: Path
    about: dict[str, Any]  # run.json
    card: dict[str, Any] | None  # model.json; None while the run is not finished
    epochs: list[dict[str, Any]]  # of the log
    steps: list[dict[str, Any]]  # of the log, too: one for every change of the weights
    looks: list[Look]  # at the images that it watched

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.about["classes"])


def read_run(path: Path) -> RunFacts:
    """The facts of a run, finished or not."""
    about = RunFolder(path).about() if path.is_dir() else None
    if about is None:
        raise MelmError(f"{path}: no run.json in it; the folder of a run, which `melm train --out` makes, was expected")
    missing = [key for key in ("config", "classes", "data", "versions") if key not in about]
    if missing:
        raise MelmError(f"{path / 'run.json'}: damaged ({missing[0]!r} is missing)")
    card = load_card(path) if (path / "model.json").is_file() else None
    return RunFacts(path, about, card, epochs_of(path), _steps(path), read_looks(path))


def _steps(run: Path) -> list[dict[str, Any]]:
    """The log's lines of single steps. The epochs' were read before, so the file can be read or is not there."""
    path = run / "log.jsonl"
    records = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last one may still be written
        if isinstance(record, dict) and "step" in record and "epoch" in record:
            records.append(record)
    return records


def teacher_of(run: RunFacts, path: Path | None) -> RunFacts | None:
    """The run that a retrained one learned from: at `path`, or else RUN-first, where `melm run` puts it."""
    if path is None:
        path = run.path.with_name(f"{run.path.name}-first")
        if not run.about.get("retrained") or not (path / "model.json").is_file():
            return None
        return read_run(path) if _taught(path, run) else None
    if not _taught(path, run):
        raise MelmError(f"{path}: not the run that taught {run.path}, as its run.json tells by the teacher's digest")
    return read_run(path)


def _taught(path: Path, run: RunFacts) -> bool:
    return teacher_digest(load_model(path)) == run.about.get("teacher")


def labels_of(run: RunFacts, folder: Path | None) -> Labels | None:
    """The labels in `folder`, or where `melm label` puts them; None where nobody asked for any and there are none."""
    place = folder or run.path / "labels"
    if folder is None and not (place / LABELS).is_file():
        return None
    labels = Labels(place)
    made_by = labels.settings.get("run")
    there = run.card or run.about
    if isinstance(made_by, dict) and any(made_by.get(key) != there.get(key) for key in IN_LABELS):
        raise MelmError(
            f"{labels.path}: labels of another run than {run.path}. Name its own with --labels, or make them anew: "
            "melm label RUN DATA --overwrite"
        )
    if not len(labels):
        raise MelmError(f"{labels.path}: no image in it; `melm label {run.path} DATA` goes on with it")
    return labels


@dataclass
class Glance:
    """Labels at a glance: counts over all of them, in one pass."""

    classes: tuple[str, ...]
    images: int = 0
    tagged: Counter[str] = field(default_factory=Counter)  # class -> images with this tag
    tags_per_image: Counter[int] = field(default_factory=Counter)
    boxes: Counter[str] = field(default_factory=Counter)  # class -> boxes
    confidence: Counter[str] = field(default_factory=Counter)  # class -> sum over the best box of each tag
    doubts: list[float] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    with_boxes: list[int] = field(default_factory=list)  # places among the labels
    found: dict[str, Detections] = field(default_factory=dict)  # by image id
    tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    def mean_confidence(self, name: str) -> float:
        return self.confidence[name] / self.tagged[name] if self.tagged[name] else float("nan")

    def middle_sizes(self) -> dict[str, tuple[int, int]]:
        """The smallest, the median and the largest image, by area."""
        by_area = sorted(self.sizes, key=lambda size: (size[0] * size[1], size))
        if not by_area:
            return {}
        return {"smallest": by_area[0], "median": by_area[len(by_area) // 2], "largest": by_area[-1]}


def glance_at(labels: Labels) -> Glance:
    """One pass over the labels."""
    glance = Glance(labels.classes)
    for place, image in enumerate(labels):
        glance.images += 1
        glance.tagged.update(image.tags)
        glance.tags_per_image[len(image.tags)] += 1
        glance.doubts.append(image.doubt)
        glance.sizes.append((image.found.width, image.found.height))
        names = image.found.class_names()
        glance.boxes.update(names)
        for k in np.flatnonzero(image.best):
            glance.confidence[names[k]] += float(image.found.scores[k])  # type: ignore[assignment]
        if image.best.any():
            glance.with_boxes.append(place)
        glance.files[image.id] = image.path
        glance.found[image.id], glance.tags[image.id] = image.found, image.tags
    return glance


def spread_over(places: Sequence[int], count: int) -> list[int]:
    """The first and the last of the places, and others evenly between."""
    if not places or count < 1:
        return []
    return [
        places[i] for i in dict.fromkeys(np.linspace(0, len(places) - 1, min(count, len(places))).round().astype(int))
    ]
