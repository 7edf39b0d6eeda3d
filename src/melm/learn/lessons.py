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
class Lesson:
    """One image in one step: maps or images, and boxes, by scale, and what each box is."""

    index: int
    fold: int  # whose student does not learn from it
    seen: list[Tensor | None]
    boxes: list[Tensor]
    target: Tensor  # (n,) classes, K for background
    shift: Tensor  # (n, 4) where boxes of a class have to move; 0 for background
    weight: Tensor  # (n,) adds up to 1 for objects and to 1 for background, if all objects are as sure as the mean
    known: Tensor  # (K,) 0 for classes of which nobody knows whether the image has them

    def to(self, device: torch.device) -> Lesson:
        if device.type == "cpu":
            return self
        return replace(
            self,
            seen=[None if one is None else one.to(device) for one in self.seen],
            boxes=[boxes.to(device) for boxes in self.boxes],
            **{name: getattr(self, name).to(device) for name in ("target", "shift", "weight", "known")},
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
        share = np.where(is_object, 1 / max(is_object.sum(), 1), 1 / max((~is_object).sum(), 1))
        if config.weigh:
            share = share * objects.sure[of[chosen]] / self.mean_sure
        if not len(positive) + len(near) + len(anywhere):
            share = 0.0 * share
        aim = shift_to(*(torch.from_numpy(b) for b in (found.boxes[chosen], objects.boxes[of[chosen]])))
        shift = torch.where(torch.from_numpy(is_object)[:, None], mirrored_shift(aim) if view.flip else aim, 0.0)
        seen, boxes, order = view.show(chosen)
        of_box = torch.from_numpy(target)[order], shift[order], torch.from_numpy(share).float()[order]
        return Lesson(index, fold_of(key, config.folds), seen, boxes, *of_box, self.known[index])

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
            return self.maps.get(key, [s for s, of_scale in enumerate(by) if len(of_scale)]), by, order

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

    figures = ("loss", "classes", "boxes")

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
        for fold, student in enumerate(self.network.students):
            if config.folds == 1 or fold != lesson.fold:
                losses.append(torch.stack(student_loss(student(lesson.seen, lesson.boxes), lesson)))
        classes, boxes = torch.stack(losses).mean(dim=0)
        loss = classes + config.box_weight * boxes
        if config.folds > 1 and dist.is_initialized():  # every weight has to have a gradient whichever fold it is
            loss = loss + 0.0 * torch.stack([p.sum() for p in self.parameters() if p.requires_grad]).sum()
        return loss, [figure.detach() for figure in (loss, classes, boxes)], None


def student_loss(said: Said, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Of what boxes are, and of where those on an object move."""
    log_prob = among_known(said.log_prob, lesson.known)
    classes = -(lesson.weight * log_prob.gather(1, lesson.target[:, None])[:, 0]).sum()
    is_object = lesson.target < log_prob.shape[1] - 1
    boxes = (lesson.weight * is_object * box_loss(said.shift, lesson.shift)).sum()
    return classes, boxes
