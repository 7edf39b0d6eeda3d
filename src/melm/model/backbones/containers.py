"""Weight files opened by what is in them, whatever they are called. Nothing is unpickled but tensors."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from safetensors.torch import load_file
from torch import Tensor

from melm.errors import MelmError
from melm.model.backbones.backbone import Triple


@dataclass(frozen=True)
class Contents:
    """The tensors of a weight file by the names they have there, and what else it says about its network."""

    kind: str  # "PyTorch", "safetensors", "numpy" or "MatConvNet"
    tensors: dict[str, Tensor]
    mean: Triple | None = None  # of the pixels, red first
    norm: tuple[float, ...] | None = None  # local response normalisation: size, kappa, alpha, beta


def read(path: Path) -> Contents:
    """The contents of a weight file: PyTorch's, safetensors, numpy's .npz or MatConvNet's .mat."""
    try:
        with path.open("rb") as file:
            start = file.read(20)
    except OSError as error:
        raise MelmError(f"{path}: cannot be read ({error.strerror})") from None
    if start.startswith(b"PK"):
        return _read_npz(path) if _is_npz(path) else _read_torch(path)
    if start[:1] == b"\x80":  # a pickle: how PyTorch wrote files before 1.6
        return _read_torch(path)
    if start.startswith(b"MATLAB 5.0"):
        return _read_mat(path)
    if start.startswith(b"\x89HDF") or start.startswith(b"MATLAB 7.3"):
        raise MelmError(f"{path}: an HDF5 file (Matlab 7.3 or Keras) is not read; save it with -v7, or as .npz")
    if start.startswith(b"\x93NUMPY"):
        raise MelmError(f"{path}: a single .npy array, often with pickled objects, is not read; save layers as .npz")
    if len(start) > 8 and start[8:9] == b"{":  # the length of the header, and the header, which is JSON
        return _read_safetensors(path)
    raise MelmError(
        f"{path}: not a weight file that is known (it begins with {start[:8]!r}); "
        "PyTorch's .pth, .safetensors, .npz and MatConvNet's .mat are read"
    )


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise MelmError(f"{path}: damaged or cut short ({error}). Get the file again") from None


def _read_npz(path: Path) -> Contents:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tensors = {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays.files}
    except Exception as error:  # objects, cut files and types that PyTorch has not: each raises its own
        raise MelmError(f"{path}: not a readable .npz of plain arrays ({error})") from None
    return Contents("numpy", tensors)


def _read_safetensors(path: Path) -> Contents:
    try:
        return Contents("safetensors", load_file(path))
    except Exception as error:  # the reader's own error class is not a promise
        raise MelmError(f"{path}: not a readable safetensors file ({error})") from None


def _read_torch(path: Path) -> Contents:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a crafted or cut pickle can raise anything
        reason = str(error).split("\n")[0][:200]
        raise MelmError(
            f"{path}: refused, as it is damaged or holds more than tensors ({type(error).__name__}: {reason}). "
            "Save a plain state dict: torch.save(model.state_dict(), FILE)"
        ) from None
    for key in ("state_dict", "model"):  # where checkpoints keep it
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    tensors = {str(k): v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not tensors:
        raise MelmError(f"{path}: holds a {type(found).__name__} without tensors; a state dict was expected")
    return Contents("PyTorch", {name.removeprefix("module."): tensor for name, tensor in tensors.items()})


def _read_mat(path: Path) -> Contents:
    """MatConvNet's networks: a list of layers, each with its weights as height, width, in, out."""
    try:
        file: Any = io.BytesIO(path.read_bytes())
        found: dict[str, Any] = scipy.io.loadmat(file, simplify_cells=True)
    except Exception as error:  # scipy's reader raises many things for a file that is cut
        raise MelmError(f"{path}: not a readable .mat file ({error})") from None
    found = found["net"] if isinstance(found.get("net"), dict) else found
    if "layers" not in found:
        names = ", ".join(name for name in found if not name.startswith("__")) or "nothing"
        raise MelmError(f"{path}: holds {names}; `layers` was expected, as MatConvNet's simple networks have")
    tensors: dict[str, Tensor] = {}
    norm: tuple[float, ...] | None = None
    layers = found["layers"]
    for layer in [layers] if isinstance(layers, dict) else layers:
        name, kind = str(layer.get("name", "?")), layer.get("type")
        if kind == "bnorm":
            raise MelmError(f"{path}: layer {name} is batch normalisation, which the classic networks here do not have")
        if kind in ("lrn", "normalize") and np.size(layer.get("param", ())) == 4:
            norm = tuple(float(value) for value in layer["param"])
        pair = layer["weights"] if "weights" in layer else (layer.get("filters"), layer.get("biases"))
        if kind == "conv" and len(pair) == 2 and all(part is not None for part in pair):
            for part, array in zip(("weight", "bias"), pair, strict=True):
                tensors[f"{name}.{part}"] = torch.from_numpy(np.array(array, np.float32))
    return Contents("MatConvNet", tensors, _average_colour(found), norm)


def _average_colour(network: dict[str, Any]) -> Triple | None:
    """The mean of averageImage over its pixels, as images here are of every size."""
    holder = network.get("meta", network)
    average = holder.get("normalization", {}).get("averageImage") if isinstance(holder, dict) else None
    if average is None or np.size(average) == 0 or np.size(average) % 3:
        return None
    red, green, blue = np.asarray(average, np.float64).reshape(-1, 3).mean(axis=0)
    return float(red), float(green), float(blue)
