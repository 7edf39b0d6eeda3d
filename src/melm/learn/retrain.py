"""`melm retrain`: students learn from the boxes that a run has found (its pseudo-objects), as Fast R-CNN from true ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from melm.boxes import agreed
from melm.data import Source, read_tags
from melm.data.images import content_of, read_image
from melm.data.records import TaggedImages
from melm.errors import MelmError, UsageError, one_of
from melm.files import cache_folder
from melm.learn.checkpoint import save_pair
from melm.learn.data import Ready, check_tags, opening, prepare, read_features, with_boxes_of
from melm.learn.features import boxes_of, make_maps
from melm.learn.lessons import Lessons, StudentStep
from melm.learn.loop import AFTER_EPOCH, Learner, learn
from melm.learn.map_store import MapStore
from melm.learn.model_file import Learned, convention_record, load_model
from melm.learn.network import branches_of, default_branch, forward
from melm.learn.processes import Processes, a_thread_each, joined
from melm.learn.pseudo_objects import OBJECTS, RULES, VERSION, Objects, keep, kept, objects_of_tag
from melm.learn.run_folder import RunFolder, data_digest, data_record, device_name, tensors_digest, versions
from melm.learn.students import RetrainConfig, Students, frozen_trunk, middle_scale, with_all_names
from melm.model.backbones import load_weights
from melm.model.regression import moved
from melm.model.student import FastRCNN
from melm.model.trunks import FrozenTrunk
from melm.proposals import Proposals, ReadyMade
from melm.workers import in_threads


def retrain(
    run: Path | str,
    data: Source | Path | str,
    out: Path | str,
    config: RetrainConfig | None = None,
    *,
    others: Sequence[Path | str] = (),
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
    retrained run can be retrained again: its students go on, taught by what they and their teacher find together. What is taught
    is what the run finds together with `others`, if any are given: those on the same proposals, with other backbones or seeds.
    """
    source = data if isinstance(data, Source) else Source(Path(data))
    config = config or RetrainConfig()
    if Path(run).resolve() == Path(out).resolve():
        raise UsageError(f"{out}: the new run cannot lie where the one that teaches it lies. Name another --out")
    teacher = load_model(Path(run))
    own = default_branch(teacher.config)
    one_of("teacher", config.branch(own), branches_of(teacher.config))
    goes_on = _check_kind(teacher, config)
    along = _teaching_along(teacher, others, config)
    with joined(device) as processes:
        say = say if processes.first else lambda text: None
        processes.check_precision(config.precision)
        images = read_tags(source)
        _same_classes(images, teacher)
        check_tags(images)
        boxes = with_boxes_of(teacher.config, proposals_file)
        if proposals_file is not None and boxes.proposals != teacher.config.proposals:
            _refuse_file(Path(run), teacher, proposals_file)
        if boxes.proposals.method == "file" and proposals_file is None:
            raise UsageError(f"{run}: was learned on the boxes of a file. Give it with --file")
        torch.manual_seed(config.seed)
        students = Students(teacher.network, config, len(teacher.classes), own)
        about_weights = _start(students, teacher if goes_on else None, say)
        ready = prepare(images, teacher.config, processes, workers, proposals_file, skip_bad)
        check_tags(ready.images)
        before = teacher.students.keys if goes_on and teacher.students else frozenset()
        students.keys = before | frozenset(map(content_of, ready.keys))
        folder = RunFolder(Path(out))
        about = {
            **_about(teacher, config, ready, source, processes),
            "teaches_along": [teacher_digest(other) for other in along],
            "student_weights": about_weights,
        }
        processes.first_does(lambda: folder.open(about, overwrite, with_all_names))
        for text in opening(ready, f"students of {run}", config, processes):
            say(text)
        maps = _maps(teacher, config, ready, processes)
        objects = _objects(_Teaching([teacher, *along], config, ready, processes), folder)
        teaching = sum(int(found.taught.sum()) for found in objects)
        left_out = sum(map(len, objects)) - teaching
        besides = f", {left_out:,} left out" if left_out else ""
        say(
            f"{teaching:,} objects found in {len(objects):,} images by {' and '.join(map(str, [run, *others]))}{besides}"
        )
        students.to(processes.device)
        lessons = Lessons(ready, objects, config, maps, getattr(students, "normal_size", 0.0))
        if not len(lessons):
            raise MelmError(f"{run}: found no object in {source.path}, so there is nothing to learn from")
        learner = Learner(StudentStep(students), config, lessons, processes, folder)
        if learner.take_up():
            say(learner.where())
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


