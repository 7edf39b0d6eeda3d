"""`melm retrain`: students learn from the boxes that a run has found (its pseudo-objects), as Fast R-CNN from true ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from melm.data import Source, read_tags
from melm.data.images import content_of
from melm.data.records import TaggedImages
from melm.errors import MelmError, UsageError, one_of
from melm.learn.checkpoint import save_pair
from melm.learn.data import Ready, check_tags, opening, prepare, with_boxes_of
from melm.learn.features import make_maps
from melm.learn.lessons import Lessons, StudentStep
from melm.learn.loop import AFTER_EPOCH, Learner, learn
from melm.learn.map_store import MapStore
from melm.learn.model_file import Learned, convention_record, load_model
from melm.learn.network import branches_of, default_branch
from melm.learn.processes import Processes, joined
from melm.learn.run_folder import RunFolder, data_digest, data_record, device_name, tensors_digest, versions
from melm.learn.students import RetrainConfig, Students, check_kind, fold_of, frozen_trunk, with_all_names
from melm.learn.teaching import Teaching, chosen_objects, teacher_digest, teaching_along
from melm.model.backbones import load_weights
from melm.model.student import FastRCNN
from melm.proposals import ReadyMade


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
    if Path(out).resolve() in {Path(one).resolve() for one in (run, *others)}:
        raise UsageError(f"{out}: the new run cannot lie where one that teaches it lies. Name another --out")
    teacher = load_model(Path(run))
    own = default_branch(teacher.config)
    one_of("teacher", config.branch(own), branches_of(teacher.config))
    if not config.whole:
        frozen_trunk(teacher.network, config)
    goes_on = check_kind(teacher.path, teacher.students.config if teacher.students else None, config)
    along = teaching_along(teacher, others, config)
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
        objects = chosen_objects(Teaching([teacher, *along], config, ready, processes), folder)
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
        seen = [ready.keys[image] for image in lessons.useful]
        before = teacher.students.keys if goes_on and teacher.students else frozenset()
        students.keys = before | frozenset(map(content_of, seen))
        _all_learn(config, seen, source)
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


def _all_learn(config: RetrainConfig, keys: Sequence[str], source: Source) -> None:
    """Refuses so few images that one of the students would learn from none, and speak nevertheless."""
    folds = {fold_of(key, config.folds) for key in keys}
    if any(all(student in config.judges_of(fold) for fold in folds) for student in range(config.folds)):
        raise MelmError(
            f"{source.path}: {len(keys)} images with objects are too few for {config.folds} students: one would learn from none "
            "of them. One student learns from all of them with --folds 1"
        )


def _refuse_file(run: Path, teacher: Learned, given: ReadyMade) -> None:
    learned_on = teacher.config.proposals
    if learned_on.method != "file":
        raise UsageError(
            f"{run}: found its boxes itself ({learned_on.method}), so {given.path} has no use. Leave out --file"
        )
    if learned_on.file_digest == given.digest:
        raise UsageError(f"{run}: read {given.path} with --file-boxes {learned_on.file_boxes}. Read it so again")
    raise UsageError(f"{run}: was learned on the boxes of another file than {given.path}. Give that one with --file")


def _start(students: Students, teacher: Learned | None, say: Callable[[str], None]) -> str:
    """Gives students the weights they start from, and says which: those of a run that is retrained again, or of a file."""
    config = students.config
    if teacher is not None and teacher.students is not None:
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
