"""A run looked at image by image: everything the measures need, read in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from melm.data.records import TaggedImage
from melm.detect.detections import Detections, no_detections
from melm.detect.detector import branch_scores
from melm.detect.run import Looking
from melm.measure.randomness import Randomness, localization
from melm.measure.truth import Truth


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


def look_at(
    looking: Looking,
    images: Sequence[TaggedImage],
    keys: Sequence[str],
    truth: Truth | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Seen:
    """Runs a detector over images that have proposals. With `truth`, localization accuracy and variance are measured too:
    of the branch that detects, for every tag with a true box."""
    seen = Seen()
    detector = looking.detector
    column = {name: k for k, name in enumerate(detector.classes)}
    for image, key in zip(images, keys, strict=True):
        found = looking.found(key, image.path)
        seen.tags[image.id] = image.tags
        if not len(found):
            seen.detections[image.id] = no_detections(detector.classes, found.width, found.height)
            seen.image_scores.append(np.zeros(len(detector.classes)))
            advance()
            continue
        outputs, found = looking.outputs(key, image.path)
        scores = np.mean([branch_scores(output, detector.branch) for output in outputs], axis=0)  # (N, K)
        seen.detections[image.id] = detector.chosen(scores, found)
        discovered = np.mean([branch_scores(output, "discovery") for output in outputs], axis=0)
        seen.image_scores.append(discovered.sum(axis=0, dtype=np.float64))
        true = truth.images.get(image.id) if truth else None
        for name in image.tags if truth and true else ():
            assert truth is not None and true is not None
            objects = true.boxes[true.classes == truth.classes.index(name)] if name in truth.classes else ()
            if len(objects) and name in column:
                accuracy, variance = localization(scores[:, column[name]], found.boxes, objects)  # type: ignore[arg-type]
                seen.accuracies.append(accuracy)
                seen.variances.append(variance)
        advance()
    return seen