def _refuse_file(run: Path, teacher: Learned, given: ReadyMade) -> None:
    learned_on = teacher.config.proposals
    if learned_on.method != "file":
        raise UsageError(
            f"{run}: found its boxes itself ({learned_on.method}), so {given.path} has no use. Leave out --file"
        )
    if learned_on.file_digest == given.digest:
        raise UsageError(f"{run}: read {given.path} with --file-boxes {learned_on.file_boxes}. Read it so again")
    raise UsageError(f"{run}: was learned on the boxes of another file than {given.path}. Give that one with --file")


def _check_kind(teacher: Learned, config: RetrainConfig) -> bool:
    """Whether the students of a retrained run go on, which only those of the same kind can; others are made anew."""
    if not config.whole:
        frozen_trunk(teacher.network, config)
        if config.weights != "package":
            raise UsageError(
                "weights are for a network that learns as a whole (--backbone); others begin with those of the run"
            )
    before = teacher.students and teacher.students.config
    if before is None or before.whole != config.whole or (config.whole and before.backbone != config.backbone):
        return False
    kinds = {"tail_share": before.fixed == config.fixed, "cells": before.names_cells == config.names_cells}
    for name in ("folds", "judges", "scales", "bins", "sharp", "hidden", *kinds):
        same = kinds[name] if name in kinds else getattr(before, name) == getattr(config, name)
        if not same:
            raise UsageError(
                f"{teacher.path}: its students have {name} = {getattr(before, name)}; keep that when it is retrained again"
            )
    return True


def _teaching_along(teacher: Learned, others: Sequence[Path | str], config: RetrainConfig) -> list[Learned]:
    """The runs that choose objects together with the one that is retrained: on the same classes and the same proposals."""
    if len({path.resolve() for path in (teacher.path, *map(Path, others))}) <= len(others):
        raise UsageError("--with: the same run is named twice")
    along = [load_model(Path(other)) for other in others]
    for other in along:
        if other.classes != teacher.classes:
            raise UsageError(
                f"{other.path}: its classes are {', '.join(other.classes)}; those of {teacher.path} are "
                f"{', '.join(teacher.classes)}. Only runs of the same classes, in the same order, teach together"
            )
        if other.config.proposals != teacher.config.proposals:
            raise UsageError(
                f"{other.path}: was learned on other proposals than {teacher.path}. Only runs on the same ones teach together"
            )
        one_of("teacher", config.branch(default_branch(other.config)), branches_of(other.config))
    return along


def _start(students: Students, teacher: Learned | None, say: Callable[[str], None]) -> str:
    """Gives students the weights they start from, and says which: those of a run that is retrained again, or of a file."""
    config = students.config
    if teacher is not None and teacher.students is not None:
        if config.weights not in ("package", "none"):
            raise UsageError(f"{teacher.path}: its students go on with what they learned, so --weights have no use")
        students.load_state_dict(teacher.students.state_dict())
        for mine, before in zip(students.students, teacher.students.students, strict=True):
            if isinstance(mine, FastRCNN) and isinstance(before, FastRCNN):
                mine.backbone.convention = before.backbone.convention
        return "those of the run"
    for student in students.students:
        if isinstance(student, FastRCNN) and config.weights != "none":
            loaded = load_weights(student.backbone, config.weights, config.weights_sha256 or None)
            if student is students.students[0]:
                say(loaded.summary())
    whole = [student.backbone for student in students.students if isinstance(student, FastRCNN)]
    named = [t for backbone in whole for t in (*backbone.parameters(), *backbone.buffers())]
    return tensors_digest(named) if named else "those of the run"


