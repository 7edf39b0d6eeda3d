"""`melm train`: from tagged images to a learned detector in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from melm.data import Source, read_tags
from melm.errors import MelmError, UsageError
from melm.learn.checkpoint import save_pair
from melm.learn.data import Ready, check_tags, opening, prepare, read_features, starting_backbone, with_boxes_of
from melm.learn.items import Items
from melm.learn.loop import AFTER_EPOCH, Learner, Step, learn
from melm.learn.model_file import basis_of, convention_record
from melm.learn.network import build_network
from melm.learn.presets import LearnConfig, for_images, learn_config
from melm.learn.processes import Processes, joined
from melm.learn.region_store import RegionStore
from melm.learn.run_folder import RunFolder, data_digest, data_record, device_name, tensors_digest, versions
from melm.learn.students import RetrainConfig, with_all_names
from melm.model.trunks import FrozenTrunk
from melm.proposals import ReadyMade


def train(
    data: Source | Path | str,
    out: Path | str,
    config: LearnConfig | None = None,
    *,
    proposals_file: ReadyMade | None = None,
    basis: Path | str | None = None,
    students: RetrainConfig | None = None,
    device: str = "auto",
    workers: int | None = None,
    overwrite: bool = False,
    skip_bad: bool = False,
    tensorboard: bool = False,
    after_epoch: AFTER_EPOCH | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Learns a detector from the tags of a data set; the folder of the run.

    The same call on the same folder goes on where it stopped. `after_epoch` is handed the network after every epoch and may
    return figures for the log: the place for measuring while learning. `say` is given a few lines on what is being done.
    Where the run will be retrained, and it is known how, `students` are those who will learn: images are then read once for both.
    """
    source = data if isinstance(data, Source) else Source(Path(data))
    images = read_tags(source)
    config = config or for_images(learn_config(), len(images))
    with joined(device) as processes:
        say = say if processes.first else lambda text: None
        _check_device(config, processes)
        run = RunFolder(Path(out))
        check_tags(images)
        config = with_boxes_of(config, proposals_file)
        ready = prepare(images, config, processes, workers, proposals_file, skip_bad)
        check_tags(ready.images)
        given = basis_of(Path(basis), config.backbone) if basis is not None else None
        about = about_run(config, ready, source, processes, given)
        processes.first_does(lambda: run.open(about, overwrite, with_all_names))
        for text in opening(ready, f"{config.method} on preset {config.preset}", config, processes):
            say(text)
        backbone, found = starting_backbone(config)
        say(found)
        torch.manual_seed(config.seed)
        network = build_network(config, len(ready.images.classes), backbone).to(processes.device)
        store = None
        if isinstance(network.trunk, FrozenTrunk):
            store = read_features(ready, network.trunk, processes, given, students)
        items = Items(ready.images, ready.keys, ready.proposals, store, config)
        learner = Learner(Step(network, config), config, items, processes, run)
        if learner.take_up():
            say(learner.where())
        if processes.first:
            run.open_log(learner.position.log_bytes)
        board = _board(run.path / "tensorboard", learner.position.epoch) if tensorboard and processes.first else None
        try:
            learn(learner, after_epoch, board or (lambda record: None))
        finally:
            run.close_log()
        if processes.first:
            save_model(run, learner, about)
            say(f"learned in {learner.position.seconds:.0f} s; the detector is {run.path}")
    return Path(out)


def features(
    data: Source | Path | str,
    config: LearnConfig | None = None,
    *,
    proposals_file: ReadyMade | None = None,
    basis: Path | str | None = None,
    students: RetrainConfig | None = None,
    device: str = "auto",
    workers: int | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> RegionStore:
    """Computes and stores what the frozen trunk gives for every image of a data set, to a run and to its `students`, if any."""
    source = data if isinstance(data, Source) else Source(Path(data))
    config = config or learn_config()
    if config.trunk != "frozen":
        raise UsageError(f"preset {config.preset}: its trunk learns along, so nothing of it can be stored")
    with joined(device) as processes:
        processes.check_precision(config.precision)
        images = read_tags(source)
        config = with_boxes_of(config, proposals_file)
        ready = prepare(images, config, processes, workers, proposals_file, skip_bad)
        backbone, found = starting_backbone(config)
        if processes.first:
            say(found)
        network = build_network(config, max(2, len(images.classes)), backbone)
        assert isinstance(network.trunk, FrozenTrunk)
        given = basis_of(Path(basis), config.backbone) if basis is not None else None
        return read_features(ready, network.trunk, processes, given, students)


def basis_digest(basis: Mapping[str, torch.Tensor]) -> str:
    return tensors_digest([basis[name] for name in sorted(basis)])


def about_run(
    config: LearnConfig,
    ready: Ready,
    source: Source,
    processes: Processes,
    basis: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, Any]:
    """What run.json says: enough to know what was learned from what, and to refuse to mix it with anything else."""
    return {
        "config": config.as_dict(),
        "classes": list(ready.images.classes),
        "data": data_record(source, len(ready.images)),
        "data_digest": data_digest(ready.images, ready.keys),
        "basis": basis_digest(basis) if basis else None,  # None: fitted to these
        "left_out": list(ready.left_out),
        "processes": processes.world,
        "device": device_name(processes.device),
        "images_per_step": config.accumulate * processes.world,
        "versions": versions(),
    }


def save_model(run: RunFolder, learner: Learner, about: Mapping[str, Any]) -> None:
    """The finished detector: every number it needs, and a card."""
    config, network = learner.config, learner.network
    card = {
        **about,
        "count": 1,
        "strength": config.strength(config.epochs - 1),  # r of the last epoch, which the discovery branch goes on with
        "convention": convention_record(network.trunk.backbone.convention),
        "seconds": round(learner.position.seconds, 1),
    }
    save_pair(run.path, "model", network.tensors(), card)


def _check_device(config: LearnConfig, processes: Processes) -> None:
    processes.check_precision(config.precision)
    if config.settings.feedback == "previous" and processes.world > 1:
        raise UsageError("feedback = previous keeps each image's last scores in one process; run it without torchrun")


def _board(folder: Path, epoch: int) -> Callable[[dict[str, Any]], None]:
    """A writer of TensorBoard's files, one point per epoch."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MelmError("TensorBoard is not installed. Install it with: pip install tensorboard") from None
    writer = SummaryWriter(str(folder), purge_step=epoch)  # type: ignore[no-untyped-call]

    def write(record: dict[str, Any]) -> None:
        for group in ("mean", "measured"):
            for name, value in (record.get(group) or {}).items():
                writer.add_scalar(f"{group}/{name}", value, record["epoch"])  # type: ignore[no-untyped-call]
        writer.flush()  # type: ignore[no-untyped-call]

    return write
