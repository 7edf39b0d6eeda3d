"""What can be measured: a run of ours, looked at image by image, or the detections of another tool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from melm.data import Source, read_tags
from melm.data.records import TaggedImages
from melm.detect.detections import Detections
from melm.detect.detector import DetectSettings, load
from melm.detect.run import Looking
from melm.errors import MelmError
from melm.learn.run_folder import data_digest, epochs_of
from melm.measure.evaluation import Evaluation, Subject, evaluate
from melm.measure.of_run import SeenStore, look_at
from melm.measure.other_results import read_detections
from melm.measure.truth import Truth, read_truth
from melm.progress import Steps
from melm.proposals import ProposalSettings, ReadyMade, make_proposals, settings_for_file

SHOWN = 20  # images named in an error


def names_for(paths: Sequence[Path]) -> dict[Path, str]:
    """A short name for each: that of the folder or file, or the whole path where two would be the same."""
    short = {path: path.resolve().name if path.is_dir() else path.stem for path in paths}
    names = list(short.values())
    return {path: name if names.count(name) == 1 else str(path) for path, name in short.items()}


def subject_of_run(
    run: Path,
    name: str,
    truth: Truth,
    images: TaggedImages,
    settings: DetectSettings,
    ready_made: ReadyMade | None = None,
    workers: int = 1,
    device: str = "auto",
) -> Subject:
    """A run of ours on these images: what it detects in each, how sure it is of each class, and how scattered it is."""
    detector = load(run, settings, device)
    unknown = [c for c in detector.classes if c not in truth.classes]
    if unknown:
        raise MelmError(
            f"{run}: learned the class {unknown[0]!r}, which the data does not have. Measure it on data with its classes: "
            f"{', '.join(detector.classes)}"
        )
    boxes = settings_for_file(ProposalSettings("file"), ready_made) if ready_made else None
    looking = Looking(detector, boxes, keep=True)
    with Steps(f"{name}: proposals", len(images)) as steps:
        done = make_proposals(images, looking.proposals, workers, ready_made, steps.advance)
    failed = [str(result.error) for result in done if result.key is None]
    if failed:
        more = f"\n  and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
        listed = "\n  ".join(failed[:SHOWN])
        raise MelmError(f"{len(failed)} of {len(images)} images cannot be looked at:\n  {listed}{more}")
    keys = [str(result.key) for result in done]
    store = SeenStore(run, looking, truth)
    with Steps(f"{name}: looking at images", len(images)) as steps:
        seen = look_at(looking, images, keys, truth, steps.advance, store if store.prepare() else None)
    config = detector.config.as_dict()
    alike = {**config, "seed": None}
    scores = np.zeros((len(images), len(truth.classes)))
    scores[:, [truth.classes.index(c) for c in detector.classes]] = np.array(seen.image_scores)
    return Subject(
        name,
        seen.detections,
        scores,
        seen.randomness,
        epochs_of(run),
        json.dumps([alike, detector.branch, detector.learned.card["data_digest"]], sort_keys=True),
        detector.config.method,
        data_digest(images, keys) == detector.learned.card["data_digest"],
    )


def measure(
    what: Path | str | Mapping[str, Detections],
    data: Source | Path | str,
    *,
    settings: DetectSettings | None = None,
    workers: int = 1,
    device: str = "auto",
) -> Evaluation:
    """All measures of a run (its folder), of a file with another tool's results, or of detections by image id.

    `melm.evaluate("runs/birds", "photos/").corloc.mean`
    """
    source = data if isinstance(data, Source) else Source(Path(data))
    truth, images = read_truth(source), read_tags(source)
    if isinstance(what, Mapping):
        return evaluate(Subject("detections", what), truth, images)
    path = Path(what)
    name = names_for([path])[path]
    if (path / "run.json").is_file():
        settings = replace(settings or DetectSettings(), max_boxes=0)  # a cut costs average precision
        return evaluate(subject_of_run(path, name, truth, images, settings, None, workers, device), truth, images)
    return evaluate(Subject(name, read_detections(path, truth, split=source.split)), truth, images)
