"""Proposals for a whole data set: on all cores, into the store, and on from where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from melm.data.images import ImageError, content_key, decode_image, read_bytes
from melm.data.records import TaggedImage
from melm.errors import MelmError
from melm.proposals.compute import compute_proposals
from melm.proposals.ready_made import ReadyMade, check_fits
from melm.proposals.record import ProposalSettings
from melm.proposals.store import ProposalStore
from melm.workers import for_each


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    path: Path
    given: NDArray[np.float64] | None = None

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one image: its key and number of boxes, or the error that names it."""

    id: str
    key: str | None = None
    boxes: int = 0
    seconds: float | None = None  # None: it was in the store already
    error: str | None = None


def make_proposals(
    images: Sequence[TaggedImage],
    store: ProposalStore,
    workers: int,
    ready_made: ReadyMade | None = None,
    advance: Callable[[], None] = lambda: None,
    among: Sequence[TaggedImage] | None = None,
) -> list[Done]:
    """Sees to it that every image has proposals in the store; images that cannot be used come back with their error.

    `among` is the whole data set, where `images` are a part of it: that is what a file's boxes are matched with.
    """
    store.prepare()
    done = []
    for _, result in for_each(partial(_make_one, store), _tasks(images, ready_made, among or images), workers):
        done.append(result)
        advance()
    position = {image.id: i for i, image in enumerate(images)}
    return sorted(done, key=lambda result: position[result.id])


def _tasks(images: Sequence[TaggedImage], ready_made: ReadyMade | None, among: Sequence[TaggedImage]) -> Iterator[Task]:
    if ready_made is None:
        return (Task(image.id, image.path) for image in images)
    ids = [image.id for image in among]
    given = dict(zip(ids, ready_made.match(ids), strict=True))
    return (Task(image.id, image.path, given[image.id]) for image in images)


def proposal_key(data: bytes, given: NDArray[np.float64] | None = None) -> str:
    """The name of an image's proposals: its content and, where a file gave them, the boxes the file gave."""
    key = content_key(data)
    return key if given is None else f"{key}-{content_key(np.ascontiguousarray(given).tobytes())}"


def _make_one(store: ProposalStore, task: Task) -> Done:
    cv2.setNumThreads(1)  # one image a core
    try:
        data = read_bytes(task.path)
        key = proposal_key(data, task.given)
        there = store.get(key)
        if there is not None:
            return Done(task.id, key, len(there))
        image, info = decode_image(data, task.path)
        if task.given is not None:
            check_fits(task.given, info.width, info.height, f"image {task.id} ({task.path})")
        started = time.perf_counter()
        proposals = compute_proposals(image, store.settings, task.given)
        seconds = time.perf_counter() - started
    except (ImageError, MelmError) as error:
        return Done(task.id, error=str(error))
    store.put(key, proposals, seconds)
    return Done(task.id, key, len(proposals), seconds)


def settings_for_file(settings: ProposalSettings, ready_made: ReadyMade) -> ProposalSettings:
    """The settings under which the boxes of a ready-made file are kept."""
    return replace(settings, method="file", file_digest=ready_made.digest, file_boxes=ready_made.file_boxes)
