"""What learning may see of a data set: images and their tags.

Boxes are not here, and nothing here leads to them: they live in `melm.measure.truth`, which learning cannot import
(`tests/test_walls.py` reads every import in the package).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from melm.errors import MelmError

Severity = Literal["error", "warning", "note"]


class DataError(MelmError):
    """A data set that cannot be read or used."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a person should know about their data. An error would spoil training; a note is only said."""

    severity: Severity
    kind: str
    file: str
    message: str


@dataclass(frozen=True, slots=True)
class TaggedImage:
    """One image: where it is and what is in it. `unknown` holds the classes of which neither presence nor absence is known."""

    id: str
    path: Path
    tags: tuple[str, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaggedImages(Sequence[TaggedImage]):
    """A data set as learning sees it."""

    root: Path
    classes: tuple[str, ...]
    images: tuple[TaggedImage, ...]
    problems: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.images[index]

    def __iter__(self) -> Iterator[TaggedImage]:
        return iter(self.images)

    def tags(self) -> NDArray[np.uint8]:
        """(images, K): 1 where an image has the tag."""
        return self._table(lambda image: image.tags)

    def known(self) -> NDArray[np.uint8]:
        """(images, K): 0 where neither presence nor absence of a class is known."""
        return 1 - self._table(lambda image: image.unknown)

    def _table(self, names_of) -> NDArray[np.uint8]:  # type: ignore[no-untyped-def]
        column = {name: k for k, name in enumerate(self.classes)}
        table = np.zeros((len(self.images), len(self.classes)), np.uint8)
        for row, image in enumerate(self.images):
            table[row, [column[name] for name in names_of(image)]] = 1
        return table
