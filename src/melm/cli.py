"""The command line. Each command prints plain words; `--json` prints the same for machines.

Exit codes: 0 fine, 1 the data or the run has problems, 2 wrong use, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import click

import melm
from melm.commands.data import check, proposals
from melm.commands.detecting import demo, detect, scenes
from melm.commands.exporting import export
from melm.commands.labelling import label
from melm.commands.learning import features, presets, retrain, train
from melm.commands.measuring import evaluate
from melm.commands.reporting import report
from melm.commands.running import run
from melm.errors import MelmError, UsageError, did_you_mean
from melm.memory import keep_freed_memory

RESUMABLE = ("proposals", "features", "train", "retrain", "detect", "label", "evaluate", "run", "demo")


class Commands(click.Group):
    """A group that asks "did you mean" for a mistyped command, as click itself does for options."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise UsageError(f"there is no command {args[0]!r}.{did_you_mean(args[0], known)} See melm --help.")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(melm.__version__, prog_name="melm", message="%(prog)s %(version)s")
def cli() -> None:
    """Object detectors learned from image tags alone.

    \b
    Example:
      melm check photos/                    what is in a folder of tagged images, and what is wrong with it
      melm run photos/ --out run            learn a detector from the tags, label every image, write a report
      melm label run photos/ --to yolo      the boxes for another tool
      melm detect run new-photos/ --out o   find things with it where there are no tags
      melm evaluate run --data VOC2007      measure it on data that has boxes
      melm run --recipe FILE --data DATA    learn and measure a whole table of results
      melm demo                             all of it on a generated data set, in minutes
    """


for command in (
    run,
    check,
    proposals,
    presets,
    features,
    train,
    retrain,
    label,
    report,
    detect,
    export,
    evaluate,
    scenes,
    demo,
):
    cli.add_command(command)


def main() -> None:
    """Runs the command line; a user's mistake ends in one line of words, never in a traceback."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads of PyTorch that wait for each other keep their core by spinning. Briefly is enough: beside any other busy
        # program, the trunk is then three times faster (docs/performance.md).
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names and terminals of any encoding
    try:
        code = cli.main(prog_name="melm", standalone_mode=False)
    except click.exceptions.Abort:
        code = _stopped()
    except KeyboardInterrupt:
        code = _stopped()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except UsageError as error:
        print(f"melm: {error}", file=sys.stderr)
        code = 2
    except MelmError as error:
        print(f"melm: {error}", file=sys.stderr)
        code = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output went away
        code = 1
    _leave(code)


def _leave(code: int | None) -> NoReturn:
    """Ends the process. One of many ends at once: a thread of gloo that still lets go of what it sent while the interpreter is
    taken down would abort it (pytorch/pytorch#179291), and torchrun would call all of them failed."""
    processes = sys.modules.get("melm.learn.processes")  # not there where no command needed it
    if processes is not None and processes.talked:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code or 0)
    sys.exit(code)


def _stopped() -> int:
    resumable = len(sys.argv) > 1 and sys.argv[1] in RESUMABLE
    goes_on = " What was finished is kept; the same command goes on from here." if resumable else ""
    print(f"melm: stopped.{goes_on}", file=sys.stderr)
    return 130
