"""A learned detector as one forward pass that can be traced: an image and its proposals in, scores out.

The layers, the branches and the pure functions are the detector's own; what cannot be traced is in `onnx_operators`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.detect.detector import Detector
from melm.errors import UsageError
from melm.export.onnx_operators import (
    MaxRoiPool,
    in_deviations,
    in_order,
    larger,
    log_sigmoid,
    means,
    parts_of,
    region_weights,
    resized,
    size_of,
    sized_when_run,
)
from melm.learn.looks import Verdicts, best_rows, both_looks
from melm.learn.students import Students, middle_scale
from melm.model.backbones import Backbone
from melm.model.branches import Regions, Scores
from melm.model.cliques import Cliques
from melm.model.evidence import from_middle_size
from melm.model.melm import MELM, Output
from melm.model.regression import moved
from melm.model.student import FastRCNN, Said, Student, named_as, normalised
from melm.model.trunks import FrozenTrunk, normal_scale, region_parts


class Scorer(nn.Module):
    """What `Detector.judged` gives for one view: scores (N, K) of its branch, and where that places the boxes (N, 4)."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        if len(detector.views()) > 1:
            raise UsageError(
                f"a detector of one view was expected, not of views = {detector.settings.views}: use single"
            )
        if next(detector.network.parameters()).device.type != "cpu":
            raise UsageError('the detector is not on the CPU, where it is traced: load it with device="cpu"')
        network, settings = detector.network, detector.config.settings
        self.branch, self.strength, self.method = detector.branch, detector.learned.strength, settings
        self.scale = detector.views()[0][0]
        self.melm = Detecting(network.melm)
        self.backbone = sized_when_run(network.trunk.backbone)
        self.frozen = network.trunk if isinstance(network.trunk, FrozenTrunk) else None
        self.students: Students | None = detector.students if self.branch in ("fused", "student") else None
        if self.students is not None and self.students.config.whole:
            self.whole = nn.ModuleList(sized_when_run(one.backbone) for one in self.students.students)  # type: ignore[arg-type]
        if self.frozen is None and settings.reads_surround:
            raise UsageError(
                f"{detector.learned.path}: the frame and the ring of each box are pooled with a hole in them, and ONNX has no "
                "operator for that on a trunk that learned along. Learn on a frozen trunk (--preset fast), or without surround, "
                "branch_sees_surround and contrast_weight"
            )
        self.reads = ["image", "boxes"]
        self.reads += ["prior"] if settings.prior_weight else []
        self.reads += ["score"] if settings.score_weight else []

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        """`given` as `reads` names them: bytes of an upright RGB image (H, W, 3), boxes (N, 4), their prior and score (N,)."""
        named = dict(zip(self.reads, given, strict=True))
        image, boxes, prior, score = (named.get(name) for name in ("image", "boxes", "prior", "score"))
        assert image is not None and boxes is not None
        share = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1) / size_of(image).float().prod()  # as `Proposals.share`
        frozen = self.frozen
        regions = self.frozen_regions(frozen, image, boxes) if frozen else self.tuned_regions(image, boxes)
        previous = None
        if self.method.feedback == "previous":
            previous = self.melm(regions, boxes, prior, self.strength, score=score, share=share).objectness
        output: Output = self.melm(regions, boxes, prior, self.strength, previous, score, share)
        if self.students is not None:
            output = self.judged(self.students, output, image, boxes)
        shift, size = output.shift_of(self.branch), size_of(image).float()
        places = boxes + 0 if shift is None else moved(boxes, shift, size[0], size[1])  # an output is not an input
        return output.prob(self.branch), places

    def small(self, image: Tensor, scale: int, backbone: Backbone | None = None) -> tuple[Tensor, Tensor]:
        """The image at a scale as the backbone takes it, (1, 3, h, w), and how much smaller boxes are there, (4,)."""
        pixels, backbone = resized(image, scale), backbone or self.backbone
        return backbone.normalise(pixels)[None], (size_of(pixels).double() / size_of(image)).float().repeat(2)

    def frozen_regions(self, trunk: FrozenTrunk, image: Tensor, boxes: Tensor) -> Regions:
        """As `FrozenTrunk.look`."""
        size = size_of(image)
        best = normal_scale(boxes, trunk.scales, larger(size), trunk.normal_size)  # type: ignore[arg-type]
        rows, seen = [], []
        for s, scale in enumerate(trunk.scales):
            small, shrink = self.small(image, scale)
            map = self.backbone.trunk(small)[0].permute(1, 2, 0)  # (h, w, C)
            rows.append(torch.nonzero(best == s)[:, 0])
            weights = region_weights(*region_parts(boxes[rows[-1]] * shrink), map, self.backbone.stride)
            seen.append(means(map, weights))
        box, frame, ring = (trunk.reduced(part) for part in in_order(rows, seen).chunk(3, dim=1))
        return Regions(box, frame, torch.where(covering(boxes, size)[:, None], frame, ring))

    def tuned_regions(self, image: Tensor, boxes: Tensor) -> Regions:
        """As `TunedTrunk.look`."""
        assert self.scale is not None
        return Regions(self.pooled(self.backbone, image, boxes, self.scale))

    def pooled(self, backbone: Backbone, image: Tensor, boxes: Tensor, scale: int) -> Tensor:
        """As `pool_regions`, without surround."""
        small, shrink = self.small(image, scale, backbone)
        pooled: Tensor = MaxRoiPool.apply(  # type: ignore[no-untyped-call]
            backbone.trunk(small), boxes * shrink, backbone.pooled_size, 1 / backbone.stride
        )
        return pooled

    def judged(self, students: Students, output: Output, image: Tensor, boxes: Tensor) -> Output:
        """As `Look.judged`, of an image that nobody learned from."""
        first = self.verdicts(students, image, boxes)
        said = students.joined(output, *first)
        if not students.config.looks_again or said.shift is None or said.fused is None:
            return said
        size, best = size_of(image).float(), best_rows(said.fused, students.config.second_look)
        again = self.verdicts(students, image, moved(boxes[best], said.shift[best], size[0], size[1]))
        return students.joined(output, *both_looks(first, again, best))

    def verdicts(self, students: Students, image: Tensor, boxes: Tensor) -> Verdicts:
        """As `Look.verdicts`."""
        said, cells = (self.of_pixels if students.config.whole else self.of_maps)(students, image, boxes)
        log_prob = torch.stack([one.log_prob.exp() for one in said]).mean(dim=0).clamp(min=1e-30).log()
        return Verdicts(log_prob, torch.stack([one.shift for one in said]).mean(dim=0), cells)

    def of_pixels(self, students: Students, image: Tensor, boxes: Tensor) -> tuple[list[Said], None]:
        """As each `FastRCNN` at the scale of a single view; none of them names cells."""
        said, scale = [], middle_scale(students.config.scales)
        for student, backbone in zip(students.students, self.whole, strict=True):
            assert isinstance(student, FastRCNN) and isinstance(backbone, Backbone)
            said.append(student.verdict(backbone.head(self.pooled(backbone, image, boxes, scale))))
        return said, None

    def of_maps(self, students: Students, image: Tensor, boxes: Tensor) -> tuple[list[Said], Tensor | None]:
        """As each `Student`, and what all of them say of cells."""
        config, size = students.config, size_of(image)
        best = normal_scale(boxes, config.scales, larger(size), students.normal_size)  # type: ignore[arg-type]
        rows: list[Tensor] = []
        seen: list[list[Tensor]] = [[] for _ in students.students]
        shares: list[Tensor] = []
        for s, scale in enumerate(config.scales):
            map = self.student_map(self.small(image, scale)[0], config.fixed)
            rows.append(torch.nonzero(best == s)[:, 0])
            small = torch.round(size.double() * scale / larger(size).double()).clamp(min=1)  # as `at_scales` rounds
            shrink = (small / size).float().repeat(2)
            there = boxes[rows[-1]] * shrink
            weights = region_weights(*region_parts(there, 3, config.bins), map, self.backbone.stride)
            for student, parts in zip(students.students, seen, strict=True):
                assert isinstance(student, Student)
                first, cells = student.stages(map)
                read = parts_of(cells, weights)  # (n, parts, D)
                read = normalised(read, student.components) if config.fixed else read
                sharp = [self.sharp(student, first, there)] if config.sharp else []
                parts.append(torch.cat([read.flatten(1), *sharp], dim=1))
                if config.names_cells and s == config.finest:
                    shares.append(self.shares(student, map, boxes * shrink))
        said = []
        for student, parts in zip(students.students, seen, strict=True):
            assert isinstance(student, Student)
            said.append(student.verdict(student.neck(in_order(rows, parts))))
        return said, named_as(torch.stack(shares).mean(dim=0), covering(boxes, size)) if shares else None

    def shares(self, student: Student, map: Tensor, boxes: Tensor) -> Tensor:
        """As `Student.shares`."""
        weights = region_weights(*region_parts(boxes), map, self.backbone.stride)
        return parts_of(student.named(map), weights).transpose(0, 1)

    def student_map(self, small: Tensor, deep: bool) -> Tensor:
        """As `FrozenTrunk.student_maps`, of one scale."""
        assert self.frozen is not None
        first = self.backbone.stem(small)
        seen = [first[0].permute(1, 2, 0)]
        if deep:
            seen.append(self.frozen.of_map(self.backbone.tail(first)[0].permute(1, 2, 0)))
        return torch.cat(seen, dim=2)

    def sharp(self, student: Student, map: Tensor, boxes: Tensor) -> Tensor:
        """What a `Student` reads on the map of the first stages."""
        parts = student.sharp_parts(boxes)
        weights = region_weights(parts, torch.zeros_like(parts), map, self.backbone.stride)
        return normalised(parts_of(map, weights), student.channels).flatten(1)


