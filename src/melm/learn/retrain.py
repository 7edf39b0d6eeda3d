"""`melm retrain`: students learn, with the last stages of the trunk, from the boxes that a run has found (its pseudo-objects)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from melm.boxes import iou, nms, voted
from melm.data import Source, read_tags
from melm.data.records import TaggedImages
from melm.errors import MelmError, UsageError, one_of
from melm.files import packed, write_whole
from melm.learn.checkpoint import save_pair
from melm.learn.data import Ready, check_tags, prepare, read_features, with_boxes_of
from melm.learn.features import boxes_of, make_maps
from melm.learn.loop import AFTER_EPOCH, Learner, learn
from melm.learn.map_store import MapStore
from melm.learn.model_file import Learned, load_model
from melm.learn.network import branches_of, default_branch, forward
from melm.learn.processes import Processes, joined
from melm.learn.region_store import RegionStore
from melm.learn.run_folder import RunFolder, data_digest, data_record, device_name, tensors_digest, versions
from melm.learn.students import RetrainConfig, Students, fold_of
from melm.model.student import by_scale
from melm.model.trunks import FrozenTrunk, normal_scale
from melm.proposals import ProposalStore, ReadyMade

OBJECTS = "objects.npz"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One image in one step: maps and boxes by scale, and what each box is."""

    index: int
    fold: int  # whose student does not learn from it
    maps: list[Tensor | None]
    boxes: list[Tensor]
    target: Tensor  # (n,) classes, K for background
    weight: Tensor  # (n,) adds up to 1 for objects and to 1 for background, if all objects are as sure as the mean

    def to(self, device: torch.device) -> Lesson:
        if device.type == "cpu":
            return self
        return replace(
            self,
            maps=[None if map is None else map.to(device) for map in self.maps],
            boxes=[boxes.to(device) for boxes in self.boxes],
            target=self.target.to(device),
            weight=self.weight.to(device),
        )


@dataclass(frozen=True, slots=True)
class Objects:
    """The pseudo-objects of an image."""

    boxes: NDArray[np.float32]  # (P, 4)
    classes: NDArray[np.intp]  # (P,)
    sure: NDArray[np.float64]  # (P,) from 0 to 1: the share of the tag's score that lies around each

    def __len__(self) -> int:
        return len(self.boxes)

    @staticmethod
    def joined(several: Sequence[Objects]) -> Objects:
        """Those of several tags or images, one after another."""
        nothing = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.intp), np.zeros(0))
        return Objects(*(np.concatenate([getattr(one, name) for one in (nothing, *several)]) for name in PARTS))


PARTS = tuple(field.name for field in fields(Objects))


