"""Runs commands of melm one after the other, some of them ended by force: `python turns.py TURNS`, where TURNS is JSON.

A turn has the `arguments` of melm. One with `file` and `lines`, or with `seconds`, is killed with SIGKILL once that file has that
many more lines, or after that time. No file may grow beyond `limit` bytes (more than the file `beyond` has), as on a full disk.
The last line of the output are the exit codes, -9 for a killed turn.
"""

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # what a first optimizer imports; all of it here and once, for all turns

import melm.detect.run
import melm.export.detections
import melm.learn.loop
import melm.learn.train
from melm.cli import main
from melm.model.cliques import partition_cliques


def lines_of(path):
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def turn(arguments, limit=None, beyond=None, file=None, lines=None, seconds=None, save_every=0.0):
    before = lines_of(Path(file)) if file else 0
    child = os.fork()
    if child == 0:
        code = 70
        try:
            if limit is not None:
                limit += Path(beyond).stat().st_size if beyond else 0
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            melm.learn.loop.SAVE_EVERY = save_every  # 0: checkpoints as often as may be
            os.dup2(2, 1)
            sys.argv = ["melm", *arguments]
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    started = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        enough = lines is not None and lines_of(Path(file)) >= before + lines
        if enough or (seconds is not None and time.monotonic() - started >= seconds):
            time.sleep(random.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.001)


if __name__ == "__main__":
    partition_cliques(torch.rand(3, 4), torch.rand(3))  # compiled or loaded
    print(json.dumps([turn(**each) for each in json.loads(sys.argv[1])]))
