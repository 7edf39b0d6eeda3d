"""What the students of a retrained run say of the boxes of an image: where they are, and of the best again where they move to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from melm.learn.students import Students
from melm.model.melm import Output
from melm.model.precision import products
from melm.model.regression import mirrored_shift, moved
from melm.model.student import at_scales, named_as
from melm.model.trunks import covers, means, mirrored_boxes, region_parts
from melm.proposals import Proposals


class Verdicts(NamedTuple):
    """Of n boxes."""

    student: Tensor  # log p (n, K+1)
    shift: Tensor  # how they move, (n, 4)
    cells: Tensor | None  # how well they agree with the names of cells, (n, K)


class Look:
    """At one image. `seen` are the `Students.inputs`, of the mirrored image for `flip`; `key` names it by its content, where that
    is known: a student that learned from it is not asked."""

    def __init__(
        self,
        students: Students,
        seen: Sequence[Tensor | None],
        found: Proposals,
        key: str | None = None,
        flip: bool = False,
    ) -> None:
        self.students, self.config, self.found, self.flip = students, students.config, found, flip
        self.device = next(students.parameters()).device
        self.seen = [None if one is None else one.to(self.device) for one in seen]
        self.asked = students.of(key)
        self._named: list[Tensor] | None = None

    @torch.no_grad()
    def judged(self, output: Output) -> Output:
        """The same output with what the students say of the proposals, and what they and their teacher say together."""
        first = self.first()
        said = self.students.joined(output, *first)
        if not self.config.looks_again or said.shift is None or said.fused is None:
            return said
        best = best_rows(said.fused, self.config.second_look)
        boxes, shift = torch.from_numpy(self.found.boxes)[best.cpu()], said.shift[best].cpu()
        again = self.verdicts(moved(boxes, shift, self.found.width, self.found.height))
        return self.students.joined(output, *both_looks(first, again, best))

    def first(self) -> Verdicts:
        """Of the proposals where they are."""
        return self.verdicts(torch.from_numpy(self.found.boxes))

    @torch.no_grad()
    def verdicts(self, boxes: Tensor) -> Verdicts:
        """Of boxes (n, 4) of the upright image."""
        found, config, device = self.found, self.config, self.device
        boxes = mirrored_boxes(boxes, found.width) if self.flip else boxes
        there, rows = self.students.divided(boxes, found.width, found.height)
        shown = self.seen, [some.to(device) for some in there]
        with products(config.precision, device):
            if config.fixed:  # all read the same
                read = self.asked[0].seen(*shown)  # type: ignore[operator]
                said = [student.say(read) for student in self.asked]  # type: ignore[operator]
            else:
                said = [student(*shown) for student in self.asked]
        prob = torch.stack([one.log_prob.exp() for one in said]).mean(dim=0)
        student, shift = torch.empty_like(prob), torch.empty(len(boxes), 4, device=device)
        student[rows.to(device)] = prob.clamp(min=1e-30).log()
        shift[rows.to(device)] = torch.stack([one.shift for one in said]).mean(dim=0)
        return Verdicts(student, mirrored_shift(shift) if self.flip else shift, self.cells(boxes))

    def cells(self, boxes: Tensor) -> Tensor | None:
        """How well boxes (n, 4) agree with the names of cells, (n, K); None where none are named."""
        if not self.config.names_cells:
            return None
        found, finest = self.found, self.config.finest
        at_finest = torch.full((len(boxes),), finest)
        there = at_scales(boxes, at_finest, self.config.scales, found.width, found.height)[0][finest].to(self.device)
        parts, stride = region_parts(there), self.asked[0].stride
        shares = [torch.stack(means(named, *parts, stride)) for named in self.named()]  # type: ignore[arg-type]
        whole = covers(boxes, found.width, found.height).to(self.device)
        return named_as(torch.stack(shares).mean(dim=0), whole)

    def named(self) -> list[Tensor]:
        """What those who are asked call the cells of the largest map, (h, w, K) each; once for both looks."""
        # no cached_property, which before Python 3.12 lets in one thread at a time, of all looks
        if self._named is None:
            with products(self.config.precision, self.device):
                self._named = [one.named(self.seen[self.config.finest]).contiguous() for one in self.asked]  # type: ignore[operator]
        return self._named


def best_rows(fused: Tensor, count: int) -> Tensor:
    """The rows of the `count` boxes that are best for a class, of log scores (N, K)."""
    return torch.argsort(fused.amax(dim=1), descending=True)[:count]


def both_looks(first: Verdicts, again: Verdicts, rows: Tensor) -> Verdicts:
    """The mean of what is said of `rows` in both looks, by logarithms: one look that finds little counts. Boxes move as they did
    in the first: moved on from where they went, they were worse (docs/experiments.md)."""

    def mean(before: Tensor, now: Tensor) -> Tensor:
        return before.index_copy(0, rows, (before[rows] + now) / 2)

    student, cells = mean(first.student, again.student), first.cells
    if cells is not None and again.cells is not None:
        cells = mean(cells, again.cells)
    return first._replace(student=student, cells=cells)
