"""`melm label`: boxes for images that have tags, on disk as they come."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from melm.boxes import supported
from melm.data.records import TaggedImage, TaggedImages
from melm.detect.detections import Detections, no_detections
from melm.detect.detector import Detector, presence
from melm.detect.labels import LABELS, LabelledImage, LabelsFile, tag_boxes
from melm.detect.run import Looking, Waiting
from melm.errors import MelmError, UsageError, did_you_mean
from melm.learn.processes import ALONE, Processes
from melm.proposals import ReadyMade, settings_for_file


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """How boxes become labels."""

    # Share of a tag's best score from which another box is an object of it, too. At 0.6 the labels of VOC 2007 val had the best
    # F1 of 0.2 to 1 (docs/labels.md); 1 keeps the best box alone.
    alike: float = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.alike <= 1:
            raise UsageError(f"--alike is {self.alike}; above 0 and at most 1 was expected")


@dataclass
class Labelled:
    """What became of the images."""

    path: Path
    images: int = 0
    failed: list[str] = field(default_factory=list)  # what was wrong with images that could not be read
    strange: Counter[str] = field(default_factory=Counter)  # tags that the detector did not learn -> images


def label_images(
    detector: Detector,
    images: TaggedImages,
    out: Path,
    settings: LabelSettings | None = None,
    *,
    proposals_file: ReadyMade | None = None,
    workers: int = 1,
    overwrite: bool = False,
    processes: Processes = ALONE,
) -> Labelled:
    """Labels of all images in `out`/labels.jsonl, in their order, going on where it stopped. Each of many processes does its
    share, and all return the same."""
    settings = settings or LabelSettings()
    require_tags(detector, images)
    boxes = settings_for_file(detector.config.proposals, proposals_file) if proposals_file else None
    looking = Looking(detector, boxes)
    result = Labelled(out / LABELS)
    decides = {**looking.about(), **asdict(settings)}
    now = {image.id: (image.path, known_tags(detector, image)) for image in images}
    with LabelsFile(out, detector.classes, decides, now, overwrite=overwrite, processes=processes) as file:
        waiting = Waiting(looking, images, file.done, processes)
        for image, key in waiting.with_proposals("labelling", workers, proposals_file):
            file.append(label_one(looking, image, key, settings))
        file.join([image.id for image in images])
    result.failed = waiting.failed()
    for image in images:
        result.strange.update(set(image.tags) - set(detector.classes))
    result.images = len(images) - len(result.failed)
    return result


def label_one(looking: Looking, image: TaggedImage, key: str, settings: LabelSettings) -> LabelledImage:
    """The labels of an image that has proposals."""
    detector, found = looking.detector, looking.found(key, image.path)
    tags = known_tags(detector, image)
    if not tags:
        nothing = no_detections(detector.classes, found.width, found.height)
        return LabelledImage(image.id, image.path, tags, nothing, np.zeros(0, bool))
    numbers = [detector.classes.index(tag) for tag in tags]
    if len(found):
        outputs, found = looking.outputs(key, image.path)
        present = np.mean([presence(output) for output in outputs], axis=0)[numbers]
        scores, found = detector.judged(outputs, found)
        scores = supported(found.boxes, scores[:, numbers], detector.agree)
        rules = detector.overlap, detector.vote, settings.alike
        of_tags = [tag_boxes(found.boxes, scores[:, k], float(present[k]), *rules) for k in range(len(tags))]
    else:  # an image without a proposal: the object is somewhere in it, and nothing more is known
        whole = np.array([[0, 0, found.width, found.height]], np.float32)
        of_tags = [(whole, np.zeros(1, np.float32))] * len(tags)
    places, sure = (np.concatenate(parts) for parts in zip(*of_tags, strict=True))
    counts = [len(of_tag[1]) for of_tag in of_tags]
    best = np.concatenate([np.arange(count) == 0 for count in counts])
    classes = np.repeat(np.array(numbers, np.intp), counts)
    labels = Detections(places, sure, classes, detector.classes, found.width, found.height)
    return LabelledImage(image.id, image.path, tags, labels, best)


def known_tags(detector: Detector, image: TaggedImage) -> tuple[str, ...]:
    """Those that the detector learned."""
    return tuple(tag for tag in image.tags if tag in detector.classes)


def require_tags(detector: Detector, images: TaggedImages) -> None:
    """Refuses data none of whose tags the detector learned; that would be a data set of something else."""
    if not any(image.tags for image in images):
        raise MelmError(
            f"{images.root}: no image has a tag, and labels are the boxes of tags. `melm detect` finds objects without tags"
        )
    if not any(tag in detector.classes for image in images for tag in image.tags):
        tag = next(image.tags[0] for image in images if image.tags)
        raise MelmError(
            f"{images.root}: none of its tags was learned; {tag!r} is one.{did_you_mean(tag, detector.classes)} "
            f"The run knows {', '.join(detector.classes)}"
        )
