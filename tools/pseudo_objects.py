"""What the rules for pseudo-objects (docs/learning.md) choose of what a run finds, against the true boxes of a data set:

    python tools/pseudo_objects.py RUN --data VOC2007 --split val --limit 600

For every tag with a true object: how many objects a rule teaches, how many of these are right (an overlap of 0.5 with an object
of the class), also counted by how sure each is, which is how students weigh them; and of the true objects that are not taught,
how many are left out rather than taught as background. Nothing is learned here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.boxes import iou
from melm.data import Source, read_tags
from melm.detect.detector import load
from melm.detect.run import Looking
from melm.learn.pseudo_objects import Objects, objects_of_tag
from melm.learn.students import RetrainConfig
from melm.measure.subjects import placed
from melm.measure.truth import read_truth
from melm.progress import Steps
from melm.proposals import make_proposals

RULES: Mapping[str, RetrainConfig] = {
    "the best box of a tag, voted (the default)": RetrainConfig(),
    "the best box itself (`vote=0`)": RetrainConfig(vote=0.0),
    **{
        f"others from {share} of its score are objects too (`alike`)": RetrainConfig(alike=share)
        for share in (0.8, 0.6, 0.4)
    },
    **{
        f"others from {share} of its score are left out (`ignore`)": RetrainConfig(ignore=share)
        for share in (0.5, 0.3, 0.1)
    },
}
HEAD = (
    "",
    "taught a tag",
    "right, %",
    "by weight, %",
    "left out a tag",
    "of these right, %",
    "of true ones not taught, left out, %",
)


@dataclass
class Count:
    """What a rule did, over tags."""

    tags: int = 0
    taught: int = 0
    right: int = 0
    weight: float = 0.0
    right_weight: float = 0.0
    left_out: int = 0
    left_out_right: int = 0
    missed: int = 0  # true objects that are not taught
    spared: int = 0  # of these, where something is left out

    def add(self, found: Objects, true: NDArray[np.float64]) -> None:
        overlap = iou(found.boxes, true) >= 0.5  # (P, T)
        hit, taught = overlap.any(axis=1), found.taught
        missed = ~overlap[taught].any(axis=0)
        self.tags += 1
        self.taught += int(taught.sum())
        self.right += int((hit & taught).sum())
        self.weight += float(found.sure[taught].sum())
        self.right_weight += float(found.sure[hit & taught].sum())
        self.left_out += int((~taught).sum())
        self.left_out_right += int((hit & ~taught).sum())
        self.missed += int(missed.sum())
        self.spared += int((overlap[~taught].any(axis=0) & missed).sum())

    def row(self) -> list[str]:
        shares = [
            self.taught / self.tags,
            100 * self.right / max(self.taught, 1),
            100 * self.right_weight / max(self.weight, 1e-30),
            self.left_out / self.tags,
            100 * self.left_out_right / max(self.left_out, 1),
            100 * self.spared / max(self.missed, 1),
        ]
        return [f"{value:.{digits}f}" for value, digits in zip(shares, (2, 1, 1, 2, 1, 1), strict=True)]


def counted(run: Path, source: Source) -> dict[str, Count]:
    """Every rule on what a run finds in the images of a data set whose boxes are known."""
    detector = load(run)
    truth = read_truth(source)
    images = placed(truth, read_tags(source))
    looking = Looking(detector, keep=True)
    keys = [str(done.key) for done in make_proposals(images, looking.proposals, 1)]
    counts = {name: Count() for name in RULES}
    with Steps("looking at images", len(images)) as steps:
        for image, key in zip(images, keys, strict=True):
            judged, true = looking.judged(key, image.path), truth.images[image.id]
            for tag in image.tags if judged else ():
                objects = true.boxes[true.classes == truth.classes.index(tag)]
                if len(objects):
                    number = detector.classes.index(tag)
                    for name, rule in RULES.items():
                        counts[name].add(objects_of_tag(judged[1].boxes, judged[0][:, number], number, rule), objects)
            steps.advance()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    counts = counted(given.run, Source(given.data, split=given.split, limit=given.limit))
    for line in (HEAD, ["---"] * len(HEAD), *([name, *count.row()] for name, count in counts.items())):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
