"""Progress in plain lines where there is no terminal."""

import io

import pytest

from melm import progress
from melm.progress import Steps, duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59, "59 s")],
)
def test_duration(seconds, words):
    assert duration(seconds) == words


def test_lines_say_how_much_is_left(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    with Steps("proposals", 100, stream) as steps:
        for _ in range(100):
            clock[0] += 1
            steps.advance()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "proposals: 2 of 100 (2%), 1 min 38 s left"
    assert lines[-1] == "proposals: 100 of 100 (100%), in 1 min 40 s"
    assert len(lines) < 12


def test_short_jobs_are_silent():
    stream = io.StringIO()
    with Steps("check", 3, stream) as steps:
        for _ in range(3):
            steps.advance()
    assert stream.getvalue() == ""
