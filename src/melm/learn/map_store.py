"""What a student begins with, of an image: what the stages of a trunk that do not learn make of it, computed once and kept.

A file per image, named by its content, with the map of every scale (h, w, M or M + D) in half precision. The folder's name stands
for the network with its weights, its basis where all its stages stay, and the scales.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from melm.data.images import read_image
from melm.errors import MelmError
from melm.files import cache_folder, packed, prepare_store, write_whole
from melm.learn.students import RetrainConfig
from melm.model.trunks import FrozenTrunk

VERSION = 2  # raise it when the same names would give other numbers


class MapStore:
    """Maps of images at some scales, for students of one kind."""

    def __init__(self, trunk: FrozenTrunk, config: RetrainConfig, cache: Path | None = None) -> None:
        self.trunk = trunk
        self.scales, self.deep, self.made = config.scales, config.fixed, 0
        self._counting = threading.Lock()
        digest = hashlib.blake2b(str(trunk.backbone.convention).encode(), digest_size=16)
        weights = trunk.backbone.state_dict()
        if self.deep:
            weights = {**weights, **trunk.of_map.state_dict(prefix="of_map.")}
        for name, value in sorted(weights.items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        self.about = {"version": VERSION, "backbone": digest.hexdigest(), "scales": list(self.scales)}
        if trunk.kind != torch.float32:
            self.about["kind"] = str(trunk.kind)
        named = hashlib.blake2b(json.dumps(self.about, sort_keys=True).encode(), digest_size=6).hexdigest()
        self.folder = (cache or cache_folder()) / "maps" / f"{trunk.backbone.name}-{named}"

    def prepare(self) -> None:
        prepare_store(self.folder, "about.json", self.about)

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npz"

    def has(self, key: str) -> bool:
        """Whether the maps of an image are there, whole."""
        try:
            with zipfile.ZipFile(self.path(key)) as archive:
                return len(archive.namelist()) == len(self.scales)
        except (OSError, zipfile.BadZipFile):
            return False

    def get(self, key: str, numbers: Iterable[int] | None = None) -> list[Tensor | None]:
        """A map by scale; None for scales that are not among `numbers`."""
        wanted = set(range(len(self.scales)) if numbers is None else numbers)
        try:
            with np.load(self.path(key), allow_pickle=False) as kept:
                return [
                    torch.from_numpy(kept[str(scale)]).float() if s in wanted else None
                    for s, scale in enumerate(self.scales)
                ]
        except Exception:  # gone, or damaged in one of the many ways a zip file can be
            with suppress(OSError):  # a store that cannot be written to
                self.path(key).unlink()
            raise MelmError(f"{self.path(key)}: gone or damaged. Run the same command again: it is made anew") from None

    def put(self, key: str, maps: Sequence[Tensor]) -> None:
        arrays = {
            str(scale): map.clamp(-6e4, 6e4).to(torch.float16).cpu().numpy()
            for scale, map in zip(self.scales, maps, strict=True)
        }
        path = self.path(key)
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, packed(arrays, compressed=False))
        except OSError as error:
            raise MelmError(
                f"{path}: cannot be written ({error.strerror}). What was finished is kept: make room and run again"
            ) from None
        with self._counting:
            self.made += 1

    def make(self, key: str, path: Path) -> None:
        """Sees to it that the maps of an image are there."""
        if not self.has(key):
            self.put(key, self.trunk.student_maps(read_image(path), self.scales, self.deep))
