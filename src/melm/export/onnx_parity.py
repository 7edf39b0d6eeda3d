"""Whether an ONNX model says what PyTorch says: both run on the same images, and what is between their scores."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from melm.data.images import read_image
from melm.detect.detector import Detector
from melm.errors import MelmError
from melm.model.trunks import Pixels
from melm.proposals import Proposals, compute_proposals

# width, height and number of proposals of the pictures that are always compared on
DRAWN = ((500, 375, 300), (211, 320, 40), (97, 64, 1))
Example = tuple[Pixels, Proposals]


@dataclass(frozen=True, slots=True)
class Parity:
    """How near ONNX Runtime comes to PyTorch."""

    proposals: list[int]  # how many, for each image
    difference: float  # the largest between two scores of a class, over the class's best score in that image
    absolute: float  # the largest between two scores
    pixels: float  # the largest between two ends of a box where it is placed
    same_best: float  # share of images and classes in which both have the same best box
    rank_agreement: float  # the lowest Spearman correlation of the boxes of an image by their scores for a class
    seconds_onnx: float  # an image
    seconds_torch: float


class Runtime:
    """A model in ONNX Runtime, on as many threads as PyTorch has."""

    def __init__(self, model: bytes) -> None:
        import onnxruntime  # type: ignore[import-not-found, import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        with self.errors():
            self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.reads = [wanted.name for wanted in self.session.get_inputs()]

    def judged(self, pixels: Pixels, proposals: Proposals) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scores (N, K), and where the boxes are placed (N, 4)."""
        with self.errors():
            scores, places = self.session.run(["scores", "places"], inputs_of((pixels, proposals), self.reads))
        return scores, places

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the runtime has many kinds, and none above them
            said = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise MelmError(f"ONNX Runtime does not run the model: {said}") from error


def compared(detector: Detector, model: bytes, examples: Sequence[Example]) -> Parity:
    """The scores of ONNX Runtime beside PyTorch's on images with their proposals."""
    runtime = Runtime(model)

    def judged(pixels: Pixels, proposals: Proposals) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        scores, found = detector.judged(detector.outputs(pixels, proposals), proposals)
        return scores, found.boxes

    for judge in (judged, runtime.judged):
        judge(*examples[-1])  # the first run is slower
    differences, best, ranks, seconds = [], [], [1.0], []
    for example in examples:
        begun = time.perf_counter()
        ours, here = judged(*example)
        between = time.perf_counter()
        theirs, there = runtime.judged(*example)
        seconds.append((time.perf_counter() - between, between - begun))
        apart = np.abs(theirs - ours).max(axis=0)  # (K,)
        differences.append(((apart / ours.max(axis=0).clip(1e-30)).max(), apart.max(), np.abs(there - here).max()))
        best += (theirs.argmax(axis=0) == ours.argmax(axis=0)).tolist()
        ranks += rank_agreement(theirs, ours) if len(ours) > 1 else []
    difference, absolute, pixels = np.max(differences, axis=0).tolist()  # NaN, where one is
    of_onnx, of_torch = np.mean(seconds, axis=0).tolist()
    counts = [len(proposals) for _, proposals in examples]
    return Parity(counts, difference, absolute, pixels, float(np.mean(best)), min(ranks), of_onnx, of_torch)


def rank_agreement(theirs: NDArray[np.float32], ours: NDArray[np.float32]) -> list[float]:
    """Spearman's correlation of scores (N, K), for each class."""
    ranks = [scores.argsort(axis=0, kind="stable").argsort(axis=0).astype(np.float64) for scores in (theirs, ours)]
    count = len(ours)
    found: list[float] = (1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum(axis=0) / (count * (count**2 - 1))).tolist()
    return found


def inputs_of(example: Example, reads: Sequence[str]) -> dict[str, NDArray[Any]]:
    """What a model takes, by name."""
    pixels, proposals = example
    return {name: pixels if name == "image" else getattr(proposals, name) for name in reads}


def drawn(width: int, height: int, count: int, seed: int) -> Example:
    """A picture of coloured squares and noise with so many boxes in it, the whole picture the last of several."""
    random = np.random.default_rng(seed)
    squares = random.integers(0, 200, (math.ceil(height / 24), math.ceil(width / 24), 3))
    pixels = squares.repeat(24, axis=0).repeat(24, axis=1)[:height, :width] + random.integers(0, 56, (height, width, 3))
    sides = np.array([width, height])
    least = random.uniform(0, 0.7, (count, 2)) * sides
    boxes = np.concatenate([least, least + random.uniform(0.1, 1, (count, 2)) * (sides - least)], axis=1)
    if count > 1:
        boxes[-1] = [0, 0, width, height]
    prior, score = random.uniform(0, 1, (2, count)).astype(np.float32)
    return pixels.astype(np.uint8), Proposals(boxes.astype(np.float32), prior, score, width, height)


def given(detector: Detector, path: Path) -> Example:
    """An image of the user's with the proposals of the run; with drawn ones, where the run's came from a file."""
    pixels = read_image(path)
    if detector.config.proposals.method != "file":
        proposals = compute_proposals(pixels, detector.proposal_settings)
        if len(proposals):
            return pixels, proposals
    return pixels, drawn(pixels.shape[1], pixels.shape[0], DRAWN[0][2], seed=0)[1]
