"""Measuring while learning: what `melm train --measure --watch` hands to `train` to be called after every epoch.

Boxes come in here, figures go out to the log, and nothing goes back: learning is the same with it and without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from melm.data.records import TaggedImage
from melm.detect.detector import Detector, DetectSettings
from melm.detect.run import Looking
from melm.errors import MelmError, UsageError, did_you_mean
from melm.learn.model_file import Learned
from melm.learn.network import Network
from melm.learn.presets import LearnConfig
from melm.learn.run_folder import WATCHED
from melm.measure.corloc import corloc
from melm.measure.of_run import look_at
from melm.measure.truth import Truth
from melm.model.objects import discovered_cliques
from melm.proposals import ReadyMade, make_proposals
from melm.workers import available_cores

LIKELY = 15  # proposals of the highest probability that are kept of a watched image
CLIQUES = 12

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Look:
    """What a network believed about one tag of one watched image after an epoch."""

    epoch: int  # epochs done
    id: str
    file: str
    tag: str
    box: Box  # the learned box: the best of the branch that detects
    likely: tuple[Box, ...]  # proposals of high probability, best first
    cliques: tuple[tuple[Box, ...], ...]  # members of each clique; the discovered clique first


class WhileLearning:
    """Called after every epoch of a run with its network. Measures on some of the images where there are true boxes, and
    writes down what the network believes of the watched ones."""

    def __init__(
        self,
        run: Path,
        images: Sequence[TaggedImage],
        classes: tuple[str, ...],
        config: LearnConfig,
        ready_made: ReadyMade | None = None,
        truth: Truth | None = None,
        most: int = 500,
        watched: Iterable[str] = (),
    ) -> None:
        self.run, self.classes, self.config, self.ready_made, self.truth = run, classes, config, ready_made, truth
        self.watched = [_named(id, images) for id in dict.fromkeys(watched)]
        tagged = [image for image in images if image.tags and truth and image.id in truth.images]
        self.measured = [tagged[i * len(tagged) // most] for i in range(most)] if 0 < most < len(tagged) else tagged

    def __call__(self, epochs: int, network: Network, strength: float) -> dict[str, float]:
        device = next(network.melm.parameters()).device.type
        learned = Learned(self.run, {}, self.config, self.classes, network, strength)
        looking = Looking(Detector(learned, DetectSettings(max_boxes=0), device), self.config.proposals)
        self._watch(looking, epochs)
        if self.truth is None:
            return {}
        images, keys = self._with_keys(looking, self.measured)
        seen = look_at(looking, images, keys, self.truth)
        randomness = seen.randomness
        return {
            "localization_accuracy": randomness.accuracy,
            "localization_variance": randomness.variance,
            "corloc": corloc(self.truth, seen.detections, seen.tags).mean,
        }

    def _with_keys(self, looking: Looking, images: Sequence[TaggedImage]) -> tuple[list[TaggedImage], list[str]]:
        """The images that learning uses too: those that can be read and have proposals."""
        done = make_proposals(images, looking.proposals, available_cores(), self.ready_made)
        usable = [(image, d.key) for image, d in zip(images, done, strict=True) if d.key is not None and d.boxes]
        return [image for image, _ in usable], [key for _, key in usable]

    def _watch(self, looking: Looking, epochs: int) -> None:
        if not self.watched:
            return
        looks = [
            look
            for image, key in zip(*self._with_keys(looking, self.watched), strict=True)
            for look in looks_at(looking, image, key, epochs)
        ]
        path = self.run / WATCHED
        try:
            kept = path.read_bytes() if path.is_file() else b""
            with path.open("ab") as file:
                if kept and not kept.endswith(b"\n"):
                    file.write(b"\n")  # after what a killed run began
                file.write(b"".join(json.dumps(asdict(look)).encode() + b"\n" for look in looks))
        except OSError as error:
            raise MelmError(f"{path}: cannot be written ({error.strerror}). Make room and run again") from None


def _named(asked: str, images: Sequence[TaggedImage]) -> TaggedImage:
    """The image with this id, or else the only one with this file name."""
    by_id = {image.id: image for image in images}
    alike = [image for image in images if asked in (image.path.name, image.path.stem)]
    if asked in by_id or len(alike) == 1:
        return by_id.get(asked) or alike[0]
    several = f" Several files have this name: {', '.join(i.id for i in alike[:5])}." if alike else ""
    raise UsageError(f"--watch {asked}: no image has this id.{several or did_you_mean(asked, by_id)}")


@torch.no_grad()
def looks_at(looking: Looking, image: TaggedImage, key: str, epochs: int) -> list[Look]:
    """What the detector believes of every tag of one image."""
    detector = looking.detector
    outputs, found = looking.outputs(key, image.path)
    output, boxes = outputs[0], found.boxes
    scores, placed = detector.judged(outputs, found)  # (N, K)
    result = []
    for name in image.tags:
        k = detector.classes.index(name)
        best = np.argsort(-scores[:, k], kind="stable")[:LIKELY]
        weighted = detector.config.settings.weighted
        of_class = torch.tensor([k], device=output.clique_log_prob.device)
        first = int(discovered_cliques(output.chosen_log_prob, of_class, weighted)[0])
        sizes = torch.bincount(output.cliques.ids, minlength=output.cliques.count).tolist()
        others = sorted((c for c in range(output.cliques.count) if c != first), key=lambda c: -sizes[c])
        cliques = [output.cliques.members(c).cpu().numpy() for c in (first, *others[: CLIQUES - 1])]
        result.append(
            Look(
                epochs,
                image.id,
                str(image.path),
                name,
                _boxes(placed.boxes[best[:1]])[0],
                _boxes(placed.boxes[best]),
                tuple(_boxes(boxes[members]) for members in cliques),
            )
        )
    return result


def read_looks(run: Path) -> list[Look]:
    """All looks of a run in order of image, tag and epoch; none where nothing was watched.

    An epoch that was done again after a kill counts once, and a line that was cut not at all.
    """
    try:
        lines = (run / WATCHED).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MelmError(f"{run / WATCHED}: cannot be read ({error.strerror})") from None
    looks = {}
    for line in lines:
        try:
            kept = json.loads(line)
            look = Look(
                int(kept["epoch"]),
                str(kept["id"]),
                str(kept["file"]),
                str(kept["tag"]),
                _box(kept["box"]),
                tuple(_box(box) for box in kept["likely"]),
                tuple(tuple(_box(box) for box in clique) for clique in kept["cliques"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        looks[look.id, look.tag, look.epoch] = look
    return [looks[name] for name in sorted(looks)]


def _boxes(boxes: np.typing.NDArray[np.float32]) -> tuple[Box, ...]:
    return tuple(_box(box) for box in boxes.astype(float).round(2).tolist())


def _box(values: Sequence[float]) -> Box:
    x1, y1, x2, y2 = (float(value) for value in values)
    return x1, y1, x2, y2
