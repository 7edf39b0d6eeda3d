"""`melm run`: from tags to labels and a report, or everything a recipe says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from melm.commands.labelling import export_options, exports_of
from melm.commands.learning import config_for, learning_options
from melm.commands.options import reading_options, source_of, taken, workers_option
from melm.errors import UsageError

READING = {"format", "split", "images", "classes", "background", "limit"}
OF_RECIPE = {"recipe", "path", "data", "out", "basis", "device", "workers", "precision", *READING}  # what goes with one


@click.command()
@click.argument("path", metavar="[DATA]", type=click.Path(path_type=Path), required=False)
@click.option("--data", type=click.Path(path_type=Path), help="The same as DATA.")
@reading_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: runs/NAME-OF-THE-DATA]")
@learning_options
@click.option("--epochs", type=int, help="Times every image is seen; the preset's if not given.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same machine: same numbers.")
@click.option(
    "--retrain/--no-retrain",
    default=None,
    help="Learn on from what was found, as Fast R-CNN: better boxes, for about half as much work again.  "
    "[default: yes, on a frozen trunk]",
)
@export_options
@click.option("--overwrite", is_flag=True, help="Start everything in OUT anew.")
@click.option(
    "--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Learn and measure what FILE says instead."
)
@workers_option
@click.pass_context
def run(context: click.Context, /, path: Path | None, data: Path | None, out: Path | None, **options: Any) -> int:
    """Do the whole job on the tagged images of DATA: check them, learn a detector, label every image, write a report.

    Everything is in OUT: the detector, OUT/labels and OUT/report.html. The same command goes on where it was stopped.

    With --recipe: learn and measure everything a recipe says, on data that has boxes to measure against.

    \b
    Example:
      melm run photos/ --out runs/birds
      melm run photos/ --out runs/birds --no-retrain --to yolo
      melm run --recipe recipes/voc2007-trainval-melm.toml --data VOCdevkit/VOC2007
    """
    if (path is None) == (data is None):
        raise UsageError("name the data set once: melm run DATA --out FOLDER")
    options["data"] = place = path or data
    assert place is not None
    recipe = options.pop("recipe")
    if recipe is not None:
        return _recipe(context, recipe, out, options)
    from melm.learn.students import IN_TWO_PARTS, RetrainConfig
    from melm.tags_to_boxes import REPORT, next_steps, tags_to_boxes

    exports = exports_of(options)
    source = source_of(options)
    config, ready_made = config_for(options, taken(options, "epochs", "seed"), source)
    out = out or Path("runs") / place.absolute().stem
    again = options.pop("retrain")
    can = config.trunk == "frozen" and config.backbone in IN_TWO_PARTS
    if again and not can:
        raise UsageError(
            f"--retrain: students learn here above a frozen {' or '.join(IN_TWO_PARTS)} alone. Learn with --no-retrain, "
            "then: melm retrain RUN DATA --backbone NAME --weights FILE"
        )
    again = can if again is None else again
    labelled = tags_to_boxes(
        source,
        out,
        config,
        again=RetrainConfig(seed=config.seed, precision=config.precision) if again else None,
        exports=exports,
        proposals_file=ready_made,
        say=lambda text: print(text, flush=True),
        **taken(options, "basis", "device", "workers", "overwrite", "skip_bad"),
    )
    if int(os.environ.get("RANK", 0)) > 0:  # of torchrun's processes, the first speaks
        return 0
    for text in labelled.failed:
        print(f"left out: {text}", file=sys.stderr)
    print(f"\nDone. Open {out / REPORT} in a browser. Then:")
    for words, command in next_steps(out, source):
        print(f"  {command}\n      {words}")
    return 0


def _recipe(context: click.Context, recipe: Path, out: Path | None, options: dict[str, Any]) -> int:
    from melm.recipe import read_recipe, run_recipe

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UsageError("--recipe: runs in one process. Start it without torchrun")
    given = [
        name
        for name in context.params
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE and name not in OF_RECIPE
    ]
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')}: what a recipe learns stands in its file, {recipe}")
    run_recipe(
        read_recipe(recipe),
        source_of(options),
        out or Path("runs") / recipe.stem,
        say=lambda text: print(text, flush=True),
        bases=options.pop("basis"),
        **taken(options, "device", "workers", "precision"),
    )
    return 0
