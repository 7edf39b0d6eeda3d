"""What can be measured: a run of ours, looked at image by image, or the detections of another tool."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.data import Source, read_tags
from melm.data.images import ImageError, read_image
from melm.data.records import TaggedImages
from melm.detect.detections import Detections
from melm.detect.detector import Detector, DetectSettings, load
from melm.detect.ensemble import Ensemble
from melm.detect.run import looking_with
from melm.errors import MelmError, UsageError, did_you_mean
from melm.learn.run_folder import DECIDES, data_digest, epochs_of
from melm.measure.evaluation import Evaluation, Subject, evaluate
from melm.measure.of_run import Seen, SeenStore, look_at
from melm.measure.other_results import read_detections
from melm.measure.pointing import TOLERANCE
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
    detector = detector_of(run, settings, device)
    seen, keys = looked_at(detector, run, name, truth, images, ready_made, workers)
    card, config = detector.learned.card, detector.config
    every = [config.as_dict(), *card.get("rounds", []), *([card["retrained"]] if detector.students else [])]
    of_seed = ("config", "retrained", "teacher", "teaches_along", "student_weights")
    alike = {key: card.get(key) for key in DECIDES if key not in of_seed}
    alike["teach along"] = len(card.get("teaches_along", []))
    alike["learned"] = [{**settings, "seed": None} for settings in every]
    return Subject(
        name,
        {id: found.only(truth.classes) for id, found in seen.detections.items()},
        image_scores(seen, detector.classes, truth.classes),
        seen.randomness,
        epochs_of(run),
        json.dumps([alike, detector.branch], sort_keys=True),
        tuple(settings["seed"] for settings in every),
        config.method,
        {"run": str(run), "branch": detector.branch, "views": settings.views, "versions": card["versions"]},
        data_digest(images, keys) == card["data_digest"],
    )


def subject_of_ensemble(
    runs: Sequence[Path],
    name: str,
    truth: Truth,
    images: TaggedImages,
    settings: DetectSettings,
    ready_made: ReadyMade | None = None,
    workers: int = 1,
    device: str = "auto",
) -> Subject:
    """Several runs that detect together; what was seen is kept in the first."""
    ensemble = Ensemble([detector_of(run, settings, device) for run in runs])
    seen, keys = looked_at(ensemble, runs[0], name, truth, images, ready_made, workers)
    cards = [member.learned.card for member in ensemble.members]
    return Subject(
        name,
        {id: found.only(truth.classes) for id, found in seen.detections.items()},
        image_scores(seen, ensemble.classes, truth.classes),
        seen.randomness if seen.accuracies else None,
        method="ensemble",
        about={"runs": [str(run) for run in runs], "views": settings.views, "versions": cards[0]["versions"]},
        learned_from=any(data_digest(images, keys) == card["data_digest"] for card in cards),
    )


def looked_at(
    detector: Detector | Ensemble,
    run: Path,
    name: str,
    truth: Truth,
    images: TaggedImages,
    ready_made: ReadyMade | None,
    workers: int,
) -> tuple[Seen, list[str]]:
    """What is seen in all images, kept in `run`; and the images' keys."""
    boxes = settings_for_file(ProposalSettings("file"), ready_made) if ready_made else None
    looking = looking_with(detector, boxes, keep=True)
    for proposals in looking.stores:
        with Steps(f"{name}: proposals", len(images)) as steps:
            done = make_proposals(images, proposals, workers, ready_made, steps.advance)
        failed = [str(result.error) for result in done if result.key is None]
        if failed:
            more = f"\n  and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
            listed = "\n  ".join(failed[:SHOWN])
            raise MelmError(
                f"{len(failed)} of {len(images)} images cannot be looked at:\n  {listed}{more}\n"
                "Mend or remove them, or leave them out with --skip-bad"
            )
    keys = [str(result.key) for result in done]
    store = SeenStore(run, looking, truth)
    with Steps(f"{name}: looking at images", len(images)) as steps:
        return look_at(looking, images, keys, truth, steps.advance, store if store.prepare() else None), keys


def image_scores(seen: Seen, learned: tuple[str, ...], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """P(y) of every image, by the classes of the data; of a class that was not learned, none."""
    count = len(seen.image_scores)
    scores = np.full((count, len(classes)), -np.inf)
    both = [c for c in learned if c in classes]
    found = np.array(seen.image_scores).reshape(count, len(learned))
    scores[:, [classes.index(c) for c in both]] = found[:, [learned.index(c) for c in both]]
    return scores


def detector_of(run: Path, settings: DetectSettings, device: str = "auto") -> Detector:
    """The detector of a run, with words for what is none."""
    if run.is_file():
        raise UsageError(f"{run}: a file, not the folder of a run. Results of another tool go with --detections {run}")
    return load(run, settings, device)


def require_classes(run: Path, detector: Detector, classes: Sequence[str]) -> None:
    """Refuses a run that learned a class which the data does not have."""
    unknown = [c for c in detector.classes if c not in classes]
    if unknown:
        raise MelmError(
            f"{run}: learned the class {unknown[0]!r}, which the data does not have.{did_you_mean(unknown[0], classes)} "
            f"Measure it on data with its classes: {', '.join(detector.classes)}"
        )


def readable(truth: Truth, images: TaggedImages) -> tuple[Truth, TaggedImages, list[str]]:
    """Truth and images without those whose file cannot be read to its end, and what is wrong with these."""
    complaints = {}
    with Steps("reading images", len(images)) as steps:
        for image in images:
            try:
                read_image(image.path)
            except ImageError as error:
                complaints[image.id] = str(error)
            steps.advance()
    bad = {image.id: image.path for image in images if image.id in complaints}
    kept = {id: true for id, true in truth.images.items() if id not in bad}
    without = replace(truth, images=kept, left_out={**truth.left_out, **bad})
    good = tuple(image for image in images if image.id not in bad)
    return without, replace(images, images=good), list(complaints.values())


def placed(truth: Truth, images: TaggedImages) -> TaggedImages:
    """The images whose boxes are known."""
    return replace(images, images=tuple(image for image in images if image.id in truth.images))


def measure(
    what: Path | str | Mapping[str, Detections],
    data: Source | Path | str,
    *,
    settings: DetectSettings | None = None,
    proposals_file: ReadyMade | None = None,
    clip: bool = False,
    tolerance: float = TOLERANCE,
    threshold: float = 0.5,
    workers: int = 1,
    device: str = "auto",
) -> Evaluation:
    """All measures of a run (its folder), of a file with another tool's results, or of detections by image id.

    `melm.evaluate("runs/birds", "photos/").corloc.mean`
    """
    source = data if isinstance(data, Source) else Source(Path(data))
    truth = read_truth(source)
    images = placed(truth, read_tags(source))
    if isinstance(what, Mapping):
        subject = Subject("detections", what)
    elif (path := Path(what)) and (path / "run.json").is_file():
        settings = replace(settings or DetectSettings(), max_boxes=0)  # a cut costs average precision
        require_classes(path, detector_of(path, settings, device), truth.classes)
        subject = subject_of_run(path, path.name, truth, images, settings, proposals_file, workers, device)
    else:
        subject = Subject(path.stem, read_detections(path, truth, clip, source.split))
    return evaluate(subject, truth, images, tolerance, threshold)
