"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from melm.data import Source
from melm.data.formats import FORMATS
from melm.errors import UsageError, one_of
from melm.workers import own_cores

Command = TypeVar("Command", bound=Callable[..., Any])


class Name(click.ParamType):  # type: ignore[type-arg]
    """One of several names, with "did you mean" for a mistyped one."""

    def __init__(self, what: str, names: tuple[str, ...]) -> None:
        self.name, self.names = what, names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.names)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return one_of(self.name, value, self.names)


def data_options(command: Command) -> Command:
    """The argument DATA and the options with which every command reads it."""
    return click.argument("data", type=click.Path(path_type=Path))(reading_options(command))


def named_data_options(command: Command) -> Command:
    """The same with --data, for commands whose arguments are something else."""
    data = click.option("--data", type=click.Path(path_type=Path), required=True, help="The data set.")
    return data(reading_options(command))


def reading_options(command: Command) -> Command:
    for option in reversed(
        [
            click.option(
                "--format",
                type=Name("format", tuple(FORMATS)),
                help="How DATA is laid out; found by looking if not given.",
            ),
            click.option("--split", help="Part of the data: train, val, trainval, test, ... as the format names them."),
            click.option(
                "--images",
                type=click.Path(path_type=Path),
                help="Folder of the images, where the data does not lie beside them.",
            ),
            click.option("--classes", help="Only these classes, separated by commas."),
            click.option(
                "--background", metavar="CLASS", help="A class whose images are known to show none of the others."
            ),
            click.option(
                "--limit", type=int, metavar="N", help="Only N images, spread evenly over the data, to try things."
            ),
        ]
    ):
        command = option(command)
    return command


def looking_options(command: Command) -> Command:
    """How a run's detector looks at images."""
    for option in reversed(
        [
            click.option(
                "--branch",
                help="discovery, 'localization 1' and so on, mean (of these) or all; of a retrained run student or fused, too. "
                "The run's own if not given.",
            ),
            click.option(
                "--views",
                type=Name("views", ("single", "flip", "paper")),
                default="single",
                show_default=True,
                help="How many looks are averaged; paper: every scale, mirrored too.",
            ),
            click.option(
                "--nms",
                type=float,
                help="Overlap above which the weaker of two boxes of a class goes.  [default: 0.3, discovery 0.4]",
            ),
            click.option(
                "--vote",
                type=float,
                help="A box becomes the mean of those that overlap it at least so much, by score; 0: it stays as it is.  "
                "[default: 0.6 on a frozen trunk, else 0]",
            ),
            click.option(
                "--agree",
                type=float,
                default=0.0,
                show_default=True,
                help="How much it counts in a score that other boxes say the same, of a run that moves boxes: 0.5 suits "
                "photographs.",
            ),
        ]
    ):
        command = option(command)
    return command


def workers_option(command: Command) -> Command:
    return click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=own_cores,
        show_default="all cores, or this process's share of them",
        help="Processes.",
    )(command)


def source_of(options: dict[str, Any]) -> Source:
    """Takes the options of `data_options` out of a command's options."""
    classes = options.pop("classes")
    names = None if classes is None else tuple(name.strip() for name in classes.split(",") if name.strip())
    if names is not None and (not names or len(set(names)) < len(names)):
        raise UsageError(f"--classes {classes}: names separated by commas, each once, were expected")
    return Source(
        options.pop("data"),
        options.pop("format"),
        options.pop("split"),
        options.pop("images"),
        names,
        options.pop("background"),
        options.pop("limit"),
    )


def file_of(options: dict[str, Any]) -> Any:
    """Takes --file and --file-boxes out of a command's options: boxes that somebody made, or None."""
    from melm.proposals import ReadyMade

    file, file_boxes = options.pop("file"), options.pop("file_boxes")
    if file_boxes and not file:
        raise UsageError("--file-boxes says how --file writes boxes, and there is no --file")
    return ReadyMade(file, file_boxes) if file else None


def taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Takes some options out of a command's options."""
    return {name: options.pop(name) for name in names}


def with_option(help: str) -> Callable[[Command], Command]:
    """Other runs beside the one that a command is about."""
    path = click.Path(path_type=Path)
    return click.option("--with", "others", type=path, multiple=True, metavar="RUN", help=f"{help}; can be repeated.")
