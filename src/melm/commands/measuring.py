"""`melm evaluate`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from melm.commands.options import Name, file_of, looking_options, named_data_options, source_of, taken, workers_option
from melm.errors import UsageError
from melm.proposals.record import FILE_BOXES

ENSEMBLE = "ensemble"


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1)
@named_data_options
@click.option(
    "--detections",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Results of any tool: COCO results JSON, a CSV of the same, a folder of VOC's comp4 files, or what melm "
    "detect or label wrote; can be repeated.",
)
@click.option("--ensemble", is_flag=True, help="Measure RUNS together as well: their scores averaged, box by box.")
@click.option("--clip", is_flag=True, help="Cut boxes of FILE at the image's edge instead of refusing them.")
@looking_options
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made for these images: .mat, .npz or .pkl."
)
@click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes.")
@click.option("--tolerance", type=float, default=18.0, show_default=True, help="Of pointing, in pixels.")
@click.option("--threshold", type=float, default=0.5, show_default=True, help="Score that makes a class predicted.")
@click.option(
    "--draws", type=click.IntRange(min=10), default=1000, show_default=True, help="Of the bootstrap between two runs."
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Draw curves, errors and confusion there, and strips of the images that were watched.",
)
@click.option("--json", "style", flag_value="json", help="Print every figure as JSON.")
@click.option("--csv", "style", flag_value="csv", help="Print a line a run and class.")
@click.option("--markdown", "style", flag_value="markdown", help="Print tables for a page.")
@click.option("--latex", "style", flag_value="latex", help="Print tables for a paper.")
@click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be read, instead of stopping.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@workers_option
def evaluate(
    runs: tuple[Path, ...],
    files: tuple[Path, ...],
    tolerance: float,
    threshold: float,
    draws: int,
    plots: Path | None,
    style: str | None,
    clip: bool,
    ensemble: bool,
    skip_bad: bool,
    **options: Any,
) -> int:
    """Measure RUNS, or the detections of any other tool, on a data set that has boxes.

    Average precision (VOC 2007, VOC 2012, COCO, ILSVRC 2013), CorLoc, pointing, image classification, localization
    randomness and errors, by class. Several runs are compared: spread over seeds, and a paired bootstrap. What was looked at
    is kept in the run; the same command goes on where it was stopped.

    \b
    Example:
      melm evaluate runs/voc --data VOC2007 --split val
      melm evaluate --detections results.json --data coco/annotations/instances_val2017.json
      melm evaluate runs/melm runs/wsddn --data VOC2007 --split val --markdown
      melm evaluate runs/seed-0 runs/seed-1 --ensemble --data VOC2007 --split val
    """
    from melm.data import read_tags
    from melm.detect.detector import DetectSettings
    from melm.detect.ensemble import Ensemble
    from melm.measure.evaluation import Subject, by_seed, comparisons, evaluate
    from melm.measure.other_results import read_detections
    from melm.measure.subjects import (
        detector_of,
        names_for,
        placed,
        readable,
        require_classes,
        subject_of_ensemble,
        subject_of_run,
    )
    from melm.measure.truth import read_truth
    from melm.show.check_report import problem_lines
    from melm.show.evaluation_pictures import make_folder, write_pictures
    from melm.show.evaluation_report import Report

    if not runs and not files:
        raise UsageError("nothing to measure: name a RUN, or results of another tool with --detections FILE")
    if ensemble and len(runs) < 2:
        raise UsageError("--ensemble: two RUNS or more speak together")
    if not (math.isfinite(threshold) and 0 <= tolerance < math.inf):
        raise UsageError("--tolerance is 0 or more, --threshold a number")
    if len({path.resolve() for path in (*runs, *files)}) < len(runs) + len(files):
        raise UsageError("the same run or file is named twice; each is measured once")
    split = options["split"]
    source = source_of(options)
    every = read_truth(replace(source, classes=None))  # results may have more classes than are asked for
    for line in problem_lines(every.problems):
        print(line, file=sys.stderr)
    images = placed(every, read_tags(source))
    if skip_bad:
        every, images, bad = readable(every, images)
        for text in bad:
            print(f"left out: {text}", file=sys.stderr)
    truth = every.only(images.classes)
    settings = DetectSettings(**taken(options, "branch", "views", "nms", "vote", "agree"), max_boxes=0)
    ready_made = file_of(options)
    names = names_for([*runs, *files])
    if ensemble and ENSEMBLE in names.values():
        raise UsageError(f"a run or file is named {ENSEMBLE!r}, as the runs together are; name it otherwise")
    if plots:
        make_folder(plots)
    detectors = [detector_of(run, settings, options["device"]) for run in runs]
    for run, detector in zip(runs, detectors, strict=True):  # before the work, rather than after some of it
        require_classes(run, detector, every.classes)
    if ensemble:
        Ensemble(detectors)
    found = {path: read_detections(path, every, clip, split) for path in files}
    subjects = [
        subject_of_run(run, names[run], truth, images, settings, ready_made, options["workers"], options["device"])
        for run in runs
    ]
    if ensemble:
        given = (truth, images, settings, ready_made, options["workers"], options["device"])
        subjects.append(subject_of_ensemble(runs, ENSEMBLE, *given))
    for path, detections in found.items():
        if len(detections) < len(truth.images):
            print(f"{names[path]}: entries for {len(detections):,} of {len(truth.images):,} images", file=sys.stderr)
        subjects.append(Subject(names[path], {id: d.only(truth.classes) for id, d in detections.items()}))
    evaluations = [evaluate(subject, truth, images, tolerance, threshold) for subject in subjects]
    objects = sum(c.objects for c in evaluations[0].precision["voc07"].classes)
    where = f"{source.path}" + (f", split {split}" if split else "")
    title = f"{where}: {len(truth.images):,} images, {objects:,} objects, {len(truth.classes)} classes"
    report = Report(title, evaluations, by_seed(evaluations), comparisons(evaluations, truth, draws))
    if style == "json":
        figures = {
            "data": str(source.path),
            "split": split,
            "left_out": sorted(every.left_out),
            "images": len(truth.images),
            "objects": objects,
            **report.as_dict(),
        }
        print(json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        print(getattr(report, style or "text")())
    if plots:
        for path in write_pictures(plots, evaluations, runs, truth):
            print(f"drawn: {path}", file=sys.stderr)
    return 0
