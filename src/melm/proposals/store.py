"""The store of proposals: one small file per image, named by the image's content, in a folder per settings.

Files are written beside their place and renamed into it, so a reader never sees half of one, whoever writes at the same time and
whenever the writer is killed. Nothing in them is ever unpickled.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from melm.errors import MelmError
from melm.files import cache_folder, packed, prepare_store, write_whole
from melm.proposals.record import Proposals, ProposalSettings


class ProposalStore:
    """Proposals on disk, for one choice of settings."""

    def __init__(self, settings: ProposalSettings, cache: Path | None = None) -> None:
        self.settings = settings
        self.folder = (cache or cache_folder()) / "proposals" / settings.folder_name()

    def prepare(self) -> None:
        """Makes the folder and clears what killed writers left in it."""
        prepare_store(self.folder, "settings.json", self.settings.as_dict())

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npz"

    def has(self, key: str) -> bool:
        return self.path(key).is_file()

    def get(self, key: str) -> Proposals | None:
        """The proposals of the image with this content, or None. A damaged file counts as none, and is made again."""
        try:
            with np.load(self.path(key), allow_pickle=False) as arrays:
                width, height = arrays["size"]
                return Proposals(arrays["boxes"], arrays["prior"], arrays["score"], int(width), int(height))
        except FileNotFoundError:
            return None
        except Exception:  # damaged, in one of the many ways a zip file can be
            return None

    def put(self, key: str, proposals: Proposals, seconds: float) -> None:
        """Keeps the proposals of an image, and how long they took, for tables made after the work is done."""
        path, size = self.path(key), np.array([proposals.width, proposals.height], np.int32)
        arrays = {"boxes": proposals.boxes, "prior": proposals.prior, "score": proposals.score, "size": size}
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, packed(arrays))
            with (self.folder / "seconds.txt").open("a") as file:
                file.write(f"{seconds:.4f}\n")  # one short line, appended at once
        except OSError as error:
            raise MelmError(
                f"{path}: cannot be written ({error.strerror}). What was finished is kept: make room and run again"
            ) from None

    def mean_seconds(self) -> float | None:
        """Seconds per image and core over everything in the store, or None."""
        try:
            values = [float(line) for line in (self.folder / "seconds.txt").read_text().split()]
        except (FileNotFoundError, ValueError):
            return None
        return sum(values) / len(values) if values else None
