"""A learned detector: views, the branches that speak, their mean per proposal, suppression -> Detections."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from melm.boxes import nms, ranked, supported, voted
from melm.data.images import read_image
from melm.detect.detections import Detections, no_detections
from melm.errors import UsageError, one_of
from melm.learn.looks import Look
from melm.learn.model_file import Learned, load_model
from melm.learn.network import branches_of, default_branch, forward
from melm.learn.presets import LearnConfig
from melm.learn.processes import device_named
from melm.learn.students import middle_scale
from melm.model.melm import Output
from melm.model.regression import moved
from melm.model.trunks import FrozenTrunk, Pixels
from melm.proposals import Proposals, ProposalSettings, compute_proposals

VIEWS = ("single", "flip", "paper")
NMS = {"discovery": 0.4, "localization": 0.3}  # as in the paper's released code
# Box voting (Gidaris and Komodakis, ICCV 2015). The paper does without; where a frozen trunk ranks the proposals their ends are
# less sure, and it is worth 1 to 2 points (docs/experiments.md).
VOTE = {"frozen": 0.6, "tuned": 0.0}
View = tuple[int | None, bool]  # scale of the larger side, mirrored


@dataclass(frozen=True, slots=True)
class DetectSettings:
    """How a detector speaks. What is None is the detector's own habit."""

    branch: str | None = (
        None  # discovery, localization 1, 2, ..., mean (of these), all, or after retraining student and fused
    )
    views: str = "single"
    nms: float | None = None
    vote: float | None = None  # a box becomes the mean of those that overlap it so much, by score; 0: it stays
    agree: float = 0.0  # power of how much of its class's score lies on boxes like it; where boxes move
    min_score: float = 0.0
    max_boxes: int = 300  # an image, over all classes; 0 for all

    def __post_init__(self) -> None:
        one_of("views", self.views, VIEWS)
        if self.nms is not None and not 0 <= self.nms <= 1:
            raise UsageError(f"--nms is {self.nms}; 0 to 1 was expected")
        if self.vote is not None and not 0 <= self.vote <= 1:
            raise UsageError(f"--vote is {self.vote}; 0 to 1 was expected")
        if not 0 <= self.agree < float("inf"):
            raise UsageError(f"--agree is {self.agree}; 0 or more was expected")
        if not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score is {self.min_score}; 0 to 1 was expected")
        if self.max_boxes < 0:
            raise UsageError(f"--max-boxes is {self.max_boxes}; 0 (for all) or more was expected")


