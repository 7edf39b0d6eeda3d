"""The same work for many items on all cores: results as they come, no orphans, and words for a worker that died."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from melm.errors import MelmError

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_cores() -> int:
    """The same, where torchrun has started several processes on this machine: the share of one of them."""
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def for_each(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, in the order of completion. One worker means this process."""
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    waiting = iter(items)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
    running: dict[Future[Result], Item] = {}
    finished = False
    try:
        while True:
            with _without_main():
                # a short queue: memory does not grow with the items
                for item in islice(waiting, 4 * workers - len(running)):
                    running[pool.submit(work, item)] = item
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                result = future.result()
                yield running.pop(future), result
        finished = True
    except BrokenProcessPool:
        for future in [future for future in wait(running).done if future.exception() is None]:
            yield running.pop(future), future.result()
        in_hand = "\n  ".join(str(item) for item in list(running.values())[: 2 * workers])
        raise MelmError(
            f"a worker process died (killed, or out of memory?) while one of these was in hand:\n  {in_hand}\n"
            "Run the same command again, with fewer --workers if memory was short."
        ) from None
    finally:
        pool.shutdown(wait=finished, cancel_futures=True)


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, in the order of completion, for work that leaves Python alone: no process has to be started,
    nothing is sent. An error ends it when what is in hand is done."""
    if threads <= 1:
        for item in items:
            yield item, work(item)
        return
    waiting = iter(items)
    pool = ThreadPoolExecutor(threads)
    running: dict[Future[Result], Item] = {}
    try:
        while True:
            for item in islice(waiting, 2 * threads - len(running)):
                running[pool.submit(work, item)] = item
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item = running.pop(future)
                yield item, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Workers started in here do not import the user's script, which need not be guarded against being run again."""
    import __main__ as main

    hidden = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """A parent that was killed cannot end its workers: they end themselves."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
