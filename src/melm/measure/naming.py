"""Which image or class of a data set a name or a number in somebody's results means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from melm.data.records import DataError
from melm.errors import did_you_mean
from melm.measure.truth import Truth


@dataclass
class Known:
    """The images or the classes of a truth, and which of them a text or a COCO number means."""

    what: str
    many: str
    key: str
    names: Sequence[str]
    numbers: Mapping[int, str]
    files: Mapping[str, list[str]] = field(default_factory=dict)  # file name -> names it may mean
    hint: str = ""

    def __post_init__(self) -> None:
        self.index = {name: i for i, name in enumerate(self.names)}
        self._found: dict[str | int, int] = {}
        self._paths: dict[str, str] = {}

    def find(self, asked: str | int, all_text: bool = False) -> int:
        """The number of the one that is meant. With `all_text`, a text may be a COCO number."""
        if asked not in self._found:
            name = self._either(asked) if isinstance(asked, str) and all_text else self._meant(asked)
            if name is None:
                raise DataError(self._unknown(asked))
            if name not in self.index:
                named = repr(name) if name == asked else f"{name!r} ({self.key} {asked})"
                raise DataError(f"the {self.what} {named} is in the data, but not among the {self.many} measured")
            self._found[asked] = self.index[name]
        return self._found[asked]

    def _meant(self, asked: str | int) -> str | None:
        if isinstance(asked, int):
            return self.numbers.get(asked)
        if asked in self.index:
            return asked
        meant = self.files.get(asked) or self.files.get(self._last_part(asked), [])
        if len(meant) > 1:
            listed = ", ".join(map(repr, meant[:5])) + (f" and {len(meant) - 5:,} more" if len(meant) > 5 else "")
            raise DataError(f"the {self.what} {asked!r} may be any of {listed}. Write the whole id")
        return meant[0] if meant else asked if asked in self.numbers.values() else None

    def _last_part(self, asked: str) -> str:
        """Of a path: the data may lie in other folders than it did for the results. Only one path may be so read for an image."""
        last = asked.rsplit("/", 1)[-1]
        before = self._paths.setdefault(last, asked)
        if before != asked:
            raise DataError(
                f"the {self.what}s {before!r} and {asked!r} of the results would both be {last!r} of the data. "
                "Name the images as the data does"
            )
        return last

    def _either(self, text: str) -> str | None:
        for spelled in dict.fromkeys((text, text.strip())):
            named = self._meant(spelled)
            numbered = self._meant(int(spelled)) if re.fullmatch(r"-?[0-9]{1,40}", spelled) else None
            if named is not None and numbered is not None and named != numbered:
                raise DataError(
                    f"{spelled!r} is the {self.what} {named!r} by name and {numbered!r} by COCO's number. "
                    f"Write the results as JSON, where {self.key} is either a text or a number"
                )
            if named is not None or numbered is not None:
                return numbered if named is None else named
        return None

    def _unknown(self, asked: str | int) -> str:
        if isinstance(asked, int) and not self.numbers:
            return (
                f"{self.key} is {asked}, but the data's {self.many} have no COCO numbers. Write the {self.what} as text"
            )
        meant = did_you_mean(asked, self.names) if isinstance(asked, str) else ""
        if isinstance(asked, str) and any("\udc80" <= c <= "\udcff" for c in asked):
            meant += " It is not UTF-8: save the file as UTF-8."
        count = f"{len(self.names):,} {self.many}"
        listed = f"{count}: {', '.join(self.names)}" if len(self.names) <= 20 else count
        return f"unknown {self.what} {asked!r}.{meant} The data has {listed}.{self.hint}"


def images_of(truth: Truth) -> Known:
    """Images by their ids, and by their file names with and without the ending: those of the truth, then those left out of it."""
    files: dict[str, list[str]] = {}
    for id, file in {**dict.fromkeys(truth.images), **truth.files, **truth.left_out}.items():
        for name in {id.rsplit("/", 1)[-1]} if file is None else {file.stem, file.name, id + file.suffix}:
            files.setdefault(name, []).append(id)
    return Known(
        "image",
        "images",
        "image_id",
        (*truth.images, *truth.left_out),
        truth.image_numbers,
        files,
        " Is it of another split?",
    )
