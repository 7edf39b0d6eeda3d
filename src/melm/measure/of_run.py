"""A run looked at image by image: everything the measures need, read in one pass and kept, so that it need not be read again."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.data.records import TaggedImage
from melm.detect.detections import Detections
from melm.detect.run import Looking, LookingTogether
from melm.files import write_whole
from melm.learn.processes import a_thread_each
from melm.measure.randomness import Randomness, localization
from melm.measure.truth import TrueBoxes, Truth
from melm.proposals import Proposals
from melm.workers import in_threads

VERSION = 2  # raise it when the same files would hold other numbers


@dataclass(frozen=True, slots=True)
class SeenImage:
    """What a detector says of one image."""

    detections: Detections
    image_scores: NDArray[np.float64]  # (K,) P(y), by discovery
    accuracies: NDArray[np.float64]  # (P,) of localization, for every tag with a true box
    variances: NDArray[np.float64]  # (P,)


@dataclass
class Seen:
    """What a detector says of some images."""

    detections: dict[str, Detections] = field(default_factory=dict)  # by image id
    tags: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of the images, by id
    image_scores: list[NDArray[np.float64]] = field(default_factory=list)  # (K,) P(y) of each image, by discovery
    accuracies: list[float] = field(default_factory=list)  # of localization, one for each image and tag
    variances: list[float] = field(default_factory=list)

    @property
    def randomness(self) -> Randomness:
        return Randomness(np.array(self.accuracies), np.array(self.variances))

    def add(self, image: TaggedImage, seen: SeenImage) -> None:
        self.detections[image.id], self.tags[image.id] = seen.detections, image.tags
        self.image_scores.append(seen.image_scores)
        self.accuracies += seen.accuracies.tolist()
        self.variances += seen.variances.tolist()


def look_at(
    looking: Looking | LookingTogether,
    images: Sequence[TaggedImage],
    keys: Sequence[str],
    truth: Truth | None = None,
    advance: Callable[[], None] = lambda: None,
    store: SeenStore | None = None,
) -> Seen:
    """Runs a detector over images that have proposals. With `truth`, localization accuracy and variance are measured too:
    of the branch that detects, for every tag with a true box. What is in the `store` is not computed again."""
    numbered = list(enumerate(zip(images, keys, strict=True)))

    def look(item: tuple[int, tuple[TaggedImage, str]]) -> SeenImage:
        image, key = item[1]
        seen = store.get(key, image, looking.detector.classes) if store else None
        if seen is None:
            seen = look_at_one(looking, image, key, truth)
            if store:
                store.put(key, image, seen)
        return seen

    found: dict[int, SeenImage] = {}
    with a_thread_each(looking.device) if looking.at_once else nullcontext(1) as threads:
        for (number, _), seen in in_threads(look, numbered, threads):
            found[number] = seen
            advance()
    result = Seen()
    for number, (image, _) in numbered:
        result.add(image, found[number])
    return result


def look_at_one(
    looking: Looking | LookingTogether, image: TaggedImage, key: str, truth: Truth | None = None
) -> SeenImage:
    """One image that has proposals."""
    seen = looking.sight(key, image.path)
    true, pairs = truth.images.get(image.id) if truth else None, []
    if truth and true and seen.scores is not None and seen.proposals is not None:
        pairs = _randomness(looking.detector.classes, seen.scores, seen.proposals, image.tags, truth, true)
    accuracies, variances = np.array(pairs).reshape(-1, 2).T
    return SeenImage(seen.detections, seen.presence, accuracies, variances)


def _randomness(
    classes: Sequence[str],
    scores: NDArray[np.float32],
    found: Proposals,
    tags: tuple[str, ...],
    truth: Truth,
    true: TrueBoxes,
) -> list[tuple[float, float]]:
    """Localization accuracy and variance of every tag that the detector knows and that has a true box."""
    column = {name: k for k, name in enumerate(classes)}
    number = {name: k for k, name in enumerate(truth.classes)}
    result = []
    for name in tags:
        if name in column and name in number and len(objects := true.boxes[true.classes == number[name]]):
            result.append(localization(scores[:, column[name]], found.boxes, objects))
    return result


class SeenStore:
    """What was seen, on disk: a small file per image in the run's folder, for one way to look and one set of true boxes."""

    def __init__(self, run: Path, looking: Looking | LookingTogether, truth: Truth) -> None:
        settings = [VERSION, looking.about(), _digest(truth)]
        digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=6).hexdigest()
        self.folder = run / "seen" / digest

    def prepare(self) -> bool:
        """Makes the folder; False where the run cannot be written to, which is no reason not to measure it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return True

    def path(self, key: str, image: TaggedImage) -> Path:
        named = hashlib.blake2b(json.dumps([key, image.id, image.tags]).encode(), digest_size=12).hexdigest()
        return self.folder / f"{named}.npz"

    def get(self, key: str, image: TaggedImage, names: tuple[str, ...]) -> SeenImage | None:
        """None where there is none, or it is damaged."""
        try:
            with np.load(self.path(key, image), allow_pickle=False) as kept:
                width, height = kept["size"].tolist()
                found = Detections(kept["boxes"], kept["scores"], kept["classes"].astype(np.intp), names, width, height)
                return SeenImage(found, kept["image_scores"], kept["accuracies"], kept["variances"])
        except FileNotFoundError:
            return None
        except Exception:  # damaged, in one of the many ways a zip file can be
            return None

    def put(self, key: str, image: TaggedImage, seen: SeenImage) -> None:
        found, buffer = seen.detections, io.BytesIO()
        np.savez(
            buffer,
            size=np.array([found.width, found.height]),
            boxes=found.boxes,
            scores=found.scores,
            classes=found.classes.astype(np.uint16),
            image_scores=seen.image_scores,
            accuracies=seen.accuracies,
            variances=seen.variances,
        )
        try:
            write_whole(self.path(key, image), buffer.getvalue())
        except OSError:
            return  # a full disk is no reason not to measure; it is only looked at again next time


def _digest(truth: Truth) -> str:
    digest = hashlib.blake2b(json.dumps(truth.classes).encode(), digest_size=16)
    for id, true in truth.images.items():
        digest.update(json.dumps([id, true.boxes.tolist(), true.classes.tolist()]).encode())
    return digest.hexdigest()
