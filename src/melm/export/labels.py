"""Labels for other tools: the one way in, for all formats. Written as they come, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from melm.detect.labels import LabelledImage, Labels
from melm.errors import one_of
from melm.export.export_folder import claim
from melm.export.export_settings import ExportSettings, Images
from melm.export.label_coco import write_label_coco
from melm.export.label_cvat import write_label_cvat
from melm.export.label_studio import write_label_studio
from melm.export.label_table import write_label_table
from melm.export.label_voc import write_label_voc
from melm.export.label_yolo import write_label_yolo

__all__ = ["FORMATS", "Export", "ExportSettings", "export_labels", "write_exports"]

Export = tuple[str, ExportSettings]  # a format, and how it is written


class Format(NamedTuple):
    write: Callable[[Iterable[LabelledImage], Sequence[str], Path, ExportSettings], Path]
    images: Images = "none"  # if nothing is said about them


FORMATS = {
    "csv": Format(write_label_table),
    "coco": Format(write_label_coco),
    "voc": Format(write_label_voc),
    "yolo": Format(write_label_yolo, "link"),
    "labelstudio": Format(write_label_studio),
    "cvat": Format(write_label_cvat),
}


def export_labels(
    labels: Iterable[LabelledImage],
    names: Sequence[str],
    out: Path,
    format: str,
    settings: ExportSettings | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Writes labels for another tool into the folder `out`, which is for this alone; what to give to the tool.

    Classes are numbered as in `names`. Images come in the order of `labels`. The same call again goes on after a kill, and
    changes nothing otherwise; one for labels of fewer images, or of other settings, may need `overwrite`, which starts anew.
    """
    writer = FORMATS[one_of("label format", format, FORMATS)]
    settings = settings or ExportSettings()
    settings = replace(settings, images=settings.images or writer.images)
    claim(out, format, overwrite)
    return writer.write(_of_classes(labels, tuple(names)), names, out, settings)


def write_exports(labels: Labels, exports: Iterable[Export], *, overwrite: bool = False) -> list[Path]:
    """Writes labels into FORMAT in their folder, for each format; what to give to each tool."""
    folder = labels.path.parent
    return [
        export_labels(labels, labels.classes, folder / format, format, settings, overwrite=overwrite)
        for format, settings in exports
    ]


def _of_classes(labels: Iterable[LabelledImage], names: tuple[str, ...]) -> Iterator[LabelledImage]:
    """The labels, which must be of these classes: their numbers would be those of others."""
    for image in labels:
        if image.found.names != names:
            raise ValueError(f"labels of the classes {image.found.names}, to be written as {names}")
        yield image
