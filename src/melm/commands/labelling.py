"""`melm label`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from melm.commands.options import (
    Command,
    Name,
    data_options,
    file_of,
    looking_options,
    source_of,
    taken,
    workers_option,
)
from melm.errors import UsageError
from melm.proposals.record import FILE_BOXES

if TYPE_CHECKING:
    from melm.export.labels import Export

FORMATS = ("csv", "coco", "voc", "yolo", "labelstudio", "cvat")


def export_options(command: Command) -> Command:
    """What labels are written as."""
    for option in reversed(
        [
            click.option(
                "--to",
                "formats",
                multiple=True,
                type=Name("label format", FORMATS),
                help="Write the labels for other tools, into OUT/FORMAT; can be repeated.  [default: csv]",
            ),
            click.option(
                "--images-as",
                type=Name("way to place images", ("link", "copy", "none")),
                help="Put the images beside the labels, for voc, yolo, coco and cvat.  [default: link for yolo, else none]",
            ),
            click.option(
                "--image-root",
                type=click.Path(path_type=Path),
                help="Folder that image names are written from; for labelstudio, the root of its local files.",
            ),
            click.option(
                "--val-share",
                type=click.FloatRange(0, 1, max_open=True),
                default=0.2,
                show_default=True,
                help="Of the images, for yolo's val.",
            ),
            click.option("--with-confidence", is_flag=True, help="A sixth column with the confidence, for yolo."),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@data_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the labels.  [default: RUN/labels]")
@export_options
@click.option(
    "--alike",
    type=float,
    default=0.6,
    show_default=True,
    help="Share of a tag's best score from which another box is an object of it, too; 1: the best alone.",
)
@looking_options
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made for these images: .mat, .npz or .pkl."
)
@click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--overwrite", is_flag=True, help="Start anew in OUT.")
@workers_option
def label(run: Path, out: Path | None, **options: Any) -> int:
    """Draw the boxes of the tags of DATA with the detector of RUN, the most doubtful images first.

    Only what an image is tagged with is labelled, and every tag gets at least its best box. Every image is a line of
    OUT/labels.jsonl as soon as it is done; the same command goes on where it was stopped, and writes other formats of the
    same labels. For several processes or machines, which share OUT: torchrun --nproc-per-node N -m melm label ...

    \b
    Example:
      melm label runs/birds photos/
      melm label runs/birds photos/ --to yolo --to coco
      melm label runs/birds photos/ --to labelstudio --image-root /data
    """
    from melm.data import read_tags
    from melm.detect.detector import DetectSettings, load
    from melm.detect.labelling import LabelSettings, label_images
    from melm.detect.labels import Labels
    from melm.export.labels import write_exports
    from melm.learn.processes import joined
    from melm.show.label_report import label_text

    out = out or run / "labels"
    exports = exports_of(options)
    settings = DetectSettings(**taken(options, "branch", "views", "nms", "vote", "agree"))
    device = options.pop("device")
    detector = load(run, settings, device)
    ready_made = file_of(options)
    overwrite, alike = options.pop("overwrite"), options.pop("alike")
    images = read_tags(source_of(options))

    def write_and_say() -> int:
        labels = Labels(out, {image.id for image in images})
        print(label_text(labelled, labels, write_exports(labels, exports, overwrite=overwrite)))
        for text in labelled.failed:
            print(f"error: {text}", file=sys.stderr)
        return 1 if labelled.failed else 0

    with joined(device) as processes:
        labelled = label_images(
            detector,
            images,
            out,
            LabelSettings(alike),
            proposals_file=ready_made,
            workers=options.pop("workers"),
            overwrite=overwrite,
            processes=processes,
        )
        return processes.first_does(write_and_say)


def exports_of(options: dict[str, Any]) -> list[Export]:
    """Takes the options of `export_options` out of a command's options."""
    from melm.export.labels import ExportSettings

    given = taken(options, "image_root", "val_share")
    settings = ExportSettings(options.pop("images_as"), confidence=options.pop("with_confidence"), **given)
    plain = ExportSettings(image_root=settings.image_root)  # a table holds no images
    formats = dict.fromkeys(options.pop("formats") or ("csv",))
    if "yolo" in formats and settings.images == "none":
        raise UsageError("--to yolo needs its images beside the labels: --images-as link or copy")
    return [(format, plain if format == "csv" else settings) for format in formats]
