"""`melm detect`, `melm scenes` and `melm demo`."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import click

from melm.commands.options import Name, looking_options, taken, with_option, workers_option
from melm.data.formats import FORMATS
from melm.errors import MelmError, UsageError
from melm.proposals.record import FILE_BOXES, METHODS

# Least score that is drawn. Where several speak together they are seldom as sure as one.
DRAWN = {"discovery": 0.03, "fused": 0.1}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True)
@with_option("Another run that speaks along: scores are averaged, box by box")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for what is found.")
@click.option("--format", type=Name("format", tuple(FORMATS)), help="How PATHS are laid out, if they are data sets.")
@click.option("--split", help="Part of a data set.")
@looking_options
@click.option(
    "--min-score",
    type=float,
    default=0.0,
    show_default=True,
    help="Boxes below are not kept. Above 0 it costs average precision.",
)
@click.option(
    "--max-boxes", type=int, default=300, show_default=True, help="Most boxes an image, over all classes; 0 for all."
)
@click.option(
    "--proposals",
    "proposal_method",
    type=Name("proposal method", METHODS),
    help="How boxes are found; as for learning if not given.",
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made for these images: .mat, .npz or .pkl."
)
@click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes.")
@click.option(
    "--to",
    "formats",
    multiple=True,
    type=Name("result format", ("table", "coco", "comp4")),
    help="Write detections.csv, detections.coco.json or the VOC devkit's comp4 files; can be repeated.  [default: table]",
)
@click.option("--draw", is_flag=True, help="Draw the boxes into OUT/drawn.")
@click.option(
    "--draw-score", type=float, help="Least score of a box that is drawn.  [default: 0.3, fused 0.1, discovery 0.03]"
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--overwrite", is_flag=True, help="Start anew in OUT.")
@workers_option
def detect(
    run: Path,
    paths: tuple[Path, ...],
    others: tuple[Path, ...],
    out: Path,
    formats: tuple[str, ...],
    draw: bool,
    draw_score: float | None,
    **options: Any,
) -> int:
    """Find objects in images with the detector of RUN: PATHS are files, folders or data sets.

    Every image is a line of OUT/detections.jsonl as soon as it is done; the same command goes on where it was stopped. For
    several processes or machines, which share OUT: torchrun --nproc-per-node N -m melm detect ...

    \b
    Example:
      melm detect runs/birds new-photos/ --out found --draw
      melm detect runs/voc VOC2007 --split val --views flip --out found --to comp4
      melm detect runs/seed-0 new-photos/ --with runs/seed-1 --with runs/resnet --out found
    """
    from melm.data.finding import find_images
    from melm.data.images import read_image
    from melm.detect.detector import Detector, DetectSettings, load
    from melm.detect.ensemble import Ensemble
    from melm.detect.results import RESULTS, read_results
    from melm.detect.run import detect_images
    from melm.export.detections import require_comp4_names, write_coco_results, write_comp4, write_table
    from melm.learn.processes import joined
    from melm.proposals import ProposalSettings, ReadyMade
    from melm.show.drawings import save_drawing

    settings = DetectSettings(**taken(options, "branch", "views", "nms", "vote", "agree", "min_score", "max_boxes"))
    device = options.pop("device")
    detector: Detector | Ensemble = load(run, settings, device)
    if others:
        if len({path.resolve() for path in (run, *others)}) <= len(others):
            raise UsageError("--with: the same run is named twice")
        detector = Ensemble([load(path, settings, device) for path in (run, *others)])
    split = options["split"] or "test"
    if "comp4" in formats:
        require_comp4_names(detector.classes, split)
    images = find_images(paths, options.pop("format"), options.pop("split"))
    images = [image for image in images if not image.path.is_relative_to(out.absolute())]  # drawn by an earlier start
    file, file_boxes, method = options.pop("file"), options.pop("file_boxes"), options.pop("proposal_method")
    if file and method not in (None, "file"):
        raise UsageError(f"--proposals {method} takes no --file")
    if method == "file" and not file:
        raise UsageError("--proposals file needs --file")
    least = draw_score if draw_score is not None else DRAWN.get(detector.branch, 0.3)
    results = out / RESULTS

    def write() -> None:
        for format in formats or ("table",):
            if format == "table":
                write_table(read_results(results), out / "detections.csv")
            elif format == "coco":
                write_coco_results(read_results(results), out / "detections.coco.json")
            else:
                write_comp4(read_results(results), out, split, detector.classes)
        if draw:
            try:
                (out / "drawn").mkdir(exist_ok=True)
            except OSError as error:
                raise MelmError(f"{out / 'drawn'}: cannot be made ({error.strerror})") from None

    def say() -> int:
        for text in failed:
            print(f"error: {text}", file=sys.stderr)
        print(f"{len(images) - len(failed):,} images in {out}" + (f", {len(failed):,} failed" if failed else ""))
        return 1 if failed else 0

    with joined(device) as processes:
        failed = detect_images(
            detector,
            images,
            out,
            proposals=ProposalSettings(method) if method and not file else None,
            proposals_file=ReadyMade(file, file_boxes) if file else None,
            **taken(options, "workers", "overwrite"),
            processes=processes,
        )
        processes.first_does(write)
        if draw:
            with processes.steps("drawing", len(processes.share(images))) as steps:
                for id, path, found in islice(read_results(results), processes.rank, None, processes.world):
                    save_drawing(out / "drawn" / f"{id.replace('/', '__')}.jpg", read_image(Path(path)), found, least)
                    steps.advance()
        processes.wait()
        return processes.first_does(say)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--images", type=click.IntRange(min=1), default=300, show_default=True, help="Images in train.")
@click.option("--test-images", type=click.IntRange(min=1), default=60, show_default=True, help="Images in test.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Other seeds, other scenes.")
def scenes(folder: Path, images: int, test_images: int, seed: int) -> int:
    """Draw the demo's data set into FOLDER: scenes of creatures, their tags, and the boxes to measure against.

    \b
    Example:
      melm scenes creatures
      melm run creatures/train-tags.csv --out runs/creatures
    """
    from melm.data.scenes import write_scenes

    write_scenes(folder, images, test_images, seed)
    print(f"{images:,} images in {folder / 'train'}, {test_images:,} in {folder / 'test'}")
    print("their tags are train-tags.csv and test-tags.csv beside them, their boxes train.json and test.json")
    return 0


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default="demo", show_default=True, help="Folder for everything."
)
@click.option("--images", type=click.IntRange(min=30), default=300, show_default=True, help="Images to learn from.")
@click.option("--test-images", type=click.IntRange(min=10), default=60, show_default=True, help="Images held out.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the data and of learning.")
def demo(out: Path, images: int, test_images: int, seed: int) -> int:
    """Do the whole job on a generated data set: tags in, a detector learned, boxes, scores and pictures out.

    Learns with MELM and with WSDDN on the same features, and prints both beside each other. A few minutes on two cores.
    """
    from melm.demo import run_demo

    run_demo(out, images, test_images, seed)
    return 0
