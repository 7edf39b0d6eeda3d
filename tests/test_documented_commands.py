"""What the pages say is typed: every command of README and docs is understood, and those of the walk do what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from melm.cli import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WALK = ROOT / "docs" / "tags-to-boxes.md"


def commands_of(text):
    """Lines that start with melm, of code that is indented or fenced; less what follows # as a remark."""
    for line in text.splitlines():
        if re.match(r"(    )?melm [a-z]", line) and "..." not in line:
            yield shlex.split(line, comments=True)


COMMANDS = [(page.name, words) for page in PAGES for words in commands_of(page.read_text(encoding="utf-8"))]


def test_there_are_commands_to_check():
    assert len(COMMANDS) > 30 and {"README.md", "tags-to-boxes.md", "labels.md"} <= {page for page, _ in COMMANDS}


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page} {' '.join(words)}" for page, words in COMMANDS])
def test_every_command_of_the_pages_is_understood(page, words):
    """Its name, its options and how many arguments it takes; nothing is run."""
    name, *arguments = words[1:]
    command = cli.commands[name]
    with click.Context(command, info_name=name) as context:
        command.parse_args(context, arguments)


@pytest.mark.slow
def test_the_walk(tmp_path):
    """All of docs/tags-to-boxes.md, in an empty folder; then what it says is there."""
    blocks = re.findall(r"```sh\n(.*?)```", WALK.read_text(encoding="utf-8"), re.S)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(commands) == 9 and all(words[0] == "melm" for words in commands)
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    run = tmp_path / "runs" / "creatures"
    labels = run / "labels"
    for path in (
        run / "report.html",
        run / "model.onnx",
        labels / "yolo" / "data.yaml",
        labels / "coco" / "annotations.json",
        labels / "voc" / "Annotations",
        labels / "cvat" / "annotations.xml",
        labels / "labelstudio" / "tasks.json",
        labels / "labelstudio" / "labelling-config.xml",
        labels / "csv" / "labels.csv",
        tmp_path / "found" / "detections.csv",
    ):
        assert path.exists(), path
    assert len(list((tmp_path / "found" / "drawn").glob("*.jpg"))) == 20
    assert "CorLoc" in (run / "report.html").read_text(encoding="utf-8")
