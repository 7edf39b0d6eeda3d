"""The one result type: what was found in one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.boxes import ranked
from melm.errors import MelmError, one_of


@dataclass(frozen=True, slots=True)
class Detections:
    """Objects found in one image, best first."""

    boxes: NDArray[np.float32]  # (M, 4) xyxy, pixels of the upright image
    scores: NDArray[np.float32]  # (M,) in 0 to 1
    classes: NDArray[np.intp]  # (M,) numbers into `names`
    names: tuple[str, ...]  # (K,) all classes of the detector
    width: int
    height: int

    def __post_init__(self) -> None:
        count = len(self.boxes)
        if self.boxes.shape != (count, 4) or self.scores.shape != (count,) or self.classes.shape != (count,):
            raise ValueError(
                f"boxes {self.boxes.shape}, scores {self.scores.shape}, classes {self.classes.shape}; "
                "(M, 4), (M,) and (M,) were expected"
            )

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, chosen: Any) -> Detections:
        """Some of them, by a mask, a slice or a list of positions."""
        if isinstance(chosen, (int, np.integer)):
            chosen = [chosen]
        return replace(self, boxes=self.boxes[chosen], scores=self.scores[chosen], classes=self.classes[chosen])

    def above(self, score: float) -> Detections:
        return self[self.scores >= score]

    def best(self, count: int) -> Detections:
        """The `count` with the highest scores; of equal scores the first by coordinates."""
        return self[ranked(self.boxes, self.scores)[:count]]

    def of(self, name: str) -> Detections:
        """Those of one class."""
        return self[self.classes == self.names.index(one_of("class", name, self.names))]

    def best_of(self, names: Sequence[str]) -> Detections:
        """The best of each of some classes, in this order; none of a class that was not found."""
        best = ranked(self.boxes, self.scores)
        classes = self.classes[best]
        first = [best[classes == self.names.index(one_of("class", name, self.names))][:1] for name in names]
        return self[np.concatenate([np.zeros(0, np.intp), *first])]

    def only(self, names: tuple[str, ...]) -> Detections:
        """Those of some classes, numbered as these are; of a name that the detector does not know there are none."""
        if names == self.names:
            return self
        number = np.array([names.index(name) if name in names else -1 for name in self.names], np.intp)
        chosen = self[number[self.classes] >= 0]
        return replace(chosen, classes=number[chosen.classes], names=names)

    def class_names(self) -> list[str]:
        """The class of each."""
        return [self.names[k] for k in self.classes]

    def to_supervision(self) -> Any:
        """As `supervision.Detections`, for the tools of roboflow/supervision."""
        try:
            import supervision  # type: ignore[import-not-found, import-untyped]
        except ImportError:
            raise MelmError("supervision is not installed. Install it with: pip install supervision") from None
        return supervision.Detections(
            xyxy=self.boxes.astype(np.float32).reshape(-1, 4),
            confidence=self.scores.astype(np.float32),
            class_id=self.classes.astype(int),
            data={"class_name": np.array(self.class_names(), dtype=str)},
        )


def no_detections(names: Sequence[str], width: int, height: int) -> Detections:
    none = np.zeros(0, np.float32)
    return Detections(none.reshape(0, 4), none, np.zeros(0, np.intp), tuple(names), width, height)
