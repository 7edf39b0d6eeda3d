"""Where an object could be: boxes with a class-agnostic prior, and the settings that made them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.boxes import area
from melm.config import check_fields
from melm.errors import UsageError, one_of

METHODS = ("selective-search", "selective-search-opencv", "selective-search-quality", "edge-boxes", "file")
FILE_BOXES = ("xyxy", "xyxy0", "xyxy1", "yxyx1")
VERSION = 4  # raise it when the same settings would give other boxes or another prior


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposals of one image, best first, the whole image last."""

    boxes: NDArray[np.float32]  # (N, 4) xyxy, pixels of the upright image
    prior: NDArray[np.float32]  # (N,) evidence for an object, from the image alone: superpixel straddling
    score: NDArray[np.float32]  # (N,) the method's own, where it has one (edge boxes, scores in a file); else 0
    width: int
    height: int

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def share(self) -> NDArray[np.float32]:
        """(N,) of the image that each box covers."""
        return (area(self.boxes) / (self.width * self.height)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ProposalSettings:
    """Everything that decides which boxes an image gets; two equal settings share their entry in the store."""

    method: str = "selective-search"
    max_boxes: int = 2000  # the whole image counts
    min_side: float = 20.0  # pixels of the image as it is
    max_side: int = 512  # larger images are searched at this size
    whole_image: bool = True
    file_digest: str | None = None  # method `file`: which file
    file_boxes: str | None = None  # and how it counts pixels

    def __post_init__(self) -> None:
        check_fields(self, {})
        one_of("proposal method", self.method, METHODS)
        object.__setattr__(self, "min_side", float(self.min_side))  # 20 and 20.0 are one setting
        if self.max_boxes < 1:
            raise UsageError(f"--max-boxes (max_boxes) is {self.max_boxes}; at least 1 was expected")
        if not 0 <= self.min_side < math.inf or self.max_side < 32:
            raise UsageError(
                f"--min-side (min_side) is {self.min_side:g} and --max-side (max_side) {self.max_side}; "
                "at least 0 and at least 32 were expected"
            )

    def as_dict(self) -> dict[str, object]:
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> ProposalSettings:
        """The settings that `as_dict` wrote, in this version or one before: the name of a method may have changed since."""
        kept = dict(kept)
        if kept.pop("version", VERSION) <= 3 and kept["method"] == "selective-search":
            kept["method"] = "selective-search-opencv"
        return ProposalSettings(**kept)

    def folder_name(self) -> str:
        """A name a person can read, and a digest that only these settings have."""
        digest = hashlib.blake2b(json.dumps(self.as_dict(), sort_keys=True).encode(), digest_size=6).hexdigest()
        return f"{self.method}-{digest}"
