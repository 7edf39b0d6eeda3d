"""The loop. One step is: some images forward and back, one change of the weights, one line in the log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from melm.errors import MelmError
from melm.learn.checkpoint import Position, load_pair, optimizer_tensors, restore, restore_optimizer, save_pair
from melm.learn.items import Item, prepared
from melm.learn.network import Network
from melm.learn.presets import LearnConfig
from melm.learn.processes import Processes, a_thread_each
from melm.learn.run_folder import RunFolder
from melm.model.cliques import NotFinite
from melm.model.dropout import seeded
from melm.model.melm import Losses, MinEntropyLoss
from melm.model.precision import products
from melm.model.trunks import FrozenTrunk

SAVE_EVERY = 60.0  # seconds
AFTER_EPOCH = Callable[[int, Network, float], dict[str, float] | None]  # epochs done, network, r: figures for the log


class Step(nn.Module):
    """One image through the network to its loss; what `DistributedDataParallel` wraps."""

    figures = ("loss", "discovery", "localization", "global_entropy", "local_entropy")

    def __init__(self, network: Network, config: LearnConfig) -> None:
        super().__init__()
        self.network = network
        self.loss = MinEntropyLoss(config.settings)

    @property
    def at_once(self) -> bool:
        """Whether the images of a step may be worked on at once, a core each: where little is computed of each."""
        return isinstance(self.network.trunk, FrozenTrunk)

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """What the log tells the gradient of."""
        melm = self.network.melm
        return {"discovery": list(melm.discovery.parameters()), "localization": list(melm.localization.parameters())}

    def rates(self) -> list[tuple[float, list[nn.Parameter]]]:
        """What learns, and at which share of the learning rate."""
        return [(1.0, [p for p in self.network.parameters() if p.requires_grad])]

    def forward(
        self, item: Item, strength: float, previous: Tensor | None
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """The loss, its figures, and the objectness that `feedback = previous` asks for."""
        regions = item.regions
        if regions is None:
            assert item.pixels is not None
            regions = self.network.trunk.look(item.pixels, item.proposals, item.scale, item.flip)
        output = self.network.melm(regions, item.proposals, item.prior, strength, previous, item.score, item.share)
        losses: Losses = self.loss(output, item.proposals, item.tags, item.known, item.order)
        localization = sum(losses.localization, losses.discovery.new_zeros(()))
        figures = [losses.total, losses.discovery, localization, losses.global_entropy, losses.local_entropy]
        return losses.total, [figure.detach() for figure in figures], output.objectness


@dataclass
class Learner:
    """Everything a run changes while it learns, and how it is put away and taken up again."""

    step: Any  # `Step`, or another module with its figures, parts, rates and at_once
    config: Any  # `LearnConfig`, or another that has its rate and strength
    items: Any  # `Items`, or others with its order, load and images
    processes: Processes
    run: RunFolder

    def __post_init__(self) -> None:
        config, self.network = self.config, self.step.network
        learned = [{"params": parameters, "share": share} for share, parameters in self.step.rates()]
        rate, decay = config.learning_rate, config.weight_decay
        self.optimizer: torch.optim.Optimizer  # fused: one pass over each weight
        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(learned, rate, momentum=config.momentum, weight_decay=decay, fused=True)
        else:
            self.optimizer = torch.optim.AdamW(learned, rate, weight_decay=decay, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", enabled=config.precision == "fp16")
        self.position = Position()
        self.previous: dict[int, Tensor] = {}  # feedback = previous: objectness of each image's last look
        self.count = 0  # of checkpoints

    def learned(self) -> dict[str, Tensor]:
        """What changes: parameters that learn. The rest comes from the weights and the basis every time."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def save(self) -> None:
        self.count += 1
        tensors = {f"network.{name}": value for name, value in self.learned().items()}
        tensors |= optimizer_tensors(self.optimizer)
        tensors |= {f"previous.{i}": value for i, value in self.previous.items()}
        position = self.position
        position.scaler = dict(self.scaler.state_dict())
        save_pair(self.run.path, "checkpoint", tensors, {"count": self.count, "position": position.__dict__})

    def take_up(self) -> bool:
        """Goes on from the run's checkpoint, if there is one."""
        pair = load_pair(self.run.path, "checkpoint")
        if pair is None:
            return False
        (tensors, card), path = pair, self.run.path / "checkpoint.json"
        try:
            self.position, self.count = Position(**card["position"]), int(card["count"])
        except (KeyError, TypeError, ValueError) as error:
            raise MelmError(f"{path}: damaged ({error}); start anew with --overwrite") from None
        restore(self.learned(), tensors, "network.", path)
        restore_optimizer(self.optimizer, tensors)
        self.previous = {int(n.split(".")[1]): t for n, t in tensors.items() if n.startswith("previous.")}
        if self.position.scaler:
            self.scaler.load_state_dict(self.position.scaler)
        return True

    def where(self) -> str:
        """Where it stands, in words."""
        position, epochs = self.position, self.config.epochs
        if position.epoch >= epochs:
            return f"{self.run.path} is learned already"
        return f"going on in {self.run.path} at epoch {position.epoch + 1} of {epochs}, step {position.step + 1}"


