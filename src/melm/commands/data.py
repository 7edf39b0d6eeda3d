"""`melm check` and `melm proposals`: what there is to learn from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from melm.commands.options import Name, data_options, source_of, taken, workers_option
from melm.errors import UsageError, one_of
from melm.proposals.record import FILE_BOXES, METHODS

if TYPE_CHECKING:
    from melm.proposals import Done


@click.command()
@data_options
@workers_option
@click.option("--all", "show_all", is_flag=True, help="Print every problem, however many there are of a kind.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, with every problem.")
def check(workers: int, show_all: bool, as_json: bool, **options: Any) -> int:
    """Say what is in DATA and what is wrong with it.

    DATA is a folder per class, a CSV of files and tags, PASCAL VOC, COCO JSON, YOLO, labelImg or ILSVRC 2013.
    Exit code 1 means: a problem that would spoil training.

    \b
    Example:
      melm check photos/
      melm check tags.csv --images photos/ --json
      melm check VOCdevkit/VOC2007 --split trainval
    """
    from melm.data.check import check as check_data
    from melm.progress import Steps
    from melm.show.check_report import check_text

    with Steps("looking at images") as steps:
        report = check_data(source_of(options), workers, steps.of)
    print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) if as_json else check_text(report, show_all))
    return 0 if report.ok else 1


@click.command()
@data_options
@click.option(
    "--preset", help="Those that `melm train` with this preset learns from, in the place of --method: fast, ..."
)
@click.option(
    "--method",
    type=Name("proposal method", METHODS),
    show_default="selective-search, or file where --file is given",
    help="How boxes are found.",
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made, to import: .mat (Fast R-CNN), .npz or .pkl."
)
@click.option(
    "--file-boxes",
    type=Name("way to write boxes", FILE_BOXES),
    help="How FILE writes boxes: xyxy by edges, xyxy0, xyxy1 or yxyx1 by pixels counted from 0 or 1.",
)
@click.option(
    "--max-boxes",
    type=int,
    show_default="2000, or the preset's",
    help="Most boxes per image, the whole image included.",
)
@click.option("--min-side", type=float, show_default="20", help="Shortest side of a box in pixels.")
@click.option("--max-side", type=int, show_default="512", help="Larger images are searched at this size.")
@click.option(
    "--whole-image/--no-whole-image",
    default=None,
    show_default="whole-image",
    help="Add the whole image as one more proposal.",
)
@click.option("--recall", is_flag=True, help="Measure against the data's boxes.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default="proposals-recall.png",
    show_default=True,
    help="Where --recall draws its curve.",
)
@workers_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def proposals(
    preset: str | None,
    method: str | None,
    file: Path | None,
    file_boxes: str | None,
    recall: bool,
    plot: Path,
    workers: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Find where objects could be in every image of DATA, and keep it.

    Results lie in a store (MELM_CACHE, else the user's cache folder), by the content of each image. The same command goes
    on where it was stopped. For several processes or machines: torchrun --nproc-per-node N -m melm proposals ...

    \b
    Example:
      melm proposals photos/ --preset fast
      melm proposals VOC2007 --split val --method edge-boxes --recall
      melm proposals VOC2007 --file voc_2007_trainval.mat
    """
    from melm.data import read_tags
    from melm.progress import Steps
    from melm.proposals import ProposalSettings, ProposalStore, ReadyMade, make_proposals, settings_for_file
    from melm.show.curves import require_plot
    from melm.show.proposals_report import recall_report, summary

    if preset:
        if method or file:
            raise UsageError("--preset says how boxes are found. Leave out --method and --file, or --preset")
        from melm.learn.presets import PRESETS

        settings = PRESETS[one_of("preset", preset, PRESETS)].config.proposals
    else:
        settings = ProposalSettings(method or ("file" if file else "selective-search"))
    if (settings.method == "file") != (file is not None):
        raise UsageError(f"--method {settings.method} {'needs' if file is None else 'takes no'} --file")
    numbers = taken(options, "max_boxes", "min_side", "max_side", "whole_image")
    settings = replace(settings, **{name: given for name, given in numbers.items() if given is not None})
    ready_made = ReadyMade(file, file_boxes) if file else None
    if ready_made:
        settings = settings_for_file(settings, ready_made)
    source = source_of(options)
    if recall:
        require_plot(plot)
    images = read_tags(source)
    store = ProposalStore(settings)

    def say(done: Sequence[Done]) -> int:
        result = summary(done, store, images.problems)
        text = result.pop("text")
        if not as_json:
            print(text)
        if recall:
            result["recall"] = recall_report(source, done, store, plot)
            text = result["recall"].pop("text")
            if not as_json:
                print(f"\n{text}")
        if as_json:
            print(json.dumps(result, indent=1, ensure_ascii=False))
        return 0 if result["ok"] and result.get("recall", {"ok": True})["ok"] else 1

    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        with Steps("proposals", len(images)) as steps:
            done = make_proposals(images, store, workers, ready_made, steps.advance)
        return say(done)
    from melm.learn.processes import joined  # and with it PyTorch, which one process does without

    with joined("cpu") as processes:
        mine = processes.share(images)
        with processes.steps("proposals", len(mine)) as steps:
            done = make_proposals(mine, store, workers, ready_made, steps.advance, images)
        by_id = {one.id: one for share in processes.gather(done) for one in share}
        return processes.first_does(lambda: say([by_id[image.id] for image in images]))
