"""The students of a retrained run: one for each fold of the images, so that every image is judged by one that never saw it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.config import check_fields
from melm.errors import UsageError, one_of
from melm.learn.network import Network
from melm.model.melm import Output
from melm.model.student import Student, by_scale
from melm.model.trunks import FrozenTrunk, mirrored_boxes
from melm.proposals import Proposals


@dataclass(frozen=True, slots=True)
class RetrainConfig:
    """Everything that decides what students learn from a given run and data."""

    scales: tuple[int, ...] = (192, 288, 416, 608)  # of the larger side, in pixels
    folds: int = 2  # students; each learns from the images of the other folds. 1: one student learns from all
    hidden: int = 512
    dropout: float = 0.5
    positives: int = 32  # boxes of a step and image that overlap an object
    negatives: int = 64  # and that do not: half of them near one, half anywhere
    object_iou: float = 0.5  # overlap with a pseudo-object that makes a box one of its class
    near_iou: float = 0.1  # overlap from which a negative is a near one
    part: float = 0.5  # share of a box inside an object from which a negative is a near one, too, however small it is
    teacher: str = "own"  # the branch of the run that teaches: the one that detects, or another by name
    vote: float = 0.6  # an object is the mean of the boxes that overlap the best so much, by score; 0: it is the best
    weigh: bool = True  # an object counts by how sure it is: the share of its tag's score that lies around it
    alike: float = 1.0  # share of a tag's best score from which another box is an object of it, too; 1: the best alone
    apart_iou: float = 0.3  # overlap from which two boxes of a tag are one object
    teacher_weight: float = 0.2  # of log p of the teacher beside that of the student
    class_weight: float = 0.25  # of log p of its class stream, beside them
    evidence_weight: float = 0.25  # of the evidence, beside them
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    tail_share: float = 0.1  # of the learning rate, for the trunk's last stages
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    epochs: int = 3
    drop_after: int = 2  # epochs at the first learning rate; a tenth of it after that
    accumulate: int = 4  # images a step and process
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"folds": 1, "epochs": 1, "accumulate": 1, "positives": 1, "negatives": 2, "hidden": 1, "seed": 0}
        check_fields(self, least)
        if not (0 < self.alike <= 1 and 0 <= self.apart_iou <= 1 and 0 <= self.vote <= 1):
            raise UsageError("alike is above 0 and at most 1, apart_iou and vote from 0 to 1")
        if not (0 <= self.near_iou <= self.object_iou <= 1 and 0 <= self.dropout < 1 and self.part > 0):
            raise UsageError("near_iou <= object_iou <= 1, 0 <= dropout < 1 and part > 0 were expected")
        if min(self.teacher_weight, self.class_weight, self.evidence_weight) < 0:
            raise UsageError("teacher_weight, class_weight and evidence_weight are 0 or more")

    def with_(self, **changes: Any) -> RetrainConfig:
        """A copy with some settings changed; an unknown name is an error that suggests the right one."""
        for name in changes:
            one_of("setting", name, [field.name for field in fields(self)])
        if "epochs" in changes and "drop_after" not in changes:
            changes["drop_after"] = max(1, changes["epochs"] * 2 // 3)
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> RetrainConfig:
        return RetrainConfig(**{**kept, "scales": tuple(kept["scales"])})

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


def fold_of(key: str, folds: int) -> int:
    """The fold of an image, by its content alone."""
    return int(key[:8], 16) % folds


class Students(nn.Module):
    """One student for each fold, and how they speak."""

    def __init__(
        self, network: Network, config: RetrainConfig, classes: int, own: str, keys: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        if not isinstance(network.trunk, FrozenTrunk):
            raise UsageError("only a run with a frozen trunk can be retrained: preset fast")
        self.config, self.keys = config, keys  # `keys`: the images that were learned from
        self.teacher = config.branch(own)  # `own`: the branch that detects, of the run that teaches
        self.normal_size = network.trunk.normal_size
        self.students = nn.ModuleList(
            Student(network.trunk, config.hidden, config.dropout, classes) for _ in range(config.folds)
        )

    def of(self, key: str | None) -> Sequence[nn.Module]:
        """Those that did not learn from an image: one of them, or all where none did."""
        if key in self.keys and self.config.folds > 1:
            return [self.students[fold_of(str(key), self.config.folds)]]
        return list(self.students)

    @torch.no_grad()
    def judge(
        self,
        output: Output,
        maps: Sequence[Tensor | None],
        found: Proposals,
        key: str | None = None,
        flip: bool = False,
    ) -> Output:
        """The same output with what the students say of the proposals, and what they and their teacher say together."""
        device = output.log_prob.device
        boxes = torch.from_numpy(found.boxes)
        boxes = mirrored_boxes(boxes, found.width) if flip else boxes
        there, rows = by_scale(boxes, self.config.scales, found.width, found.height, self.normal_size)
        moved = [None if map is None else map.to(device) for map in maps]
        prob = torch.stack([s(moved, [b.to(device) for b in there]).exp() for s in self.of(key)]).mean(dim=0)
        student = torch.empty_like(prob)
        student[rows.to(device)] = prob.clamp(min=1e-30).log()
        teacher = output.prob(self.teacher).clamp(min=1e-30).log()
        known = (output.evidence - output.evidence.max())[:, None]
        fused = (
            student[:, :-1]
            + self.config.teacher_weight * teacher
            + self.config.class_weight * F.log_softmax(output.scores.class_logits, dim=1)
            + self.config.evidence_weight * known
        )
        return replace(output, student=student, fused=fused)
