"""What students are taught: the boxes that a run, or several together, find of the tags of images (their pseudo-objects)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from melm.boxes import agreed, supported
from melm.data.images import read_image
from melm.errors import MelmError, UsageError, one_of
from melm.files import cache_folder
from melm.learn.data import Ready, read_features
from melm.learn.features import boxes_of
from melm.learn.lines_file import LinesFile, settings_beside, whole_lines
from melm.learn.looks import Look
from melm.learn.map_store import MapStore
from melm.learn.model_file import Learned, load_model
from melm.learn.network import branches_of, default_branch, forward
from melm.learn.processes import Processes, a_thread_each
from melm.learn.pseudo_objects import OBJECTS, RULES, VERSION, Objects, keep, kept, line_of, objects_of_tag, of_line
from melm.learn.run_folder import RunFolder, data_digest, tensors_digest
from melm.learn.students import RetrainConfig, middle_scale
from melm.model.regression import moved
from melm.model.trunks import FrozenTrunk
from melm.proposals import Proposals
from melm.workers import in_threads

# of a run's card, beside what it learned: all that decides what it says
SPEAKS = ("config", "retrained", "strength", "keys", "convention", "student_convention")
FOUND = "objects.jsonl"  # those of each image as soon as they are chosen


def teaching_along(teacher: Learned, others: Sequence[Path | str], config: RetrainConfig) -> list[Learned]:
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


def teacher_digest(teacher: Learned) -> str:
    """A name that only a run has that says the same of every image: what it learned, and how it speaks."""
    found = teacher.network.tensors()
    if teacher.students is not None:
        found = {**found, **dict(teacher.students.named_parameters())}
    says = {name: teacher.card.get(name) for name in SPEAKS}
    return _digest([tensors_digest([found[name] for name in sorted(found)]), says])


class Teacher:
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
    def reads(self) -> list[dict[str, Any]]:
        """The stores that it reads, with their versions."""
        return [store.about for store in (self.regions, self.maps) if store is not None]

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
            output, branch = Look(self.students, seen, found, key).judged(output), "fused"
        shift = output.shift_of(branch)
        places = None if shift is None else moved(boxes, shift.cpu(), found.width, found.height).numpy()
        return output.prob(branch).cpu().numpy(), places


class Teaching:
    """What is taught of the images: what one run, or several together, find there."""

    def __init__(self, teachers: Sequence[Learned], config: RetrainConfig, ready: Ready, processes: Processes) -> None:
        self.classes, self.config, self.ready, self.processes = teachers[0].classes, config, ready, processes
        named = sorted((teacher_digest(one), n) for n, one in enumerate(teachers))
        self.named = [name for name, _ in named]  # they say the same in any order, to the last bit
        self.teachers = [Teacher(teachers[n], config, ready, processes) for _, n in named]

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
        every, moved_to = [of_one for of_one, _ in judged], [there for _, there in judged if there is not None]
        places = moved_to or [found.boxes]
        scores, boxes = agreed(every, places) if len(judged) > 1 else (every[0], places[0])
        return supported(boxes, scores, self.config.agree if moved_to else 0.0), boxes

    def store(self) -> Path:
        """Where the objects are kept for all that learn from them: a name that only these runs, rules and images have."""
        rules = {name: getattr(self.config, name) for name in RULES}
        images = data_digest(self.ready.images, self.ready.keys)
        boxes, read = self.ready.proposals.settings.folder_name(), [teacher.reads for teacher in self.teachers]
        asked = [VERSION, self.named, rules, images, boxes, read, self.processes.device.type]
        return cache_folder() / "objects" / f"{_digest(asked)}.npz"


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def chosen_objects(teaching: Teaching, folder: RunFolder) -> list[Objects]:
    """The pseudo-objects of every image, each process its share, going on where it stopped; kept in the run, and for other
    students of the same teachers."""
    path, store, processes = folder.path / OBJECTS, teaching.store(), teaching.processes

    def there() -> bool:
        if kept(path) is None and (known := kept(store)) is not None:
            keep(path, known)
        return kept(path) is not None

    if not processes.first_does(there):
        _choose(teaching, folder.path / FOUND, store.stem)
        processes.first_does(lambda: _put_together(folder.path / FOUND, path, store))
    objects = kept(path)
    if objects is None:
        raise MelmError(f"{path}: gone or damaged. Run the same command again: it is made anew")
    return objects


def _choose(teaching: Teaching, path: Path, name: str) -> None:
    """Writes the objects of every image down as soon as they are chosen."""
    processes, every = teaching.processes, range(len(teaching.ready.keys))

    def id_of(path: Path, number: int, line: bytes) -> str:
        return str(of_line(path, number, line)[0])

    with LinesFile(path, {"chosen": name}, id_of, processes=processes) as lines:
        mine = processes.share([index for index in every if str(index) not in lines.done])
        alone = nullcontext(1)  # one image after another
        with (
            processes.steps("objects", len(mine)) as steps,
            a_thread_each(processes.device) if teaching.at_once else alone as threads,
        ):
            for index, found in in_threads(teaching.objects, mine, threads):
                lines.append_line(str(index), line_of(index, found))
                steps.advance()
        lines.join([str(index) for index in every])


def _put_together(lines: Path, path: Path, store: Path) -> None:
    """All of them in one file, and in the store if that can be written: it only saves time."""
    objects = [of_line(lines, number, line)[1] for number, line in whole_lines(lines)]
    keep(path, objects)
    with suppress(MelmError):
        keep(store, objects)
    lines.unlink()
    settings_beside(lines).unlink()
