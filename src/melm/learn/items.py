"""What one step sees of one image, and its preparation while the step before runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from melm.data.images import read_image
from melm.data.records import TaggedImages
from melm.learn.features import boxes_of
from melm.learn.presets import LearnConfig
from melm.learn.region_store import RegionStore
from melm.model.branches import Regions
from melm.model.cliques import coordinate_order
from melm.model.trunks import Pixels
from melm.proposals import ProposalStore

AHEAD = 4  # images prepared before they are needed


@dataclass(frozen=True, slots=True)
class Item:
    """One image in one step: its regions from the store, or its pixels with the view at which the trunk is to look."""

    index: int
    proposals: Tensor  # (N, 4)
    prior: Tensor  # (N,)
    score: Tensor  # (N,)
    share: Tensor  # (N,) of the image that each covers
    order: Tensor  # (N,) the proposals by coordinates
    tags: Tensor  # (K,)
    known: Tensor  # (K,)
    regions: Regions | None = None
    pixels: Pixels | None = None
    scale: int | None = None
    flip: bool = False

    def to(self, device: torch.device) -> Item:
        if device.type == "cpu":
            return self
        regions = self.regions.each(lambda part: part.to(device)) if self.regions else None
        names = ("proposals", "prior", "score", "share", "order", "tags", "known")
        return replace(self, regions=regions, **{name: getattr(self, name).to(device) for name in names})


class Items:
    """The images of a run, as its steps see them."""

    def __init__(
        self,
        images: TaggedImages,
        keys: Sequence[str],
        proposals: ProposalStore,
        regions: RegionStore | None,
        config: LearnConfig,
    ) -> None:
        self.images, self.keys, self.proposals, self.stored, self.config = images, keys, proposals, regions, config
        self.tags = torch.from_numpy(images.tags()).float()
        self.known = torch.from_numpy(images.known()).float()

    def __len__(self) -> int:
        return len(self.images)

    def order(self, epoch: int) -> list[int]:
        """All images once, shuffled by seed and epoch alone."""
        shuffled = np.random.default_rng([self.config.seed, epoch, 0]).permutation(len(self))
        return [int(index) for index in shuffled]

    def load(self, index: int, epoch: int) -> Item:
        """The image as this epoch sees it: which boxes, and a tuned trunk's scale and flip, are drawn from seed, epoch and
        image."""
        key, path = self.keys[index], self.images[index].path
        found = boxes_of(self.proposals, key, path)
        random = np.random.default_rng([self.config.seed, epoch, 1, index])
        some: NDArray[np.intp] | slice = slice(None)
        if 0 < self.config.boxes_a_step < len(found):
            some = np.sort(random.choice(len(found), self.config.boxes_a_step, replace=False))
        given = (found.boxes, found.prior, found.score, found.share)
        boxes, prior, score, share = (torch.from_numpy(a[some]) for a in given)
        of_image = (boxes, prior, score, share, coordinate_order(boxes), self.tags[index], self.known[index])
        if self.stored is not None:
            return Item(index, *of_image, regions=self.stored.regions(key, some))
        scale = int(random.choice(self.config.scales))
        flip = bool(self.config.flips and random.random() < 0.5)
        return Item(index, *of_image, pixels=read_image(path), scale=scale, flip=flip)


def prepared(load: Callable[[int], Item], indices: Iterable[int]) -> Iterator[Item]:
    """The items of `indices` in order, each loaded by a thread while those before it are worked on."""
    waiting = iter(indices)
    with ThreadPoolExecutor(1, thread_name_prefix="melm-items") as pool:
        coming: deque[Future[Item]] = deque(pool.submit(load, i) for i in islice(waiting, AHEAD))
        try:
            while coming:
                item = coming.popleft().result()
                for i in islice(waiting, 1):
                    coming.append(pool.submit(load, i))
                yield item
        finally:
            for future in coming:
                future.cancel()