def learn(learner: Learner, after_epoch: AFTER_EPOCH | None, on_log: Callable[[dict[str, Any]], None]) -> None:
    """Runs all epochs from where the learner stands. The random numbers of a step come from the seed, the epoch and the
    place of its images alone, so nothing about chance has to be kept."""
    config, processes, items, position = learner.config, learner.processes, learner.items, learner.position
    step_of = processes.wrap(learner.step)
    batch = config.accumulate * processes.world  # images a step
    steps = math.ceil(len(items) / batch)
    started, saved, spent = time.monotonic(), time.monotonic(), position.seconds
    with processes.steps("learning", config.epochs * steps, position.epoch * steps + position.step) as progress:
        while position.epoch < config.epochs:
            epoch = position.epoch
            strength = config.strength(epoch)
            for group in learner.optimizer.param_groups:
                group["lr"] = config.rate(epoch) * group["share"]
            learner.network.train()
            order = items.order(epoch)
            with _side_by_side(learner) as pool:
                for step, mine in _shares(learner, order, batch, epoch):
                    images = len(order[step * batch : (step + 1) * batch])
                    figures = one_step(learner, step_of, mine, images, strength, pool)
                    for name, value in figures.items():
                        position.sums[name] = position.sums.get(name, 0.0) + value
                    position.step = step + 1
                    save_now = processes.first and time.monotonic() - saved >= SAVE_EVERY
                    if processes.first:
                        record: dict[str, Any] = {
                            "epoch": epoch,
                            "step": step,
                            "rate": config.rate(epoch),
                            "strength": strength,
                            **figures,
                        }
                        position.log_bytes = learner.run.log(record)
                        on_log(record)
                    if save_now and step + 1 < steps:
                        position.seconds = spent + time.monotonic() - started
                        before = time.monotonic()
                        learner.save()
                        saved = time.monotonic() + 20 * (time.monotonic() - before)  # large models are saved less often
                    progress.advance(note=_note(epoch, config.epochs, position))
            record = {"epoch": epoch, "mean": {k: v / steps for k, v in position.sums.items()}}
            learner.network.eval()
            if after_epoch is not None and processes.first:
                record["measured"] = after_epoch(epoch + 1, learner.network, strength)
            position.epoch, position.step, position.sums = epoch + 1, 0, {}
            position.seconds = spent + time.monotonic() - started
            if processes.first:
                position.log_bytes = learner.run.log({**record, "seconds": round(position.seconds, 1)})
                on_log(record)
                learner.save()
                saved = time.monotonic()
            processes.wait()


def _shares(learner: Learner, order: list[int], batch: int, epoch: int) -> Iterator[tuple[int, list[tuple[int, Item]]]]:
    """Each step of the epoch that is still to do, with this process's images and their places in the epoch.

    The last step may be short. A process for which it has no image takes the first one again, with place -1: it counts nothing.
    """
    processes, begin = learner.processes, learner.position.step
    places = []
    for step in range(begin, math.ceil(len(order) / batch)):
        in_step = list(range(step * batch, min((step + 1) * batch, len(order))))
        most = math.ceil(len(in_step) / processes.world)
        own = list(processes.share(in_step))
        places.append((step, own + [-1] * (most - len(own))))
    wanted = [order[max(place, 0)] for _, own in places for place in own]
    coming = prepared(lambda index: learner.items.load(index, epoch), wanted)
    for step, own in places:
        yield step, [(place, next(coming)) for place in own]


@contextmanager
def _side_by_side(learner: Learner) -> Iterator[ThreadPoolExecutor | None]:
    """Threads that work on the images of a step at once, a core each; None where they come one after another."""
    several = learner.processes.world == 1 and learner.config.accumulate > 1 and learner.step.at_once
    with a_thread_each(learner.processes.device, learner.config.accumulate) if several else nullcontext(1) as threads:
        if threads == 1:
            yield None
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="melm-step") as pool:
            yield pool