class Detector:
    """What `melm.load` gives: call it with an image, as an array or a path, for its `Detections`."""

    def __init__(self, learned: Learned, settings: DetectSettings | None = None, device: str = "auto") -> None:
        self.learned, self.settings = learned, settings or DetectSettings()
        self.classes = learned.classes
        self.network = learned.network.to(device_named(device))
        self.students = learned.students and learned.students.to(device_named(device))
        self.branch = self.settings.branch or ("fused" if self.students else default_branch(learned.config))
        one_of("branch", self.branch, branches_of(learned.config) + (["fused", "student"] if self.students else []))

    @property
    def config(self) -> LearnConfig:
        return self.learned.config

    @property
    def overlap(self) -> float:
        """Above which the weaker of two boxes of a class goes."""
        own = NMS["discovery" if self.branch == "discovery" else "localization"]
        return own if self.settings.nms is None else self.settings.nms

    @property
    def vote(self) -> float:
        """The overlap from which boxes have a voice in where a found one ends; 0 for none."""
        return VOTE[self.config.trunk] if self.settings.vote is None else self.settings.vote

    @property
    def moves(self) -> bool:
        """Whether the branch that detects moves boxes."""
        return self.students is not None and self.students.moves and self.branch in ("student", "fused")

    @property
    def agree(self) -> float:
        """The power of how much of its class's score lies on boxes like it, in what a box that was moved scores."""
        return self.settings.agree if self.moves else 0.0

    @property
    def proposal_settings(self) -> ProposalSettings:
        """How proposals are made for an image that has none yet: as they were for learning."""
        settings = self.config.proposals
        if settings.method == "file":
            raise UsageError(
                f"{self.learned.path} was learned on proposals of a file. Give such a file for these images with --file, "
                "or choose a method with --proposals"
            )
        return settings

    def exact(self) -> Detector:
        """The same in single precision, if it learned in another."""
        learned_in = {self.network.precision, self.students.config.precision if self.students else "fp32"}
        if learned_in == {"fp32"}:
            return self
        other = deepcopy(self)
        other.network.precision = other.network.trunk.precision = "fp32"
        if other.students:
            other.students.config = replace(other.students.config, precision="fp32")
        return other

    def __call__(self, image: Pixels | Path | str, proposals: Proposals | None = None) -> Detections:
        """What is found in an upright RGB image (H, W, 3) or an image file."""
        pixels = pixels_of(image)
        if proposals is None:
            proposals = compute_proposals(pixels, self.proposal_settings)
        if not len(proposals):
            return no_detections(self.classes, pixels.shape[1], pixels.shape[0])
        return self.chosen(*self.judged(self.outputs(pixels, proposals), proposals))

    def chosen(self, scores: NDArray[np.float32], proposals: Proposals) -> Detections:
        """What is left of scores (N, K) after suppression and voting."""
        settings, size = self.settings, (proposals.width, proposals.height)
        scores = supported(proposals.boxes, scores, self.agree)
        found = suppressed(proposals.boxes, scores, self.classes, *size, self.overlap, settings.min_score, self.vote)
        return found.best(settings.max_boxes) if settings.max_boxes else found

    def judged(
        self, outputs: Sequence[Output], proposals: Proposals, branch: str | None = None
    ) -> tuple[NDArray[np.float32], Proposals]:
        """p(y, h) (N, K) of a branch, or else of the one that detects, mean over the views; and the proposals where it moves
        them."""
        branch = branch or self.branch
        scores = np.mean([branch_scores(output, branch) for output in outputs], axis=0)
        shifts = [shift for output in outputs if (shift := output.shift_of(branch)) is not None]
        if not shifts:
            return scores, proposals
        shift = torch.stack(shifts).mean(dim=0).cpu()
        boxes = moved(torch.from_numpy(proposals.boxes), shift, proposals.width, proposals.height)
        return scores, replace(proposals, boxes=boxes.numpy())

    def scores(self, pixels: Pixels, proposals: Proposals, branch: str | None = None) -> NDArray[np.float32]:
        """p(y, h) (N, K) of the proposals of an image."""
        return self.judged(self.outputs(pixels, proposals), proposals, branch)[0]

    @torch.no_grad()
    def outputs(self, pixels: Pixels, proposals: Proposals, key: str | None = None) -> list[Output]:
        """What the network says in every view. `key` names the image by its content, where that is known: a student that learned
        from it is then not asked."""
        boxes = torch.from_numpy(proposals.boxes)
        result: list[Output] = []
        looks: dict[bool, Look] = {}  # students look at their own scales, whichever the view has
        for scale, flip in self.views():
            if self.students is None or flip in looks:
                regions = self.network.trunk.look(pixels, boxes, scale, flip)
            else:
                regions, seen = self.students.look(self.network, pixels, boxes, scale, flip)
                looks[flip] = Look(self.students, seen, proposals, key, flip)
            output = forward(self.network, self.learned.strength, regions, proposals)
            result.append(output if self.students is None else looks[flip].judged(output))
        return result

    def views(self) -> list[View]:
        """Scales and flips to look at. A frozen trunk reads all its scales in every view, so only the flip is another."""
        flips = [False] if self.settings.views == "single" else [False, True]
        scales: list[int | None] = list(self.config.scales)
        if isinstance(self.network.trunk, FrozenTrunk):
            scales = [None]
        elif self.settings.views != "paper":
            scales = [middle_scale(self.config.scales)]
        return [(scale, flip) for scale in scales for flip in flips]


def pixels_of(image: Pixels | Path | str) -> Pixels:
    """An upright RGB image (H, W, 3), or one read from its file."""
    pixels = image if isinstance(image, np.ndarray) else read_image(Path(image))
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"an image of {pixels.shape}, {pixels.dtype}; bytes of shape (H, W, 3) were expected")
    return pixels


def branch_scores(output: Output, branch: str) -> NDArray[np.float32]:
    """p(y, h) (N, K) of one branch, or of several together."""
    return output.prob(branch).float().cpu().numpy()


def presence(output: Output) -> NDArray[np.float64]:
    """(K,) P(y), by discovery: whether a class is in the image at all."""
    result: NDArray[np.float64] = branch_scores(output, "discovery").sum(axis=0, dtype=np.float64)
    return result


def suppressed(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    names: tuple[str, ...],
    width: int,
    height: int,
    overlap: float,
    min_score: float,
    vote: float = 0.0,
) -> Detections:
    """Per-class non-maximum suppression of scores (N, K), best first over all classes; what is left is voted on."""
    rows, classes, places = [], [], []
    for k in range(scores.shape[1]):
        there = np.flatnonzero(scores[:, k] >= min_score)
        kept = there[nms(boxes[there], scores[there, k], overlap)]
        rows.append(kept)
        places.append(voted(boxes, scores[:, k], kept, vote) if vote else boxes[kept])
        classes.append(np.full(len(kept), k, np.intp))
    row, of_class = np.concatenate(rows), np.concatenate(classes)
    found = Detections(np.concatenate(places), scores[row, of_class], of_class, names, width, height)
    return found[ranked(found.boxes, found.scores)]


def load(run: Path | str, settings: DetectSettings | None = None, device: str = "auto") -> Detector:
    """The detector of a finished run: `melm.load("runs/birds")("photo.jpg")`."""
    return Detector(load_model(Path(run)), settings, device)
