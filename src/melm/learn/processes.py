"""One process or many: what PyTorch's own engine (torchrun) tells this one, and the few things they say to each other."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from melm.errors import UsageError, one_of
from melm.progress import Steps

Thing = TypeVar("Thing")
DEVICES = ("auto", "cpu", "cuda")


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
            dist.all_reduce(values)
        return values

    def gather(self, thing: Thing) -> list[Thing]:
        """What every process has, in their order."""
        if self.world == 1:
            return [thing]
        everything: list[Thing | None] = [None] * self.world
        dist.all_gather_object(everything, thing)
        return everything  # type: ignore[return-value]

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def a_thread_each(device: torch.device) -> Iterator[int]:
    """How many images to read at once: on a CPU as many as PyTorch has threads, each with one of them, for threads that share
    the work of one image wait for each other at every layer. On a GPU one."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield 1
        return
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def device_named(name: str, local_rank: int = 0) -> torch.device:
    one_of("device", name, DEVICES)
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UsageError("--device cuda: PyTorch finds no GPU here. Leave it out, or install a PyTorch built for CUDA")
    return torch.device("cuda", local_rank) if there and name != "cpu" else torch.device("cpu")


@contextmanager
def joined(device: str = "auto") -> Iterator[Processes]:
    """This process, together with the others that torchrun started, if it did."""
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    place = device_named(device, int(os.environ.get("LOCAL_RANK", 0)))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world == 1:
        yield Processes(0, 1, place)
        return
    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(rank, world, place)
    finally:
        if mine:
            dist.destroy_process_group()
