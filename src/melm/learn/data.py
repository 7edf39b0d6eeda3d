"""A data set made ready to learn from: tags that can be learned, proposals for every image, and the trunk's features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from melm.data.records import DataError, TaggedImages
from melm.errors import MelmError, UsageError
from melm.learn.features import FITTED_ON, fit_basis, make_regions
from melm.learn.map_store import MapStore
from melm.learn.presets import LearnConfig
from melm.learn.processes import Processes
from melm.learn.region_store import RegionStore
from melm.learn.students import IN_TWO_PARTS, RetrainConfig
from melm.model.backbones import Backbone, build_backbone, load_weights
from melm.model.trunks import FrozenTrunk
from melm.proposals import Done, ProposalStore, ReadyMade, make_proposals, settings_for_file
from melm.workers import own_cores

SHOWN = 20  # images named in an error


@dataclass(frozen=True)
class Ready:
    """Images with their content keys and proposals."""

    images: TaggedImages
    keys: tuple[str, ...]
    proposals: ProposalStore
    left_out: tuple[str, ...] = ()  # what was wrong with images that were skipped


def with_boxes_of(config: LearnConfig, ready_made: ReadyMade | None) -> LearnConfig:
    """The configuration, with the proposals of a file where one is given."""
    if ready_made is None:
        return config
    return replace(config, proposals=settings_for_file(config.proposals, ready_made))


def check_tags(images: TaggedImages) -> None:
    """Refuses what cannot be learned from: data with errors, a class without an image, one class in every image."""
    errors = [problem for problem in images.problems if problem.severity == "error"]
    if errors:
        listed = "\n  ".join(f"{p.file}: {p.message}" for p in errors[:SHOWN])
        raise DataError(f"{images.root}: the data has problems:\n  {listed}\nSee all of them with: melm check")
    counts = images.tags().sum(axis=0)
    empty = [name for name, count in zip(images.classes, counts, strict=True) if count == 0]
    if empty:
        raise DataError(
            f"{images.root}: no image has the tag {', '.join(map(repr, empty))}. "
            "Tag some, or name the classes to learn with --classes"
        )
    if not images.classes:
        raise DataError(f"{images.root}: no image has a tag, so there is nothing to learn")
    if len(images.classes) == 1 and counts[0] == len(images):
        raise DataError(
            f"{images.root}: every image has the tag {images.classes[0]!r}, and there is no other. What it looks like "
            "can only be learned against images without it: add some (docs/data.md, --background)"
        )


def prepare(
    images: TaggedImages,
    config: LearnConfig,
    processes: Processes,
    workers: int | None = None,
    ready_made: ReadyMade | None = None,
    skip_bad: bool = False,
) -> Ready:
    """Proposals for every image, each process its share. Images that cannot be used are named; with `skip_bad` left out."""
    store = ProposalStore(config.proposals)
    cores = workers or own_cores()
    mine = processes.share(list(images))
    with processes.steps("proposals", len(mine)) as steps:
        done = make_proposals(mine, store, cores, ready_made, steps.advance, images)
    results = {result.id: result for share in processes.gather(done) for result in share}
    bad = [_complaint(results[image.id], image.path, config) for image in images]
    complaints = tuple(complaint for complaint in bad if complaint)
    if complaints and not skip_bad:
        more = f"\n  and {len(complaints) - SHOWN} more" if len(complaints) > SHOWN else ""
        listed = "\n  ".join(complaints[:SHOWN])
        raise MelmError(
            f"{len(complaints)} of {len(images)} images cannot be used:\n  {listed}{more}\n"
            "Mend or remove them, or leave them out with --skip-bad"
        )
    good = [image for image, complaint in zip(images, bad, strict=True) if not complaint]
    if not good:
        raise MelmError(f"{images.root}: no image can be used:\n  " + "\n  ".join(complaints[:SHOWN]))
    keys = tuple(str(results[image.id].key) for image in good)
    return Ready(replace(images, images=tuple(good)), keys, store, complaints)


def opening(ready: Ready, what: str, config: LearnConfig | RetrainConfig, processes: Processes) -> list[str]:
    """What is about to be learned, in words."""
    lines = [f"left out: {text}" for text in ready.left_out]
    step = config.accumulate * processes.world
    many = f" ({processes.world} processes x {config.accumulate})" if processes.world > 1 else ""
    lines.append(
        f"{len(ready.images):,} images, {len(ready.images.classes)} classes; {what}; "
        f"{config.epochs} epochs, learning rate {config.learning_rate:g} for steps of {step} image{'s' * (step > 1)}{many}"
    )
    return lines


def _complaint(result: Done, path: Path, config: LearnConfig) -> str | None:
    if result.error:
        return result.error
    if not result.boxes:
        return f"{path}: no proposals (no side of at least {config.proposals.min_side:g} pixels)"
    return None


def starting_backbone(config: LearnConfig) -> tuple[Backbone, str]:
    """The backbone with the weights it starts from, and what was found in them."""
    torch.manual_seed(config.seed)  # layers that the weights lack
    backbone = build_backbone(config.backbone)
    if config.weights == "none":
        return backbone, f"{config.backbone}: random weights"
    loaded = load_weights(backbone, config.weights, config.weights_sha256 or None)
    if config.named_components and "_fc" in loaded.missing:
        raise UsageError(
            f"{loaded.path}: has no classifier with ImageNet's 1,000 names, which {config.named_components} components of a "
            "region come from. Learn without: --set named_components=0"
        )
    return backbone, loaded.summary()


def read_features(
    ready: Ready,
    trunk: FrozenTrunk,
    processes: Processes,
    basis: Mapping[str, torch.Tensor] | None = None,
    students: RetrainConfig | None = None,
) -> RegionStore:
    """Sees to it that the store has what the trunk gives for every image; `basis` is that of an earlier run. What `students` will
    read is stored in the same look."""
    trunk.to(processes.device)
    if basis is not None:
        wanted = trunk.fitted()
        given, expected = ({name: tuple(value.shape) for name, value in one.items()} for one in (basis, wanted))
        if given != expected:
            raise MelmError(
                f"the basis is {given}; {expected} was expected. Was that run learned with other components?"
            )
        for name, value in wanted.items():
            value.copy_(basis[name])
    else:
        if processes.first:
            with processes.steps("components", min(FITTED_ON, len(ready.keys))) as steps:
                fit_basis(trunk, ready.images, ready.keys, ready.proposals, steps.advance)
        processes.wait()
        fit_basis(trunk, ready.images, ready.keys, ready.proposals)  # all the others read what the first has kept
    store = RegionStore(trunk, ready.proposals.settings)
    mine, keys = processes.share(list(ready.images)), processes.share(ready.keys)
    with processes.steps("features", len(mine)) as steps:
        reads_it = students is not None and not students.whole and trunk.backbone.name in IN_TWO_PARTS
        maps = MapStore(trunk, students) if students and reads_it else None
        make_regions(trunk, mine, keys, ready.proposals, store, steps.advance, maps)
    processes.wait()
    return store
