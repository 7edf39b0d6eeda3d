"""Work on many processes: complete, in words when a worker dies, and without orphans."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from melm.errors import MelmError
from melm.workers import for_each, in_threads


def square(x):
    return x * x


def die_at_seven(x):
    if x == 7:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def fail_at_three(x):
    if x == 3:
        raise MelmError("item 3 is bad")
    return x


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_once(workers):
    assert sorted(for_each(square, range(30), workers)) == [(x, x * x) for x in range(30)]


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_once_in_threads(threads):
    assert sorted(in_threads(square, range(30), threads)) == [(x, x * x) for x in range(30)]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_thread_is_raised_and_little_is_begun_after_it(threads):
    begun = []

    def work(x):
        begun.append(x)
        return fail_at_three(x)

    with pytest.raises(MelmError, match="item 3 is bad"):
        for _ in in_threads(work, range(1000), threads):
            pass
    assert len(begun) < 30


def test_a_dead_worker_is_named_with_what_it_held_and_the_rest_is_kept():
    done = []
    with pytest.raises(MelmError, match=r"a worker process died.*\n  (.*\n  )*7\n") as error:
        for item, _ in for_each(die_at_seven, range(30), 2):
            done.append(item)
            time.sleep(1 if len(done) == 1 else 0)  # others are done before their results are asked for
    assert "Run the same command again" in str(error.value)
    assert set(range(7)) <= set(done) and 7 not in done


def test_an_error_of_a_worker_comes_through():
    with pytest.raises(MelmError, match="item 3 is bad"):
        list(for_each(fail_at_three, range(30), 2))


SLOW = """
import os, time
from pathlib import Path
def wait(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(60)
"""
# As people write scripts: nothing keeps it from being run again by every worker that imports it.
SCRIPT = """
import sys
from melm.workers import for_each, in_threads
from slow import wait
list(for_each(wait, [sys.argv[1]] * 4, 2))
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    started = tmp_path / "started"
    started.mkdir()
    parent = subprocess.Popen([sys.executable, script, started], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    deadline = time.time() + 60
    while len(list(started.iterdir())) < 2 and time.time() < deadline:
        time.sleep(0.1)
    pids = [int(path.name) for path in started.iterdir()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.time() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