def _same_classes(images: TaggedImages, teacher: Learned) -> None:
    if images.classes != teacher.classes:
        raise UsageError(
            f"{images.root}: its classes are {', '.join(images.classes)}; those of {teacher.path} are "
            f"{', '.join(teacher.classes)}. Retrain on the data that the run learned from, or on more with the same classes"
        )


def _about(
    teacher: Learned, config: RetrainConfig, ready: Ready, source: Source, processes: Processes
) -> dict[str, Any]:
    earlier = [*teacher.card.get("rounds", []), teacher.card["retrained"]] if teacher.students else []
    return {
        "config": teacher.config.as_dict(),
        "rounds": earlier,  # of retraining before this one
        "retrained": config.as_dict(),
        "teacher": teacher_digest(teacher),
        "classes": list(teacher.classes),
        "data": data_record(source, len(ready.images)),
        "data_digest": data_digest(ready.images, ready.keys),
        "basis": None,
        "left_out": list(ready.left_out),
        "processes": processes.world,
        "device": device_name(processes.device),
        "versions": versions(),
    }


def teacher_digest(teacher: Learned) -> str:
    """A name that only this run has, with what it learned."""
    found = teacher.network.tensors()
    if teacher.students is not None:
        found = {**found, **dict(teacher.students.named_parameters())}
    return tensors_digest([found[name] for name in sorted(found)])


def _maps(teacher: Learned, config: RetrainConfig, ready: Ready, processes: Processes) -> MapStore | None:
    """What the stages of the trunk that stay make of every image, where not the whole of a network learns."""
    if config.whole:
        return None
    maps = MapStore(frozen_trunk(teacher.network.to(processes.device), config), config)
    mine, keys = processes.share(list(ready.images)), processes.share(ready.keys)
    with processes.steps("maps", len(mine)) as steps:
        make_maps(maps, mine, keys, steps.advance)
    processes.wait()
    return maps


class _Teacher:
    """What a run says of the images, from stored features and maps where it has any."""

    def __init__(self, teacher: Learned, config: RetrainConfig, ready: Ready, processes: Processes) -> None:
        self.teacher, self.config = teacher, config
        self.network = teacher.network.to(processes.device)
        self.students = teacher.students and teacher.students.to(processes.device)
        self.regions = self.maps = None
        if isinstance(trunk := self.network.trunk, FrozenTrunk):
            self.regions = read_features(ready, trunk, processes, trunk.fitted())
            if self.students and not self.students.config.whole:
                self.maps = MapStore(trunk, self.students.config)

    @property
    def at_once(self) -> bool:
        """Whether several images may be looked at at once, a core each, as `Looking.at_once` says. What is found is then the same
        on any number of cores."""
        return self.regions is not None and not (self.students and self.students.config.whole)

    @torch.no_grad()
    def judged(self, key: str, path: Path, found: Proposals) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Scores (N, K) of the proposals, and where they are moved to, (N, 4), by a run that moves boxes."""
        boxes = torch.from_numpy(found.boxes)
        if self.regions is not None:
            regions = self.regions.regions(key)
        else:
            regions = self.network.trunk.look(read_image(path), boxes, middle_scale(self.teacher.config.scales))
        output = forward(self.network, self.teacher.strength, regions, found)
        branch = self.config.branch(default_branch(self.teacher.config))
        if self.students is not None and self.config.teacher == "own":
            if self.maps is not None and self.maps.has(key):
                seen = self.maps.get(key)
            else:
                seen = self.students.inputs(self.network, read_image(path))
            output, branch = self.students.judge(output, seen, found, key), "fused"
        shift = output.shift_of(branch)
        places = None if shift is None else moved(boxes, shift.cpu(), found.width, found.height).numpy()
        return output.prob(branch).cpu().numpy(), places


class _Teaching:
    """What is taught of the images: what one run, or several together, find there."""

    def __init__(self, teachers: Sequence[Learned], config: RetrainConfig, ready: Ready, processes: Processes) -> None:
        self.classes, self.config, self.ready, self.processes = teachers[0].classes, config, ready, processes
        named = sorted((_name(one), n) for n, one in enumerate(teachers))
        self.named = [name for name, _ in named]  # they say the same in any order, to the last bit
        self.teachers = [_Teacher(teachers[n], config, ready, processes) for _, n in named]

    @property
    def at_once(self) -> bool:
        return all(teacher.at_once for teacher in self.teachers)

    def objects(self, index: int) -> Objects:
        """The pseudo-objects of an image: what is found of its tags."""
        image, key = self.ready.images[index], self.ready.keys[index]
        classes = [self.classes.index(name) for name in image.tags if name not in image.unknown]
        if not classes:
            return Objects.joined([])
        found = boxes_of(self.ready.proposals, key, image.path)
        scores, boxes = self.judged(key, image.path, found)
        return Objects.joined([objects_of_tag(boxes, scores[:, k], k, self.config) for k in classes])

    def judged(self, key: str, path: Path, found: Proposals) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Scores (N, K) of the proposals, and where they are moved to, (N, 4): by those that move boxes, if any does."""
        judged = [teacher.judged(key, path, found) for teacher in self.teachers]
        scores = [of_one for of_one, _ in judged]
        places = [there for _, there in judged if there is not None] or [found.boxes]
        return agreed(scores, places) if len(judged) > 1 else (scores[0], places[0])

    def store(self) -> Path:
        """Where the objects are kept for all that learn from them: a name that only these runs, rules and images have."""
        rules = {name: getattr(self.config, name) for name in RULES}
        images = data_digest(self.ready.images, self.ready.keys)
        asked = [VERSION, self.named, rules, images, self.processes.device.type]
        return (
            cache_folder()
            / "objects"
            / f"{hashlib.blake2b(json.dumps(asked).encode(), digest_size=12).hexdigest()}.npz"
        )


