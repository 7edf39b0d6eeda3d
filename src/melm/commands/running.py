"""`melm run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from melm.commands.options import named_data_options, source_of, workers_option


@click.command()
@click.option(
    "--recipe", type=click.Path(path_type=Path), required=True, metavar="FILE", help="What to learn and measure."
)
@named_data_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs.  [default: runs/NAME-OF-THE-RECIPE]")
@click.option(
    "--basis",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Read images as this earlier run does, so that what is stored for it serves again.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@workers_option
def run(recipe: Path, out: Path | None, basis: Path | None, device: str, workers: int, **options: Any) -> int:
    """Learn and measure everything a recipe says, on data that has boxes to measure against. The same command goes on where it
    was stopped.

    \b
    Example:
      melm run --recipe recipes/voc2007-trainval-melm.toml --data VOCdevkit/VOC2007
    """
    from melm.recipe import read_recipe, run_recipe

    run_recipe(
        read_recipe(recipe),
        source_of(options),
        out or Path("runs") / recipe.stem,
        basis=basis,
        device=device,
        workers=workers,
        say=lambda text: print(text, flush=True),
    )
    return 0
