"""`melm report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from melm.commands.options import Name, file_of, reading_options, source_of, taken
from melm.errors import UsageError
from melm.proposals.record import FILE_BOXES


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The data set that was labelled: for its boxes, or where it lies now.  [default: what the run learned from]",
)
@reading_options
@click.option("--labels", type=click.Path(path_type=Path), help="Folder that melm label wrote.  [default: RUN/labels]")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The page.  [default: RUN/report.html]")
@click.option(
    "--teacher",
    type=click.Path(path_type=Path),
    metavar="FIRST-RUN",
    help="The run that a retrained one learned from, for its curves.  [default: RUN-first, if it is that]",
)
@click.option(
    "--looks",
    type=click.IntRange(0, 20),
    default=4,
    show_default=True,
    help="Images that are looked at closely, from doubtful to sure; 0 for none.",
)
@click.option(
    "--look-at", multiple=True, metavar="IMAGE", help="Look closely at this image and no others; can be repeated."
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made for these images: .mat, .npz or .pkl."
)
@click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
def report(run: Path, out: Path | None, **options: Any) -> int:
    """Put RUN on one HTML page: its data, curves, scores and errors where there are boxes, a gallery of what melm label
    found with the most doubtful images first, closer looks, and the commands to do it again.

    The page is one file that needs neither a server nor the network.

    \b
    Example:
      melm report runs/birds
      melm report runs/voc --data VOC2007 --split train --out voc.html
    """
    from melm.show.report import write_report

    ready_made = file_of(options)
    reading = {name: options[name] for name in ("format", "split", "images", "classes", "background", "limit")}
    given = next((name for name, value in reading.items() if value is not None), None)
    if given and options["data"] is None:
        raise UsageError(f"--{given} says how --data is read, and there is no --data")
    source = source_of(options) if options["data"] is not None else None
    written = write_report(
        run,
        out,
        source,
        proposals_file=ready_made,
        **taken(options, "labels", "teacher", "looks", "look_at", "device"),
    )
    shown = f", {written.images:,} images in its gallery" if written.images else ""
    print(f"{written.path}: {written.size / 1e6:.1f} MB{shown}")
    for note in written.notes:
        print(f"  {note}")
    return 0
