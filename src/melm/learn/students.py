"""The students of a retrained run: one for each fold of the images, so that every image is judged by one that never saw it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from melm.config import check_fields
from melm.data.images import content_of
from melm.data.records import TaggedImages
from melm.errors import UsageError, one_of
from melm.learn.network import Network
from melm.learn.presets import LearnConfig, check_learning, check_scales, enough_epochs
from melm.model.backbones import BACKBONES, build_backbone
from melm.model.branches import Regions
from melm.model.melm import Output
from melm.model.precision import arranged
from melm.model.scoring import log_class
from melm.model.student import FastRCNN, Student, at_scales, by_scale
from melm.model.trunks import FrozenTrunk, Pixels, mirrored, resized

ENOUGH_IMAGES = 8  # for each student, so that none is left without any: who learns from an image, its content decides
IN_TWO_PARTS = ("lite0", "lite2")  # networks above which students learn, or on whose first stages
# Where a network learns as a whole: Fast R-CNN's own way. It speaks alone, as in the paper, and there is one of it.
WHOLE: dict[str, Any] = {
    "scales": (480, 576, 688),
    "folds": 1,
    "positives": 32,
    "negatives": 96,
    "teacher_weight": 0.0,
    "class_weight": 0.0,
    "evidence_weight": 0.0,
    "optimizer": "sgd",
    "learning_rate": 1e-3,
    "tail_share": 1.0,
    "weight_decay": 5e-4,
    "epochs": 8,
    "drop_after": 6,
    "accumulate": 2,
}


@dataclass(frozen=True, slots=True)
class RetrainConfig:
    """Everything that decides what students learn from a given run and data."""

    backbone: str = "own"  # the run's, which stays or of which the last stages learn; or one that learns as a whole
    weights: str = "package"  # it starts from: a file, an https address, or none. Not for `own`
    weights_sha256: str = ""
    scales: tuple[int, ...] = (192, 288, 416, 608)  # of the larger side, in pixels
    folds: int = 2  # students. 1: one student learns from all images
    judges: int = 1  # of several, so many do not learn from an image and judge it; which ones, its fold decides
    # the pseudo-objects
    teacher: str = "own"  # the branch of the run that teaches: the one that detects, or another by name
    vote: float = 0.6  # an object is the mean of the boxes that overlap the best so much, by score; 0: it is the best
    agree: float = 0.0  # power of how much of its tag's score lies on boxes like it; of runs that move boxes
    alike: float = 1.0  # share of a tag's best score from which another box is an object of it, too; 1: the best alone
    ignore: float = 1.0  # share of it from which another box is at least not background; 1: none
    apart_iou: float = 0.3  # overlap from which two boxes of a tag are one object
    weigh: bool = True  # an object counts by how sure it is: the share of its tag's score that lies around it
    # what a step sees
    positives: int = 32  # boxes of a step and image that overlap an object
    negatives: int = 64  # and that do not: half of them near one, half anywhere
    object_iou: float = 0.5  # overlap with a pseudo-object that makes a box one of its class
    move_iou: float = 0.5  # overlap with one from which a box learns where to move, as background too
    near_iou: float = 0.1  # overlap from which a negative is a near one
    part: float = 0.5  # share of a box inside an object from which a negative is a near one, too, however small it is
    box_weight: float = 1.0  # of the loss of where boxes move, beside that of what they are; 0: they stay
    cells: int = 128  # own: cells of the largest map in objects, and as many outside; 0: none are named
    # the student
    bins: int = 3  # own: a box is read in so many parts down and across, beside the whole of it; 0: the whole alone
    sharp: bool = True  # own: its parts, and strips along its sides, are read on the map of the first stages as well
    hidden: int = 512  # own
    dropout: float = 0.5  # own
    teacher_weight: float = 0.2  # of log p of the teacher beside that of the student
    class_weight: float = 0.25  # of log p of its class stream, beside them
    evidence_weight: float = 0.25  # of the evidence, beside them
    cell_weight: float = 0.5  # of how well a box agrees with the names of cells, beside them
    reach: float = 1.0  # boxes move so many times as far as students say
    second_look: int = 0  # so many of the best boxes are judged again where they move to, and the mean counts
    # learning
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    tail_share: float = 0.0  # of the learning rate, for what was learned before; 0: the trunk's last stages stay
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    epochs: int = 3
    drop_after: int = 2  # epochs at the first learning rate; a tenth of it after that
    accumulate: int = 4  # images a step and process
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "folds": 1,
            "judges": 1,
            "epochs": 1,
            "accumulate": 1,
            "positives": 1,
            "negatives": 2,
            "hidden": 1,
            "seed": 0,
        }
        check_fields(self, {**least, "bins": 0, "cells": 0, "second_look": 0})
        one_of("backbone", self.backbone, ("own", *BACKBONES))
        check_learning(self)
        check_scales(self.scales)
        if not 0 <= self.tail_share < float("inf"):
            raise UsageError(f"tail_share is {self.tail_share}; 0 or more was expected")
        if 1 < self.folds <= self.judges:
            raise UsageError(
                f"judges is {self.judges}; of {self.folds} students (folds) 1 to {self.folds - 1} can judge an image, "
                "for the others learn from it"
            )
        if not (0 < self.alike <= 1 and 0 <= self.apart_iou <= 1 and 0 <= self.vote <= 1):
            raise UsageError("alike is above 0 and at most 1, apart_iou and vote from 0 to 1")
        if not 0 < self.ignore <= 1:
            raise UsageError("ignore is above 0 and at most 1")
        if not (0 <= self.near_iou <= self.object_iou <= 1 and 0 <= self.dropout < 1 and self.part > 0):
            raise UsageError("near_iou <= object_iou <= 1, 0 <= dropout < 1 and part > 0 were expected")
        if not 0 < self.move_iou <= 1:
            raise UsageError("move_iou is above 0 and at most 1")
        for name in (
            "teacher_weight",
            "class_weight",
            "evidence_weight",
            "cell_weight",
            "box_weight",
            "reach",
            "agree",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}; 0 or more was expected")

    @property
    def fixed(self) -> bool:
        """Whether nothing learns but the layers above a frozen trunk."""
        return self.tail_share == 0 and not self.whole

    def judges_of(self, fold: int) -> list[int]:
        """The students that do not learn from the images of a fold: the fold's own and those after it. Of one student none."""
        return [(fold + after) % self.folds for after in range(self.judges)] if self.folds > 1 else []

    @property
    def names_cells(self) -> bool:
        return self.fixed and self.cells > 0

    @property
    def looks_again(self) -> bool:
        return self.second_look > 0 and self.box_weight > 0

    @property
    def finest(self) -> int:
        """The number of the largest scale, whose cells are named."""
        return self.scales.index(max(self.scales))

    @property
    def whole(self) -> bool:
        """Whether a network learns as a whole, from the images themselves."""
        return self.backbone not in ("own", *IN_TWO_PARTS)

    def with_(self, **changes: Any) -> RetrainConfig:
        """A copy with some settings changed; an unknown name is an error that suggests the right one. Another backbone brings
        other settings of its own, where they are not given."""
        for name in changes:
            one_of("setting", name, [field.name for field in fields(self)])
        base = self
        if "backbone" in changes and not self.whole and replace(self, backbone=changes["backbone"]).whole:
            base = replace(self, **WHOLE)
        if isinstance(changes.get("epochs"), int) and "drop_after" not in changes:
            changes["drop_after"] = max(1, changes["epochs"] * base.drop_after // base.epochs)
        return replace(base, **changes)

    def for_images(self, images: TaggedImages) -> RetrainConfig:
        """The same, where nobody said how many epochs and students, for a data set that may be small."""
        if self.whole:
            return self
        tagged = sum(bool(image.tags) for image in images)
        epochs = enough_epochs(self.epochs, self.accumulate, tagged)
        result = self if epochs == self.epochs else self.with_(epochs=epochs)
        return result if tagged >= ENOUGH_IMAGES * self.folds else replace(result, folds=1, judges=1)

    def as_dict(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> RetrainConfig:
        """Of a run's card; what it does not name was not there when it learned."""
        before = {
            "sharp": False,
            "cells": 0,
            "judges": 1,
            "move_iou": 0.5,
            "reach": 1.0,
            "second_look": 0,
            "agree": 0.0,
        }
        return RetrainConfig(**{**before, **kept, "scales": tuple(kept["scales"])})

    def branch(self, own: str) -> str:
        """The branch that teaches, of a run that detects with `own`."""
        return own if self.teacher == "own" else self.teacher

    def rate(self, epoch: int) -> float:
        return self.learning_rate * (1.0 if epoch < self.drop_after else 0.1)

    def strength(self, epoch: int) -> float:
        return 0.0  # nothing is fed back

    @property
    def remembers(self) -> bool:
        return False


def with_all_names(card: Mapping[str, Any]) -> dict[str, Any]:
    """A run's card with every setting by name, its own and of its students, those too that had none when it was written."""
    try:
        named = {**card, "config": LearnConfig.from_dict(card["config"]).as_dict()}
        if "retrained" in card:
            named["retrained"] = RetrainConfig.from_dict(card["retrained"]).as_dict()
            named["teaches_along"] = card.get("teaches_along", [])
        return named
    except (KeyError, TypeError, UsageError):
        return dict(card)  # not by a version before this one, so it differs as it is


def fold_of(key: str, folds: int) -> int:
    """The fold of an image, by its content alone: every key begins with it."""
    return int(key[:8], 16) % folds


class Students(nn.Module):
    """A student for each fold, and how they speak."""

    def __init__(
        self, network: Network, config: RetrainConfig, classes: int, own: str, keys: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self.config, self.keys = config, keys  # `keys`: the images that were learned from, by content
        self.teacher = config.branch(own)  # `own`: the branch that detects, of the run that teaches
        students: list[nn.Module]
        if config.whole:
            students = [
                arranged(FastRCNN(build_backbone(config.backbone), classes), config.precision)
                for _ in range(config.folds)
            ]
        else:
            trunk = frozen_trunk(network, config)
            self.normal_size = trunk.normal_size
            settings = config.hidden, config.dropout, config.bins, config.sharp, config.fixed, config.names_cells
            students = [Student(trunk, *settings, classes) for _ in range(config.folds)]
        self.students = nn.ModuleList(students)

    @property
    def moves(self) -> bool:
        """Whether they say how boxes move."""
        return self.config.box_weight > 0

    def moving(self, shift: Tensor) -> Tensor | None:
        """How far boxes move, of what students say, (N, 4); None where they stay."""
        return self.config.reach * shift if self.moves else None

    def of(self, key: str | None) -> Sequence[nn.Module]:
        """Those that did not learn from an image; all where none did, or there is only one."""
        if key is not None and content_of(key) in self.keys and self.config.folds > 1:
            return [self.students[judge] for judge in self.config.judges_of(fold_of(key, self.config.folds))]
        return list(self.students)

    def inputs(self, network: Network, pixels: Pixels) -> list[Tensor | None]:
        """What they are shown of an RGB image, by scale."""
        if not self.config.whole:
            trunk = frozen_trunk(network, self.config)
            return list(trunk.student_maps(pixels, self.config.scales, self.config.fixed))
        middle = middle_scale(self.config.scales)
        return [torch.from_numpy(resized(pixels, s)) if s == middle else None for s in self.config.scales]

    def look(
        self, network: Network, pixels: Pixels, boxes: Tensor, scale: int | None, flip: bool
    ) -> tuple[Regions, Sequence[Tensor | None]]:
        """What the run's network reads of boxes (N, 4) in a view, and what students are shown of it: of one reading, where both
        read the same trunk."""
        if self.config.whole:
            shown = self.inputs(network, mirrored(pixels) if flip else pixels)
            return network.trunk.look(pixels, boxes, scale, flip), shown
        trunk = frozen_trunk(network, self.config)
        return trunk.look_for_students(pixels, boxes, self.config.scales, self.config.fixed, flip)

    def divided(self, boxes: Tensor, width: int, height: int) -> tuple[list[Tensor], Tensor]:
        """Boxes (N, 4) at the scales where they are read, and their rows in that order."""
        scales = self.config.scales
        if not self.config.whole:
            return by_scale(boxes, scales, width, height, self.normal_size)
        number = torch.full((len(boxes),), scales.index(middle_scale(scales)))
        return at_scales(boxes, number, scales, width, height)

    def joined(self, output: Output, student: Tensor, shift: Tensor, cells: Tensor | None) -> Output:
        """What a run says together with its students: `looks.Verdicts`."""
        fused = self.fused(student, output, cells)
        return replace(output, student=student, fused=fused, shift=self.moving(shift))

    def fused(self, student: Tensor, output: Output, cells: Tensor | None) -> Tensor:
        """What student and teacher say together, (N, K), as logarithms."""
        teacher = output.prob(self.teacher).clamp(min=1e-30).log()
        known = (output.evidence - output.evidence.max())[:, None]
        fused = (
            student[:, :-1]
            + self.config.teacher_weight * teacher
            + self.config.class_weight * log_class(output.scores.class_logits)
            + self.config.evidence_weight * known
        )
        return fused if cells is None else fused + self.config.cell_weight * cells


def middle_scale(scales: tuple[int, ...]) -> int:
    """The one at which a single view looks."""
    return sorted(scales)[len(scales) // 2]


def frozen_trunk(network: Network, config: RetrainConfig) -> FrozenTrunk:
    """The trunk that students begin with, or words for a run that has none of this kind."""
    trunk = network.trunk
    check_trunk(trunk.backbone.name, isinstance(trunk, FrozenTrunk), config)
    assert isinstance(trunk, FrozenTrunk)
    return trunk


def check_trunk(own: str, frozen: bool, config: RetrainConfig) -> None:
    """Refuses students above a trunk, that of the backbone `own`, that they cannot learn above."""
    if not frozen:
        raise UsageError(
            f"the trunk of this run ({own}) learned along, so there are no maps of it to store and learn from. "
            "Name a network that learns as a whole: --backbone resnet50, resnet101 or vgg16, with --weights FILE"
        )
    if config.backbone not in ("own", own):
        raise UsageError(
            f"--backbone {config.backbone}: the trunk of this run is {own}. {config.backbone} needs a run of its own"
        )
    if own not in IN_TWO_PARTS:
        raise UsageError(
            f"{own}: its trunk is not made in two parts. lite0 and lite2 are; others learn as a whole: --backbone {own}"
        )


def check_kind(run: Path | str, before: RetrainConfig | None, config: RetrainConfig) -> bool:
    """Whether the students of a retrained run (`before`; None of one that is not) go on, which only those of the same kind can;
    others are made anew."""
    if not config.whole and config.weights != "package":
        raise UsageError(
            "weights are for a network that learns as a whole (--backbone); others begin with those of the run"
        )
    if before is None or before.whole != config.whole or (config.whole and before.backbone != config.backbone):
        return False
    kinds = {"tail_share": before.fixed == config.fixed, "cells": before.names_cells == config.names_cells}
    for name in ("folds", "judges", "scales", "bins", "sharp", "hidden", *kinds):
        same = kinds[name] if name in kinds else getattr(before, name) == getattr(config, name)
        if not same:
            raise UsageError(
                f"{run}: its students have {name} = {getattr(before, name)}; keep that when it is retrained again"
            )
    if config.weights not in ("package", "none"):
        raise UsageError(f"{run}: its students go on with what they learned, so --weights have no use")
    return True
