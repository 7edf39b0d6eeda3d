"""`melm demo`: the whole job on the embedded data set, from tags to measured boxes and pictures, in minutes."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from melm.data import Source, read_image, read_tags
from melm.data.scenes import write_scenes
from melm.detect.detections import Detections
from melm.detect.detector import DetectSettings, load
from melm.detect.run import Looking
from melm.learn.presets import LearnConfig, learn_config
from melm.learn.train import train
from melm.measure.average_precision import average_precision
from melm.measure.corloc import CorLoc, corloc
from melm.measure.of_run import Seen, look_at
from melm.measure.truth import read_truth
from melm.progress import Steps, duration
from melm.proposals import ProposalSettings, make_proposals
from melm.show.drawings import contact_sheet, draw_detections, save_jpeg
from melm.show.tables import table
from melm.workers import available_cores

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    # as published: the location stream reads the box alone, and nothing else is known
    "WSDDN": ("WSDDN", {"surround": False, "prior_weight": 0.0, "contrast_weight": 0.0, "score_weight": 0.0}),
    "MELM": ("MELM", {}),
}
SHOWN = 12  # pictures on a sheet


@dataclass(frozen=True)
class Outcome:
    """What one method made of the data."""

    corloc: CorLoc
    mean_ap: float
    accuracy: float
    variance: float
    detections: dict[str, Detections]  # on the held-out images


def demo_config(method: str, seed: int, settings: dict[str, Any]) -> LearnConfig:
    """The `fast` preset made smaller: the scenes are small and few."""
    changes: dict[str, Any] = {
        **settings,
        "proposals": ProposalSettings("edge-boxes", max_boxes=400),
        "scales": (192, 288, 416, 608),
        "boxes_a_step": 0,
        "epochs": 6,
        "drop_after": 4,
        "seed": seed,
    }
    return learn_config("fast", method, changes)


def run_demo(folder: Path, train_images: int = 300, test_images: int = 60, seed: int = 0) -> dict[str, Outcome]:
    """Makes the data, learns with MELM and with WSDDN, detects on held-out images, measures, draws."""
    started = time.monotonic()
    os.environ.setdefault("MELM_CACHE", str((folder / "cache").absolute()))
    photos = folder / "photos"
    print(f"A generated data set in {photos}: {train_images} images to learn from, {test_images} held out.")
    write_scenes(photos, train_images, test_images, seed)
    source = Source(photos / "train-tags.csv")
    _show_tags(source)
    outcomes = {}
    for name, (method, settings) in METHODS.items():
        print(f"\n{name}: learning from the tags alone")
        run = train(source, folder / f"run-{name.lower()}", demo_config(method, seed, settings))
        outcomes[name] = measure(run, photos)
    print("\n" + outcome_table(outcomes))
    sheets = _draw(outcomes, photos, folder)
    print(f"\nRight boxes are green, wrong ones red, the true ones yellow: {sheets}")
    print(f"Runs, data and pictures are in {folder}. Done in {duration(time.monotonic() - started)}.")
    return outcomes


def measure(run: Path, photos: Path) -> Outcome:
    """CorLoc and localization randomness on the images learned from, average precision on the held-out ones."""
    looking = Looking(load(run, DetectSettings(max_boxes=0)), keep=True)
    learned = _looked(looking, photos, "train")
    held_out = _looked(looking, photos, "test")
    randomness = learned.randomness
    return Outcome(
        corloc(read_truth(Source(photos / "train.json")), learned.detections, learned.tags),
        average_precision(read_truth(Source(photos / "test.json")), held_out.detections).mean,
        randomness.accuracy,
        randomness.variance,
        held_out.detections,
    )


def _looked(looking: Looking, photos: Path, split: str) -> Seen:
    images = read_tags(Source(photos / f"{split}-tags.csv"))
    done = make_proposals(images, looking.proposals, available_cores())
    with Steps(f"looking at {split} images", len(images)) as steps:
        truth = read_truth(Source(photos / f"{split}.json"))
        return look_at(looking, images, [str(result.key) for result in done], truth, steps.advance)


def outcome_table(outcomes: dict[str, Outcome]) -> str:
    rows = [
        [name, f"{100 * o.corloc.mean:.1f}", f"{100 * o.mean_ap:.1f}", f"{o.accuracy:.3f}", f"{o.variance:.3f}"]
        for name, o in outcomes.items()
    ]
    return table(["method", "CorLoc %", "mAP %", "localization accuracy", "variance"], rows)


def _show_tags(source: Source) -> None:
    images = read_tags(source)
    counts = Counter(name for image in images for name in image.tags)
    for image in images[:4]:
        print(f"  {image.path.name}: {', '.join(image.tags) or 'nothing'}")
    print("  ... " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


def _draw(outcomes: dict[str, Outcome], photos: Path, folder: Path) -> str:
    """A sheet per method: held-out images with the best box of each tag."""
    images = [image for image in read_tags(Source(photos / "test-tags.csv")) if image.tags][:SHOWN]
    truth = read_truth(Source(photos / "test.json"))
    for name, outcome in outcomes.items():
        drawn = []
        for image in images:
            best = outcome.detections[image.id].only(truth.classes).best_of(image.tags)
            drawn.append(draw_detections(read_image(image.path), best, 0.0, truth.images[image.id]))
        save_jpeg(contact_sheet(drawn, columns=4, width=1600), folder / f"{name.lower()}.jpg")
    return " and ".join(str(folder / f"{name.lower()}.jpg") for name in outcomes)
