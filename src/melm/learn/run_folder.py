"""The folder of a run: what was asked, on what, with what; the log; and the refusal to mix two runs."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from melm.data import Source
from melm.data.records import TaggedImages
from melm.errors import MelmError, UsageError
from melm.files import lock, write_whole

PACKAGES = ("melm", "torch", "numpy", "numba", "opencv-contrib-python-headless", "pillow", "safetensors")
WATCHED = "watched.jsonl"  # what the network believed of some images after every epoch, where that was asked for
RUN_FILES = ("run.json", "log.jsonl", "checkpoint.json", "model.json", "objects.npz", WATCHED)
DECIDES = (
    "config",
    "classes",
    "data_digest",
    "basis",
    "processes",
    "device",
    "retrained",
    "teacher",
    "teaches_along",
    "student_weights",
)  # what may not change between two starts


def data_digest(images: TaggedImages, keys: Sequence[str]) -> str:
    """A name that only these images (by content) with these tags have, wherever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    for image, key in zip(images, keys, strict=True):
        digest.update(json.dumps([image.id, key, image.tags, image.unknown]).encode())
    return digest.hexdigest()


def data_record(source: Source, images: int) -> dict[str, Any]:
    """Where the data lay and how it was read, for people and for reports; what it was is in its digest."""
    return {
        "path": str(source.path),
        "format": source.format,
        "split": source.split,
        "image_folder": None if source.images is None else str(source.images),
        "classes": source.classes and list(source.classes),
        "background": source.background,
        "limit": source.limit,
        "images": images,
    }


def tensors_digest(tensors: Sequence[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """Every place where two JSON values differ, in words."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = sorted({*before, *now})
        return [
            line
            for key in keys
            for line in differences(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if before == now else [f"{name}: {_short(before)} in the run, {_short(now)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


class RunFolder:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log: FileIO | None = None

    def open(
        self,
        about: Mapping[str, Any],
        overwrite: bool,
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda kept: kept,
    ) -> None:
        """Makes the folder, or goes on in one that was made for the same; anything else is refused, naming the difference.
        `complete` names in what is kept there the settings that had no name when it was written."""
        kept: Mapping[str, Any] | None = None if overwrite else self.about()
        if kept is not None:
            kept = complete(kept)
            differs = [
                line for key in DECIDES for line in differences(kept.get(key), about.get(key), key.replace("_", " "))
            ]
            if differs:
                listed = "\n  ".join(differs)
                raise UsageError(
                    f"{self.path} holds another run:\n  {listed}\n"
                    "Name another folder with --out, or start this one anew with --overwrite (one of a recipe: remove it)"
                )
            for left in self.path.glob(".*.tmp"):  # of a killed run: a folder has one writer
                left.unlink(missing_ok=True)
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if overwrite:
                self.clear()
            elif strange := [p.name for p in self.path.iterdir()]:
                raise UsageError(f"{self.path} is not empty and holds no run ({strange[0]}, ...); name another --out")
            write_whole(self.path / "run.json", json.dumps(about, indent=1, ensure_ascii=False).encode())
        except OSError as error:
            raise MelmError(f"{self.path}: cannot be written ({error.strerror}). Name another --out") from None

    def clear(self) -> None:
        """Removes what a run wrote, and nothing else; nothing from a folder that is no run's."""
        if not (self.path / "run.json").exists():
            strange = [p.name for p in self.path.iterdir()] if self.path.is_dir() else []
            if strange:
                raise UsageError(f"{self.path} is not empty and holds no run ({strange[0]}, ...); name another --out")
            return
        for name in RUN_FILES:
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("checkpoint-*.safetensors", "model-*.safetensors", "objects.*json*"):
            for path in self.path.glob(pattern):
                path.unlink()
        for folder in ("tensorboard", "seen"):
            shutil.rmtree(self.path / folder, ignore_errors=True)

    def about(self) -> dict[str, Any] | None:
        """What run.json says, or None where there is none."""
        path = self.path / "run.json"
        try:
            return dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise MelmError(f"{path}: damaged ({error}); start anew with --overwrite") from None

    def open_log(self, length: int) -> None:
        """Opens the log to go on after `length` bytes: what a killed run wrote beyond its checkpoint is done again."""
        path = self.path / "log.jsonl"
        try:
            self._log = path.open("r+b" if path.exists() else "w+b", buffering=0)
            lock(self._log, path)
            length = min(length, path.stat().st_size)  # a log that was cut is gone on with as it is
            self._log.truncate(length)
            self._log.seek(length)
        except OSError as error:
            raise MelmError(f"{path}: cannot be written ({error.strerror})") from None

    def log(self, record: Mapping[str, Any]) -> int:
        """Adds a line; the length of the log after it."""
        assert self._log is not None
        try:
            rest = memoryview(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            while rest:  # once, unless the disk fills up in the middle
                rest = rest[self._log.write(rest) :]
        except OSError as error:
            raise MelmError(
                f"{self.path / 'log.jsonl'}: cannot be written ({error.strerror}). The last checkpoint is whole: "
                "make room and run the same command again"
            ) from None
        return self._log.tell()

    def close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def epochs_of(run: Path) -> list[dict[str, Any]]:
    """What the log says of every finished epoch: `mean` of what was learned, `measured` where it was."""
    path = run / "log.jsonl"
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MelmError(f"{path}: cannot be read ({error.strerror})") from None
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # the last one may still be written
    return [record for record in records if isinstance(record, dict) and "mean" in record]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
