"""`melm features`: sees to it that everything a frozen trunk gives for a data set is in the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from melm.data.images import read_image
from melm.data.records import TaggedImage
from melm.errors import MelmError
from melm.files import cache_folder, write_whole
from melm.learn.map_store import MapStore
from melm.learn.processes import a_thread_each
from melm.learn.region_store import RegionStore, trunk_digest
from melm.model.trunks import FrozenTrunk
from melm.proposals import Proposals, ProposalStore
from melm.workers import in_threads

FITTED_ON = 64  # images: enough boxes for the principal components of 1,280 channels
BOXES_OF_EACH = 1000


def fit_basis(
    trunk: FrozenTrunk,
    images: Sequence[TaggedImage],
    keys: Sequence[str],
    proposals: ProposalStore,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Fits the trunk's components to images spread evenly over the data (in the order of their content), and keeps them.

    The same images give the same basis whatever they are called and in whichever order they come.
    """
    order = sorted(range(len(keys)), key=lambda i: keys[i])
    chosen = [order[i * len(order) // FITTED_ON] for i in range(FITTED_ON)] if len(order) > FITTED_ON else order
    name = json.dumps([trunk_digest(trunk, fitted=False), proposals.settings.folder_name(), [keys[i] for i in chosen]])
    path = (
        cache_folder() / "features" / f"basis-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.safetensors"
    )
    if not path.is_file():

        def sample(i: int) -> Tensor:
            boxes = torch.from_numpy(boxes_of(proposals, keys[i], images[i].path).boxes)
            some = torch.linspace(0, len(boxes) - 1, min(len(boxes), BOXES_OF_EACH)).long()
            return trunk.look_wide(read_image(images[i].path), boxes[some]).cpu()

        samples = {}
        with a_thread_each(trunk.device) as threads:
            for i, wide in in_threads(sample, chosen, threads):
                samples[i] = wide
                advance()
        trunk.fit(torch.cat([samples[i] for i in chosen]))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, save({name: value.cpu() for name, value in trunk.fitted().items()}))
        except OSError as error:
            raise MelmError(f"{path}: cannot be written ({error.strerror}). Make room and run again") from None
    kept = load_file(path)
    for name, value in trunk.fitted().items():
        value.copy_(kept[name])


def make_regions(
    trunk: FrozenTrunk,
    images: Sequence[TaggedImage],
    keys: Sequence[str],
    proposals: ProposalStore,
    store: RegionStore,
    advance: Callable[[], None] = lambda: None,
    maps: MapStore | None = None,
) -> None:
    """Reads every image that is not in the store yet, or not in that of the maps for students, where one is given."""
    store.prepare()
    if maps is not None:
        maps.prepare()

    def read(item: tuple[TaggedImage, str]) -> None:
        image, key = item
        read_one(trunk, key, image.path, boxes_of(proposals, key, image.path), store, maps)

    with a_thread_each(trunk.device) as threads:
        for _ in in_threads(read, zip(images, keys, strict=True), threads):
            advance()


def read_one(
    trunk: FrozenTrunk, key: str, path: Path, found: Proposals, store: RegionStore, maps: MapStore | None = None
) -> None:
    """Sees to it that an image is in the stores. Where both lack it, it is read once for both."""
    there = store.get(key)
    lacks = there is None or there.shape[1] != len(found)
    boxes = torch.from_numpy(found.boxes)
    if lacks and maps is not None and not maps.has(key):
        regions, seen = trunk.look_for_students(read_image(path), boxes, maps.scales, maps.deep)
        store.put(key, regions)
        maps.put(key, seen)
    elif lacks:
        store.put(key, trunk.look(read_image(path), boxes))
    elif maps is not None:
        maps.make(key, path)


def make_maps(
    maps: MapStore,
    images: Sequence[TaggedImage],
    keys: Sequence[str],
    advance: Callable[[], None] = lambda: None,
) -> None:
    """The same for what students begin with."""
    maps.prepare()
    with a_thread_each(maps.trunk.device) as threads:
        for _ in in_threads(lambda item: maps.make(item[1], item[0].path), zip(images, keys, strict=True), threads):
            advance()


def boxes_of(proposals: ProposalStore, key: str, path: Path) -> Proposals:
    """The proposals of an image, which must be there and not be none."""
    found = proposals.get(key)
    if found is None:
        raise MelmError(f"{path}: its proposals are gone from {proposals.folder}. Run the same command again")
    if not len(found):
        raise MelmError(f"{path}: no proposals; every side would be below {proposals.settings.min_side:g} pixels")
    return found
