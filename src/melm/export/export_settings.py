"""What a user may choose about labels for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from melm.errors import UsageError, one_of

Images = Literal["link", "copy", "none"]


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """How labels are written. What does not concern a format is not looked at."""

    # Whether images are put beside the labels: as links (copies where links cannot be), as copies, or not at all. If None, as
    # links for YOLO, whose readers find labels by where the images are, and not at all for the others. A table and Label
    # Studio never have them.
    images: Images | None = None
    # The folder from which images that stay where they are get their names. If None, that is the data's own folder; for Label
    # Studio it is the root of the disk, as in Label Studio itself, and for a table names are whole paths.
    image_root: Path | None = None
    val_share: float = 0.2  # of the images, for YOLO's val
    confidence: bool = False  # a sixth column for YOLO; ultralytics drops images whose labels have one
    model_version: str = "melm"  # what Label Studio calls the predictions' author

    def __post_init__(self) -> None:
        if self.images is not None:
            one_of("way to place images", self.images, ("link", "copy", "none"))
        if not 0 <= self.val_share < 1:
            raise UsageError(f"--val-share is {self.val_share}; at least 0 and below 1 was expected")
