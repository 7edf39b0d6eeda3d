"""What a frozen trunk gives, computed once and kept: one memory-mapped array per image, named by the image's content.

A file holds box, frame and ring of every proposal, (3, N, components) in half precision. The folder's name stands for
everything else that decides the numbers: the trunk with its weights and basis, how it is read, and the proposals.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from melm.errors import MelmError
from melm.files import cache_folder, prepare_store, write_whole
from melm.model.branches import Regions
from melm.model.trunks import FrozenTrunk
from melm.proposals import ProposalSettings

VERSION = 3  # raise it when the same names would give other numbers


class RegionStore:
    """What one trunk reads of images, for one choice of proposals."""

    def __init__(self, trunk: FrozenTrunk, proposals: ProposalSettings, cache: Path | None = None) -> None:
        self.about = {"version": VERSION, "trunk": trunk_digest(trunk), "proposals": proposals.folder_name()}
        digest = hashlib.blake2b(json.dumps(self.about, sort_keys=True).encode(), digest_size=6).hexdigest()
        self.folder = (cache or cache_folder()) / "features" / f"{trunk.backbone.name}-{digest}"
        self.made = 0  # by this process
        self._counting = threading.Lock()

    def prepare(self) -> None:
        """Makes the folder and clears what killed writers left in it."""
        prepare_store(self.folder, "about.json", self.about)

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npy"

    def get(self, key: str) -> NDArray[np.float16] | None:
        """(3, N, components), mapped into memory and not read yet; None where there is none or it is damaged."""
        try:
            mapped: NDArray[np.float16] = np.load(self.path(key), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return mapped if mapped.ndim == 3 and mapped.dtype == np.float16 else None

    def regions(self, key: str, some: NDArray[np.intp] | slice = slice(None)) -> Regions:
        """What a step reads: box, frame and ring (N, components) of all proposals or some."""
        mapped = self.get(key)
        if mapped is None:
            raise MelmError(f"{self.path(key)}: gone or damaged. Run the same command again: it is made anew")
        return Regions(*torch.from_numpy(np.array(mapped[:, some])).float().unbind(0))

    def put(self, key: str, regions: Regions) -> None:
        # beyond half precision's range there is nothing: a whitened component of 65504 is no measurement
        packed = torch.stack(regions.parts()).clamp(-6e4, 6e4).to(torch.float16).cpu().numpy()
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, packed, allow_pickle=False)
        path = self.path(key)
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, buffer.getvalue())
            with self._counting:
                self.made += 1
        except OSError as error:
            raise MelmError(
                f"{path}: cannot be written ({error.strerror}). What was finished is kept: make room and run again"
            ) from None


def trunk_digest(trunk: FrozenTrunk, fitted: bool = True) -> str:
    """A name that only a trunk with these weights, this basis and this way of reading has. Without what was `fitted`, every basis
    of these sizes has the same."""
    digest = hashlib.blake2b(digest_size=16)
    reading = [trunk.backbone.name, str(trunk.backbone.convention), trunk.scales, trunk.normal_size]
    if trunk.kind != torch.float32:
        reading.append(str(trunk.kind))
    digest.update(json.dumps(reading).encode())
    basis = trunk.fitted()
    for name, value in sorted(trunk.state_dict().items()):
        digest.update(name.encode())
        if name in basis and not fitted:
            digest.update(str(tuple(value.shape)).encode())
        else:
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
