"""What one step of retraining sees of one image: some boxes, what each is, where it has to move and how much it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from melm.boxes import iou
from melm.data.images import read_image
from melm.data.records import TaggedImages
from melm.learn.data import Ready
from melm.learn.features import boxes_of
from melm.learn.map_store import MapStore
from melm.learn.pseudo_objects import Objects
from melm.learn.students import RetrainConfig, Students, fold_of
from melm.model.melm import among_known
from melm.model.regression import box_loss, mirrored_shift, shift_to
from melm.model.student import Said, at_scales
from melm.model.trunks import mirrored, mirrored_boxes, normal_scale, resized
from melm.proposals import Proposals

Shown = tuple[list[Tensor | None], list[Tensor], Tensor]  # inputs and boxes by scale, and which of the chosen these are


@dataclass(frozen=True, slots=True)
class Cells:
    """Some cells of a map, and what each of them shows."""

    seen: Tensor  # (m, M + D)
    target: Tensor  # (m,) and
    weight: Tensor  # (m,) as those of boxes

    def to(self, device: torch.device) -> Cells:
        return Cells(self.seen.to(device), self.target.to(device), self.weight.to(device))


@dataclass(frozen=True, slots=True)
class Lesson:
    """One image in one step: maps or images, and boxes, by scale, and what each box is."""

    index: int
    fold: int  # which decides who learns from it
    seen: list[Tensor | None]
    boxes: list[Tensor]
    target: Tensor  # (n,) classes, K for background
    shift: Tensor  # (n, 4) where boxes have to move that overlap an object; 0 for others
    # (n,) if all objects are as sure as the mean, adds up to 1 for objects and to 1 for background, of a whole network for both
    weight: Tensor
    moving: Tensor  # (n,) the same of those that have to move; 0 for others
    known: Tensor  # (K,) 0 for classes of which nobody knows whether the image has them
    cells: Cells | None = None  # some cells of the largest map, where cells are named

    def to(self, device: torch.device) -> Lesson:
        if device.type == "cpu":
            return self
        return replace(
            self,
            seen=[None if one is None else one.to(device) for one in self.seen],
            boxes=[boxes.to(device) for boxes in self.boxes],
            **{name: getattr(self, name).to(device) for name in ("target", "shift", "weight", "moving", "known")},
            cells=self.cells and self.cells.to(device),
        )


@dataclass(frozen=True, slots=True)
class View:
    """How an image is looked at in one step."""

    there: NDArray[np.bool_]  # (N,) the proposals that can be seen
    show: Callable[[NDArray[np.intp]], Shown]  # of some of them
    flip: bool = False


class Lessons:
    """The images of a run with the objects that its teacher found, as the steps see them."""

    def __init__(
        self, ready: Ready, objects: Sequence[Objects], config: RetrainConfig, maps: MapStore | None, normal_size: float
    ) -> None:
        """`maps` of the first stages, and at which size they read boxes, where not the whole network learns."""
        self.ready, self.objects, self.config, self.maps, self.normal_size = ready, objects, config, maps, normal_size
        self.images: TaggedImages = ready.images
        self.known = torch.from_numpy(ready.images.known()).float()
        # an image without an object teaches nothing of where objects end
        self.useful = [i for i, found in enumerate(objects) if len(found)]
        every = Objects.joined(objects)
        self.mean_sure = max(float(every.sure[every.taught].mean()), 1e-9) if len(every) else 1.0

    def __len__(self) -> int:
        return len(self.useful)

    def order(self, epoch: int) -> list[int]:
        """All images with objects once, shuffled by seed and epoch alone."""
        shuffled = np.random.default_rng([self.config.seed, epoch, 0]).permutation(len(self.useful))
        return [self.useful[int(i)] for i in shuffled]

    def load(self, index: int, epoch: int) -> Lesson:
        """Some boxes of a view, drawn from seed, epoch and image."""
        config, key = self.config, self.ready.keys[index]
        random = np.random.default_rng([config.seed, epoch, 1, index])
        found, every = boxes_of(self.ready.proposals, key, self.images[index].path), self.objects[index]
        objects, ignored = every.only(every.taught), every.only(~every.taught)
        view = self.of_pixels(index, found, random) if config.whole else self.of_maps(key, found, objects, random)
        overlap = iou(found.boxes, objects.boxes)  # (N, P)
        best, of = overlap.max(axis=1), overlap.argmax(axis=1)
        other = (best < config.object_iou) & view.there
        if len(ignored):
            other &= iou(found.boxes, ignored.boxes).max(axis=1) < config.object_iou
        positive = some(random, (best >= config.object_iou) & view.there, config.positives)
        close = (best >= config.near_iou) | (inside(found.boxes, objects.boxes) >= config.part)
        near = some(random, other & close, config.negatives // 2)
        anywhere = some(random, other, config.negatives - config.negatives // 2)
        chosen = np.concatenate([positive, near, anywhere])
        if not len(chosen):  # the view has only boxes that are left out
            chosen = some(random, view.there, 1)
        background = len(self.images.classes)
        target = np.full(len(chosen), background)
        target[: len(positive)] = objects.classes[of[positive]]
        is_object = target < background
        moves = best[chosen] >= config.move_iou
        share = np.where(is_object, 1 / max(is_object.sum(), 1), 1 / max((~is_object).sum(), 1))
        moving = moves / max(moves.sum(), 1)
        if config.whole:  # as in Fast R-CNN, for whose rate of learning the loss has to be the mean over boxes
            share, moving = np.full(len(chosen), 1 / len(chosen)), moves / len(chosen)
        sure = objects.sure[of[chosen]] / self.mean_sure if config.weigh else np.ones(len(chosen))
        if not len(positive) + len(near) + len(anywhere):
            sure = 0.0 * sure
        aim = shift_to(*(torch.from_numpy(b) for b in (found.boxes[chosen], objects.boxes[of[chosen]])))
        shift = torch.where(torch.from_numpy(moves)[:, None], mirrored_shift(aim) if view.flip else aim, 0.0)
        seen, boxes, order = view.show(chosen)
        of_class, of_place = (torch.from_numpy(weight * sure).float()[order] for weight in (share, moving))
        of_box = torch.from_numpy(target)[order], shift[order], of_class, of_place
        map = seen[config.finest] if config.names_cells else None
        cells = None if map is None else self.cells(map, found, every, random)
        return Lesson(index, fold_of(key, config.folds), seen, boxes, *of_box, self.known[index], cells)

    def cells(self, map: Tensor, found: Proposals, every: Objects, random: np.random.Generator) -> Cells:
        """Some cells of a map (h, w, M + D) in the objects of its image, and as many outside, drawn at random."""
        config, background = self.config, len(self.images.classes)
        assert self.maps is not None
        reach = self.maps.trunk.backbone.stride * max(found.width, found.height) / max(config.scales)
        rows, columns = map.shape[:2]
        of, left_out = cells_in(middles_of_cells(rows, columns, reach, found.width, found.height), every)
        objects = every.only(every.taught)
        inside = some(random, (of >= 0) & ~left_out, config.cells)
        outside = some(random, (of < 0) & ~left_out, config.cells)
        target = np.concatenate([objects.classes[of[inside]], np.full(len(outside), background)])
        sure = np.concatenate([objects.sure[of[inside]], np.full(len(outside), objects.sure.mean())])
        share = np.concatenate([np.full(len(rows), 1 / max(len(rows), 1)) for rows in (inside, outside)])
        if config.weigh:
            share = share * sure / self.mean_sure
        chosen = torch.from_numpy(np.concatenate([inside, outside]))
        return Cells(map.flatten(0, 1)[chosen], torch.from_numpy(target), torch.from_numpy(share).float())

    def of_maps(self, key: str, found: Proposals, objects: Objects, random: np.random.Generator) -> View:
        """Boxes of two scales, that of one of the objects and another; of all where the trunk does not work in a step."""
        scales, larger = self.config.scales, max(found.width, found.height)
        number, of_object = (
            normal_scale(torch.from_numpy(boxes), scales, larger, self.normal_size)
            for boxes in (found.boxes, objects.boxes)
        )
        there = np.ones(len(number), bool)
        if not self.config.fixed:
            wanted = scales_of_step(int(of_object[random.integers(len(objects))]), len(scales), random)
            there = np.isin(number.numpy(), wanted)

        def show(chosen: NDArray[np.intp]) -> Shown:
            assert self.maps is not None
            boxes, of_chosen = torch.from_numpy(found.boxes[chosen]), number[torch.from_numpy(chosen)]
            by, order = at_scales(boxes, of_chosen, scales, found.width, found.height)
            numbers = {s for s, of_scale in enumerate(by) if len(of_scale)}
            if self.config.names_cells:
                numbers.add(self.config.finest)
            return self.maps.get(key, numbers), by, order

        return View(there if there.any() else np.ones(len(number), bool), show)

    def of_pixels(self, index: int, found: Proposals, random: np.random.Generator) -> View:
        """All boxes at one scale, every other time in the mirrored image."""
        scales, scale, flip = self.config.scales, int(random.integers(len(self.config.scales))), random.random() < 0.5

        def show(chosen: NDArray[np.intp]) -> Shown:
            pixels, boxes = read_image(self.images[index].path), torch.from_numpy(found.boxes[chosen])
            if flip:
                pixels, boxes = mirrored(pixels), mirrored_boxes(boxes, found.width)
            seen: list[Tensor | None] = [None] * len(scales)
            seen[scale] = torch.from_numpy(resized(pixels, scales[scale]))
            number = torch.full((len(chosen),), scale)
            return seen, *at_scales(boxes, number, scales, found.width, found.height)

        return View(np.ones(len(found), bool), show, flip)


def scales_of_step(first: int, scales: int, random: np.random.Generator) -> list[int]:
    """The scale of an object, and one of the others: what is too small and too large is then seen as well."""
    others = [s for s in range(scales) if s != first]
    return [first, *([others[random.integers(len(others))]] if others else [])]


def middles_of_cells(rows: int, columns: int, reach: float, width: int, height: int) -> NDArray[np.float64]:
    """(rows * columns, 2) the middles of a map's cells, row by row, in the pixels of an image of width x height: each cell is
    `reach` wide and high, but of the last ones only a part may lie in the image."""
    x, y = (
        (ends[1:] + ends[:-1]) / 2
        for ends in (
            np.minimum(np.arange(count + 1) * reach, side) for count, side in ((columns, width), (rows, height))
        )
    )
    return np.stack(np.meshgrid(x, y), axis=2).reshape(-1, 2)


def cells_in(middles: NDArray[np.float64], every: Objects) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """(n,) the taught object in which each cell lies, by its middle (n, 2), or -1; and whether it cannot be said what it shows:
    it lies in objects of two classes, or in none but one that is left out."""
    low, high = every.boxes[None, :, :2], every.boxes[None, :, 2:]
    there = np.all((middles[:, None] >= low) & (middles[:, None] <= high), axis=2)  # (n, P)
    within = there[:, every.taught]
    of = np.where(within.any(axis=1), within.argmax(axis=1), -1)
    classes = every.classes[every.taught]
    another = (within & (classes[None] != classes[of][:, None])).any(axis=1) & (of >= 0)
    return of, another | ((of < 0) & there[:, ~every.taught].any(axis=1))


def inside(boxes: NDArray[np.float32], objects: NDArray[np.float32]) -> NDArray[np.float64]:
    """(N,) the largest share of each box that lies in one of the objects: a small part of a large object hardly overlaps it, and
    is what a student has to tell from it."""
    low, high = (
        op(boxes[:, None, place].astype(np.float64), objects[None, :, place])
        for op, place in ((np.maximum, slice(0, 2)), (np.minimum, slice(2, 4)))
    )
    shared = np.clip(high - low, 0, None).prod(axis=2)  # (N, P)
    area = np.maximum((boxes[:, 2:] - boxes[:, :2]).astype(np.float64).prod(axis=1), 1e-9)
    share: NDArray[np.float64] = shared.max(axis=1) / area
    return share


def some(random: np.random.Generator, these: NDArray[np.bool_], most: int) -> NDArray[np.intp]:
    """At most so many of the rows for which it is true."""
    rows = np.flatnonzero(these)
    return np.sort(random.choice(rows, most, replace=False)) if len(rows) > most else rows


class StudentStep(nn.Module):
    """One image through the students that may learn from it, to their loss."""

    figures = ("loss", "classes", "boxes", "cells")

    def __init__(self, students: Students) -> None:
        super().__init__()
        self.network = students

    @property
    def at_once(self) -> bool:
        return not self.network.config.whole

    def parts(self) -> dict[str, list[nn.Parameter]]:
        return {"tail": tail} if (tail := self._tail()) else {}

    def rates(self) -> list[tuple[float, list[nn.Parameter]]]:
        tail = self._tail()
        rest = {id(p) for p in tail}
        new = [p for p in self.parameters() if p.requires_grad and id(p) not in rest]
        return [(self.network.config.tail_share, tail), (1.0, new)]

    def _tail(self) -> list[nn.Parameter]:
        """What was learned before."""
        names = (".tail.", ".reduce.", ".backbone.")
        return [p for name, p in self.named_parameters() if p.requires_grad and any(n in name for n in names)]

    def forward(self, lesson: Lesson, strength: float, previous: None) -> tuple[Tensor, list[Tensor], None]:
        config, losses = self.network.config, []
        judges = config.judges_of(lesson.fold)
        learning = [student for number, student in enumerate(self.network.students) if number not in judges]
        read = learning[0].seen(lesson.seen, lesson.boxes) if config.fixed else None  # type: ignore[operator]
        for student in learning:
            said = student(lesson.seen, lesson.boxes) if read is None else student.say(read)  # type: ignore[operator]
            named = None if lesson.cells is None else student.cells(lesson.cells.seen)  # type: ignore[operator]
            losses.append(torch.stack(student_loss(said, named, lesson)))
        classes, boxes, cells = torch.stack(losses).mean(dim=0)
        loss = classes + config.box_weight * boxes + cells
        if config.folds > 1 and dist.is_initialized():  # every weight has to have a gradient whoever learns
            loss = loss + 0.0 * torch.stack([p.sum() for p in self.parameters() if p.requires_grad]).sum()
        return loss, [figure.detach() for figure in (loss, classes, boxes, cells)], None


def student_loss(said: Said, named: Tensor | None, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
    """Of what boxes are, of where those near an object move, and of what cells show, (m, K+1), if they are named."""
    classes = naming_loss(said.log_prob, lesson.known, lesson.target, lesson.weight)
    boxes = (lesson.moving * box_loss(said.shift, lesson.shift)).sum()
    if named is None or lesson.cells is None:
        return classes, boxes, torch.zeros_like(boxes)
    return classes, boxes, naming_loss(named, lesson.known, lesson.cells.target, lesson.cells.weight)


def naming_loss(log_prob: Tensor, known: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Weighted cross entropy of log p (n, K+1) among the classes of which it is known whether the image has them."""
    return -(weight * among_known(log_prob, known).gather(1, target[:, None])[:, 0]).sum()
