"""The words of `melm label`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from melm.detect.labelling import Labelled
from melm.detect.labels import Labels
from melm.show.tables import table

SHOWN = 5  # images named


def label_text(labelled: Labelled, labels: Labels, written: Sequence[Path] = ()) -> str:
    """How many boxes each class got and how sure they are, which images to look at first, and what was written."""
    images, boxes, sure = Counter[str](), Counter[str](), Counter[str]()
    for image in labels:
        images.update(image.tags)
        for name, score in zip(image.found.class_names(), image.found.scores.tolist(), strict=True):
            boxes[name] += 1
            sure[name] += score
    rows = [
        [name, f"{images[name]:,}", f"{boxes[name]:,}", f"{sure[name] / max(boxes[name], 1):.2f}"]
        for name in labels.classes
    ]
    total = ["all", f"{len(labels):,}", f"{boxes.total():,}", f"{sure.total() / max(boxes.total(), 1):.2f}"]
    lines = [table(["class", "images", "boxes", "mean confidence"], [*rows, total]), ""]
    doubtful = [image for image in islice(labels, SHOWN) if image.doubt > 0]
    if doubtful:
        named = ", ".join(f"{image.id} ({image.doubt:.2f})" for image in doubtful)
        lines.append(f"Look at these first, the most doubtful: {named}")
    for tag, count in sorted(labelled.strange.items()):
        lines.append(f"No boxes for the tag {tag!r} ({count:,} images): the run did not learn it")
    lines += [f"written: {path}" for path in (labelled.path, *written)]
    return "\n".join(lines)