def _name(teacher: Learned) -> str:
    """A name that only a run has that says the same of every image."""
    says = {name: teacher.card.get(name) for name in ("config", "retrained", "strength", "keys")}
    text = json.dumps([teacher_digest(teacher), says], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _objects(teaching: _Teaching, folder: RunFolder) -> list[Objects]:
    """The pseudo-objects of every image, each process its share; kept in the run, and for other students of the same teachers."""
    path, store, processes = folder.path / OBJECTS, teaching.store(), teaching.processes

    def there() -> bool:
        if kept(path) is None and (known := kept(store)) is not None:
            keep(path, known)
        return kept(path) is not None

    if not processes.first_does(there):
        mine = processes.share(range(len(teaching.ready.keys)))
        found = {}
        alone = nullcontext(1)  # one image after another
        with (
            processes.steps("objects", len(mine)) as steps,
            a_thread_each(processes.device) if teaching.at_once else alone as threads,
        ):
            for index, objects_there in in_threads(teaching.objects, mine, threads):
                found[index] = objects_there
                steps.advance()
        every = {index: one for share in processes.gather(found) for index, one in share.items()}
        in_order = [every[index] for index in range(len(every))]
        processes.first_does(lambda: keep(store, in_order))
        processes.first_does(lambda: keep(path, in_order))
    objects = kept(path)
    if objects is None:
        raise MelmError(f"{path}: gone or damaged. Run the same command again: it is made anew")
    return objects


def _save(folder: RunFolder, teacher: Learned, students: Students, learner: Learner, about: dict[str, Any]) -> None:
    tensors = {**teacher.network.tensors()}
    for name, value in (*students.named_parameters(), *students.named_buffers()):
        tensors[f"students.{name}"] = value
    card = {
        **about,
        **{name: teacher.card[name] for name in ("strength", "convention")},
        "count": 1,
        "keys": sorted(students.keys),
        "seconds": round(learner.position.seconds, 1),
    }
    first = students.students[0]
    if isinstance(first, FastRCNN):
        card["student_convention"] = convention_record(first.backbone.convention)
    save_pair(folder.path, "model", tensors, card)
