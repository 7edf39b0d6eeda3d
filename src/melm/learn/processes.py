"""One process or many: what PyTorch's own engine (torchrun) tells this one, and the few things they say to each other."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from melm.errors import MelmError, UsageError, one_of
from melm.model.precision import bf16_is_fast
from melm.progress import Steps

Thing = TypeVar("Thing")
DEVICES = ("auto", "cpu", "cuda")
# Shares of long work end hours apart, on machines that are not alike. Nobody waits for a process that
# died: torchrun ends them all.
PATIENCE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among `world`."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, things: Sequence[Thing]) -> Sequence[Thing]:
        """This process's part of some work."""
        return things[self.rank :: self.world]

    def steps(self, name: str, total: int, done: int = 0) -> Steps:
        """Progress, which only the first process shows."""
        return Steps(name, total, None if self.first else io.StringIO(), done)

    def check_precision(self, precision: str) -> None:
        """Refuses what this device cannot do in reasonable time."""
        if self.device.type == "cpu" and not (
            precision == "fp32" or (precision == "bf16" and bf16_is_fast(self.device))
        ):
            raise UsageError(
                f"precision {precision}: too slow on this CPU, many times as slow as fp32. bf16 needs AVX-512 BF16, as servers "
                "have since about 2023; fp16 is for GPUs. Leave --precision out"
            )

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with gradients averaged over all processes."""
        if self.world == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer versions of PyTorch have another name for it
            return DistributedDataParallel(module, device_ids=devices, broadcast_buffers=False)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            with _talking():
                dist.all_reduce(values)
        return values

    def gather(self, thing: Thing) -> list[Thing]:
        """What every process has, in their order."""
        if self.world == 1:
            return [thing]
        everything: list[Thing | None] = [None] * self.world
        with _talking():
            dist.all_gather_object(everything, thing)
        return everything  # type: ignore[return-value]

    def first_does(self, work: Callable[[], Thing]) -> Thing:
        """What `work` gives in the first process, in all of them; the others wait. An error of it is raised in all."""
        if self.world == 1:
            return work()
        result: list[tuple[Thing | None, MelmError | None]] = [(None, None)]
        if self.first:
            try:
                result = [(work(), None)]
            except MelmError as error:
                result = [(None, error)]
            sys.stdout.flush()  # torchrun ends all processes with the first that fails, whatever they have yet to say
        with _talking():
            dist.broadcast_object_list(result)
        thing, wrong = result[0]
        if wrong is not None:
            raise wrong
        return thing  # type: ignore[return-value]

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            with _talking():
                dist.barrier()


@contextmanager
def a_thread_each(device: torch.device, most: int | None = None) -> Iterator[int]:
    """How many images to read at once: on a CPU as many as PyTorch has threads, each with one of them, for threads that share
    the work of one image wait for each other at every layer. On a GPU one. Where there are at `most` fewer images than threads,
    each has several."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield 1
        return
    at_once = min(threads, most or threads)
    torch.set_num_threads(threads // at_once)
    try:
        yield at_once
    finally:
        torch.set_num_threads(threads)


talked = False  # whether this process has been one of many
ALONE = Processes(0, 1, torch.device("cpu"))


@contextmanager
def _talking() -> Iterator[None]:
    """A process that is gone is told in words by those that hear no more of it."""
    try:
        yield
    except RuntimeError as error:  # of gloo and nccl
        first_line = str(error).partition("\n")[0]
        raise MelmError(
            f"another process ended before its work was done ({first_line}). It says why, if it could. "
            "The same command goes on from here"
        ) from error


def device_named(name: str) -> torch.device:
    """The device of that name; on a GPU, that of this process among those that torchrun started on this machine."""
    one_of("device", name, DEVICES)
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UsageError("--device cuda: PyTorch finds no GPU here. Leave it out, or install a PyTorch built for CUDA")
    return torch.device("cuda", local_rank) if there and name != "cpu" else torch.device("cpu")


@contextmanager
def joined(device: str = "auto") -> Iterator[Processes]:
    """This process, together with the others that torchrun started, if it did."""
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    place = device_named(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world == 1:
        yield Processes(0, 1, place)
        return
    global talked
    mine = not dist.is_initialized()
    if mine:
        talked = True
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Processes(rank, world, place)
    finally:
        if mine:
            dist.destroy_process_group()