def covering(boxes: Tensor, size: Tensor) -> Tensor:
    """As `trunks.covers`, of an image whose width and height (2,) are known when the graph runs."""
    return (boxes[:, :2] <= 0).all(dim=1) & (boxes[:, 2:] >= size).all(dim=1)


class Detecting(MELM):
    """MELM where it detects: no score depends on the cliques, so every proposal is left alone."""

    def __init__(self, learned: MELM) -> None:
        nn.Module.__init__(self)  # no new layers: the learned ones serve
        self.config, self.neck = learned.config, learned.neck
        self.discovery, self.localization = learned.discovery, learned.localization

    def partition(self, proposals: Tensor, log_prob: Tensor) -> Cliques:
        return Unchanged(proposals, proposals, len(proposals))

    def prob_of(self, scores: Scores) -> Tensor:
        """The same without log(1 - p), which only the loss needs and a trace cannot follow."""
        if self.config.scoring == "joint":
            return super().prob_of(scores)
        assert scores.location_logits is not None
        logits = scores.class_logits
        of_class = log_sigmoid(logits) if logits.shape[1] == 1 else F.log_softmax(logits, dim=1)
        return of_class + F.log_softmax(scores.location_logits, dim=0)

    def evidence(self, pooled: Regions, score: Tensor | None, share: Tensor | None) -> Tensor:
        """The same without a choice by value."""
        evidence = torch.zeros_like(pooled.box.flatten(1)[:, 0])
        if self.config.contrast_weight:
            assert pooled.ring is not None
            alike = F.cosine_similarity(pooled.box.flatten(1), pooled.ring.flatten(1), dim=1)
            evidence = evidence + self.config.contrast_weight * in_deviations(-alike)
        if self.config.score_weight:
            assert score is not None
            evidence = evidence + self.config.score_weight * in_deviations(score)
        if self.config.size_weight:
            assert share is not None
            evidence = evidence + self.config.size_weight * from_middle_size(share)
        return evidence


class Unchanged(Cliques):
    """In the place of cliques where none are needed."""

    def mean(self, values: Tensor) -> Tensor:
        return values