class Lessons:
    """The images of a run with the objects that its teacher found, as the steps see them."""

    def __init__(
        self,
        ready: Ready,
        objects: Sequence[Objects],
        maps: MapStore,
        config: RetrainConfig,
        normal_size: float,
    ) -> None:
        self.ready, self.objects, self.maps, self.config, self.normal_size = ready, objects, maps, config, normal_size
        self.images: TaggedImages = ready.images
        # an image without an object teaches nothing of where objects end
        self.useful = [i for i, found in enumerate(objects) if len(found)]
        every = Objects.joined(objects).sure
        self.mean_sure = max(float(every.mean()), 1e-9) if len(every) else 1.0

    def __len__(self) -> int:
        return len(self.useful)

    def order(self, epoch: int) -> list[int]:
        """All images with objects once, shuffled by seed and epoch alone."""
        shuffled = np.random.default_rng([self.config.seed, epoch, 0]).permutation(len(self.useful))
        return [self.useful[int(i)] for i in shuffled]

    def load(self, index: int, epoch: int) -> Lesson:
        """Boxes of two scales, drawn from seed, epoch and image: that of one of its objects, and another."""
        config, key = self.config, self.ready.keys[index]
        random = np.random.default_rng([config.seed, epoch, 1, index])
        found, objects = boxes_of(self.ready.proposals, key, self.images[index].path), self.objects[index]
        boxes = torch.from_numpy(found.boxes)
        number, of_object = (
            normal_scale(these, config.scales, max(found.width, found.height), self.normal_size).numpy()
            for these in (boxes, torch.from_numpy(objects.boxes))
        )
        seen = scales_of_step(int(of_object[random.integers(len(objects))]), len(config.scales), random)
        overlap = iou(found.boxes, objects.boxes)  # (N, P)
        best, of = overlap.max(axis=1), overlap.argmax(axis=1)
        there = np.isin(number, seen)
        positive = some(random, (best >= config.object_iou) & there, config.positives)
        close = (best >= config.near_iou) | (inside(found.boxes, objects.boxes) >= config.part)
        near = some(random, (best < config.object_iou) & close & there, config.negatives // 2)
        anywhere = some(random, (best < config.object_iou) & there, config.negatives - config.negatives // 2)
        chosen = np.concatenate([positive, near, anywhere])
        background = len(self.images.classes)
        target = np.concatenate([objects.classes[of[positive]], np.full(len(near) + len(anywhere), background)])
        is_object = target < background
        share = np.where(is_object, 1 / max(is_object.sum(), 1), 1 / max((~is_object).sum(), 1))
        if config.weigh:
            share = share * objects.sure[of[chosen]] / self.mean_sure
        by, order = by_scale(boxes[chosen], config.scales, found.width, found.height, self.normal_size)
        wanted = [s for s, of_scale in enumerate(by) if len(of_scale)]
        return Lesson(
            index,
            fold_of(key, config.folds),
            self.maps.get(key, wanted),
            by,
            torch.from_numpy(target)[order],
            torch.from_numpy(share).float()[order],
        )


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

    figures = ("loss",)

    def __init__(self, students: Students) -> None:
        super().__init__()
        self.network = students

    def parts(self) -> dict[str, list[nn.Parameter]]:
        return {"tail": self._tail()}

    def rates(self) -> list[tuple[float, list[nn.Parameter]]]:
        tail = self._tail()
        rest = {id(p) for p in tail}
        return [(self.network.config.tail_share, tail), (1.0, [p for p in self.parameters() if id(p) not in rest])]

    def _tail(self) -> list[nn.Parameter]:
        return [p for name, p in self.named_parameters() if ".tail." in name or ".reduce." in name]

    def forward(self, lesson: Lesson, strength: float, previous: None) -> tuple[Tensor, list[Tensor], None]:
        folds = self.network.config.folds
        losses = []
        for fold, student in enumerate(self.network.students):
            if folds == 1 or fold != lesson.fold:
                log_prob = student(lesson.maps, lesson.boxes)  # (n, K+1)
                losses.append(-(lesson.weight * log_prob.gather(1, lesson.target[:, None])[:, 0]).sum())
        loss = torch.stack(losses).mean()
        # every weight has a gradient whichever fold it is, so that the optimizer's steps are those of many processes
        loss = loss + 0.0 * torch.stack([p.sum() for p in self.parameters()]).sum()
        return loss, [loss.detach()], None


def retrain(
    run: Path | str,
    data: Source | Path | str,
    out: Path | str,
    config: RetrainConfig | None = None,
    *,
    proposals_file: ReadyMade | None = None,
    device: str = "auto",
    workers: int | None = None,
    overwrite: bool = False,
    skip_bad: bool = False,
    after_epoch: AFTER_EPOCH | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Learns students from what a finished run finds in the images of a data set with tags; the folder of the new run.

    The same call on the same folder goes on where it stopped. The new run holds the old one too: it needs nothing else. A
    retrained run can be retrained again: its students go on, taught by what they and their teacher find together.
    """
    source = data if isinstance(data, Source) else Source(Path(data))
    config = config or RetrainConfig()
    teacher = load_model(Path(run))
    own = default_branch(teacher.config)
    one_of("teacher", config.branch(own), branches_of(teacher.config))
    if not isinstance(teacher.network.trunk, FrozenTrunk):
        raise UsageError(f"{run}: only a run with a frozen trunk can be retrained (preset fast)")
    if teacher.students is not None and (
        teacher.students.config.folds != config.folds or teacher.students.config.scales != config.scales
    ):
        raise UsageError(f"{run}: its students have other folds or scales; keep those when it is retrained again")
    with joined(device) as processes:
        say = say if processes.first else lambda text: None
        images = read_tags(source)
        _same_classes(images, teacher)
        check_tags(images)
        boxes = with_boxes_of(teacher.config, proposals_file)
        if boxes.proposals != teacher.config.proposals:
            raise UsageError(f"{run}: was learned on other boxes than those of {proposals_file}. Give the same --file")
        if boxes.proposals.method == "file" and proposals_file is None:
            raise UsageError(f"{run}: was learned on the boxes of a file. Give it with --file")
        ready = prepare(images, teacher.config, processes, workers, proposals_file, skip_bad)
        folder = RunFolder(Path(out))
        about = _about(teacher, config, ready, source, processes)
        if processes.first:
            folder.open(about, overwrite)
        processes.wait()
        trunk = teacher.network.trunk.to(processes.device)
        teacher.network.to(processes.device)
        regions = read_features(ready, trunk, processes, (trunk.mean, trunk.basis))
        maps = MapStore(trunk, config.scales)
        mine, keys = processes.share(list(ready.images)), processes.share(ready.keys)
        with processes.steps("maps", len(mine)) as steps:
            make_maps(maps, mine, keys, steps.advance)
        processes.wait()
        objects = _objects(teacher, config, ready, regions, maps, folder, processes)
        say(f"{sum(map(len, objects)):,} objects found in {len(objects):,} images by {run}")
        torch.manual_seed(config.seed)
        students = Students(teacher.network, config, len(teacher.classes), own, frozenset(ready.keys))
        if teacher.students is not None:
            students.load_state_dict(teacher.students.state_dict())
        students.to(processes.device)
        lessons = Lessons(ready, objects, maps, config, trunk.normal_size)
        if not len(lessons):
            raise MelmError(f"{run}: found no object in {source.path}, so there is nothing to learn from")
        learner = Learner(StudentStep(students), config, lessons, processes, folder)
        if learner.take_up():
            say(f"going on in {folder.path} at epoch {learner.position.epoch + 1} of {config.epochs}")
        if processes.first:
            folder.open_log(learner.position.log_bytes)
        try:
            learn(learner, after_epoch, lambda record: None)
        finally:
            folder.close_log()
        if processes.first:
            _save(folder, teacher, students, learner, about)
            say(f"learned in {learner.position.seconds:.0f} s; the detector is {folder.path}")
    return Path(out)


def _same_classes(images: TaggedImages, teacher: Learned) -> None:
    if images.classes != teacher.classes:
        raise UsageError(
            f"{images.root}: its classes are {', '.join(images.classes)}; those of {teacher.path} are "
            f"{', '.join(teacher.classes)}. Retrain on the data that the run learned from, or on more with the same classes"
        )


def _about(
    teacher: Learned, config: RetrainConfig, ready: Ready, source: Source, processes: Processes
) -> dict[str, Any]:
    found = teacher.network.tensors()
    if teacher.students is not None:
        found = {**found, **dict(teacher.students.named_parameters())}
    return {
        "config": teacher.config.as_dict(),
        "retrained": config.as_dict(),
        "teacher": tensors_digest([found[name] for name in sorted(found)]),
        "classes": list(teacher.classes),
        "data": data_record(source, len(ready.images)),
        "data_digest": data_digest(ready.images, ready.keys),
        "basis": None,
        "left_out": list(ready.left_out),
        "processes": processes.world,
        "device": device_name(processes.device),
        "versions": versions(),
    }


def _objects(
    teacher: Learned,
    config: RetrainConfig,
    ready: Ready,
    regions: RegionStore,
    maps: MapStore,
    folder: RunFolder,
    processes: Processes,
) -> list[Objects]:
    """The pseudo-objects of every image: what the teacher takes for objects of its tags."""
    path = folder.path / OBJECTS
    if processes.first and _kept(path) is None:
        found = []
        with processes.steps("objects", len(ready.keys)) as steps:
            for image, key in zip(ready.images, ready.keys, strict=True):
                classes = [teacher.classes.index(name) for name in image.tags if name not in image.unknown]
                found.append(_objects_of(teacher, config, key, image.path, classes, ready.proposals, regions, maps))
                steps.advance()
        every = Objects.joined(found)
        arrays = {name: getattr(every, name) for name in PARTS}
        try:
            write_whole(path, packed({**arrays, "ends": np.cumsum([len(one) for one in found])}))
        except OSError as error:
            raise MelmError(f"{path}: cannot be written ({error.strerror}). Make room and run again") from None
    processes.wait()
    kept = _kept(path)
    if kept is None:
        raise MelmError(f"{path}: gone or damaged. Run the same command again: it is made anew")
    return kept


def _kept(path: Path) -> list[Objects] | None:
    try:
        with np.load(path, allow_pickle=False) as kept:
            parts = [np.split(kept[name], kept["ends"][:-1]) for name in PARTS]
            return [Objects(*one) for one in zip(*parts, strict=True)]
    except Exception:  # there is none, or it is damaged in one of the many ways a zip file can be
        return None


def _objects_of(
    teacher: Learned,
    config: RetrainConfig,
    key: str,
    path: Path,
    classes: list[int],
    proposals: ProposalStore,
    regions: RegionStore,
    maps: MapStore,
) -> Objects:
    if not classes:
        return Objects.joined([])
    found = boxes_of(proposals, key, path)
    branch = config.branch(default_branch(teacher.config))
    output = forward(teacher.network, teacher.strength, regions.regions(key), found)
    if teacher.students is not None:
        output, branch = teacher.students.judge(output, maps.get(key), found, key), "fused"
    scores = output.prob(branch).cpu().numpy()
    return Objects.joined([objects_of_tag(found.boxes, scores[:, k], k, config) for k in classes])


def objects_of_tag(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], number: int, config: RetrainConfig
) -> Objects:
    """The best box of a tag of class `number`, and those apart from it, and from each other, that are nearly as good."""
    rows = np.array([scores.argmax()])
    if config.alike < 1:
        good = np.flatnonzero(scores >= config.alike * scores.max())
        rows = good[nms(boxes[good], scores[good], config.apart_iou)]
    total = max(float(scores.sum(dtype=np.float64)), 1e-300)
    around = iou(boxes[rows], boxes) >= config.object_iou  # (P, N)
    sure = around @ scores.astype(np.float64) / total
    placed = voted(boxes, scores, rows, config.vote) if config.vote else boxes[rows]
    return Objects(placed.astype(np.float32), np.full(len(rows), number, np.intp), sure)


def _save(folder: RunFolder, teacher: Learned, students: Students, learner: Learner, about: dict[str, Any]) -> None:
    tensors = {**teacher.network.tensors()}
    for name, value in (*students.named_parameters(), *students.named_buffers()):
        tensors[f"students.{name}"] = value
    kept = {name: teacher.card[name] for name in ("strength", "convention")}
    card = {**about, **kept, "count": 1, "keys": sorted(students.keys), "seconds": round(learner.position.seconds, 1)}
    save_pair(folder.path, "model", tensors, card)