def one_step(
    learner: Learner,
    step_of: nn.Module,
    mine: Iterable[tuple[int, Item]],
    images: int,
    strength: float,
    pool: ThreadPoolExecutor | None = None,
) -> dict[str, float]:
    """Forward and back for this process's images, then one change of the weights; mean figures over all images of the step."""
    config, processes = learner.config, learner.processes
    mine = list(mine)
    weights = [p for p in learner.step.parameters() if p.requires_grad]
    looked: Iterable[_Looked]
    if pool is None:
        looked = (
            _look(learner, step_of, place, item, images, strength, turn == len(mine) - 1)
            for turn, (place, item) in enumerate(mine)
        )
    else:
        looked = pool.map(lambda one: _look(learner, step_of, one[0], one[1], images, strength, weights=weights), mine)
    sums = torch.zeros(len(learner.step.figures), dtype=torch.float64)
    for (place, item), (of_image, objectness, gradients) in zip(mine, looked, strict=True):
        if gradients is not None:  # in the order of the images, whichever was ready first
            _add(weights, gradients)
        if place >= 0:
            sums += torch.stack([value.double().cpu() for value in of_image]) / images
        if objectness is not None and config.remembers:
            learner.previous[item.index] = objectness.cpu()
    for weight in weights:
        if weight.grad is None:  # of a student whose images none of these were: its step is that of many processes
            weight.grad = torch.zeros_like(weight)
    sums = processes.total(sums.to(processes.device)).cpu()
    figures = dict(zip(learner.step.figures, sums.tolist(), strict=True))
    learner.scaler.unscale_(learner.optimizer)
    for part, parameters in learner.step.parts().items():
        figures[f"gradient_{part}"] = gradient_norm(parameters)
    figures["gradient"] = gradient_norm(learner.network.parameters())
    if not math.isfinite(figures["loss"]) or (not math.isfinite(figures["gradient"]) and config.precision != "fp16"):
        own = _paths(learner, [item for place, item in mine if place >= 0])
        every = [path for of_process in processes.gather(own) for path in of_process]
        raise _not_finite(learner, every, "the loss or its gradient")
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    learner.optimizer.zero_grad(set_to_none=True)
    return figures


_Looked = tuple[list[Tensor], Tensor | None, Sequence[Tensor | None] | None]


def _look(
    learner: Learner,
    step_of: nn.Module,
    place: int,
    item: Item,
    images: int,
    strength: float,
    last: bool = True,
    weights: Sequence[nn.Parameter] | None = None,
) -> _Looked:
    """Forward and back for one image: its figures, its objectness, and its gradient by `weights`; without them it is added to
    that of the images before it."""
    config, processes, counts = learner.config, learner.processes, place >= 0
    alone = isinstance(step_of, DistributedDataParallel) and not last
    # of dropout: the same whichever process and thread it is
    with seeded(_seed(config.seed, learner.position.epoch, place), everywhere=weights is None):
        with step_of.no_sync() if alone else nullcontext(), _autocast(config, processes):  # type: ignore[operator]
            try:
                before = learner.previous.get(item.index)
                before = None if before is None else before.to(processes.device)
                total, of_image, objectness = step_of(item.to(processes.device), strength, before)
            except NotFinite:
                raise _not_finite(learner, _paths(learner, [item]), "a score") from None
            loss = total * (processes.world / images if counts else 0.0)  # DDP takes the mean over processes
        if not math.isfinite(float(total.detach())) and processes.world == 1:
            raise _not_finite(learner, _paths(learner, [item]), "the loss")
        if weights is not None:
            return of_image, objectness, torch.autograd.grad(learner.scaler.scale(loss), weights, allow_unused=True)
        learner.scaler.scale(loss).backward()
    return of_image, objectness, None


def _add(weights: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        if gradient is None:
            continue
        if weight.grad is None:  # its own, for several may have been given the same one; laid out as the weight
            weight.grad = torch.empty_like(weight).copy_(gradient)
        else:
            weight.grad += gradient


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence([part + 1 for part in parts]).generate_state(1, np.uint64)[0] >> 1)


def _autocast(config: LearnConfig, processes: Processes) -> Any:
    if config.precision == "fp32" or processes.device.type == "cpu":
        return products(config.precision, processes.device)
    kind = torch.bfloat16 if config.precision == "bf16" else torch.float16
    return torch.autocast(processes.device.type, kind)


def _paths(learner: Learner, items: list[Item]) -> list[str]:
    return [str(learner.items.images[item.index].path) for item in items]


def _not_finite(learner: Learner, paths: list[str], what: str) -> MelmError:
    position = learner.position
    last = learner.run.path / "checkpoint.json"
    kept = f"the last good checkpoint is {last}" if last.is_file() else "there is no checkpoint yet"
    return MelmError(
        f"{what} is not a finite number at epoch {position.epoch + 1}, step {position.step + 1}, "
        f"with {', '.join(paths)}; {kept}. "
        "A lower learning_rate, or leaving the image out, may help"
    )


def _note(epoch: int, epochs: int, position: Position) -> str:
    mean = {name: value / max(position.step, 1) for name, value in position.sums.items()}
    text = f"epoch {epoch + 1} of {epochs}, loss {mean['loss']:.3f}"
    if "global_entropy" in mean:
        text += f", entropy {mean['global_entropy']:.3f} global, {mean['local_entropy']:.4f} local"
    return text
