"""Labels as a table for spreadsheets and data frames."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from melm.detect.labels import LabelledImage
from melm.detect.lines import exact
from melm.export.export_settings import ExportSettings
from melm.export.image_files import path_under
from melm.export.text_files import PlainLines, whole_text

COLUMNS = ["image", "file", "class", "confidence", "x1", "y1", "x2", "y2", "best", "doubt"]


def write_label_table(
    labels: Iterable[LabelledImage], names: Sequence[str], folder: Path, settings: ExportSettings
) -> Path:
    """`labels.csv` with a line per box; an image without boxes has none. Corners are pixels of the upright image."""
    path, root = folder / "labels.csv", settings.image_root
    with whole_text(path) as file:
        rows = csv.writer(PlainLines(file))
        rows.writerow(COLUMNS)
        for image in labels:
            place = str(image.path) if root is None else path_under(image.path, root)
            found, doubt = image.found, round(image.doubt, 6)
            for name, sure, box, best in zip(
                found.class_names(), exact(found.scores), exact(found.boxes), image.best.tolist(), strict=True
            ):
                rows.writerow([image.id, place, name, sure, *box, "true" if best else "false", doubt])
    return path
