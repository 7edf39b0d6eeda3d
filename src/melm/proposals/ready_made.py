"""Proposal files that other people made: Fast R-CNN's .mat, .npz, and the .pkl files of other projects."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from numpy.typing import NDArray

from melm.data.images import ENDINGS
from melm.errors import MelmError, one_of
from melm.proposals.record import FILE_BOXES

# How boxes are written unless said otherwise: by their edges (xyxy), or by first and last pixel counted from 0 or 1.
USUAL = {".mat": "yxyx1", ".pkl": "xyxy0", ".pickle": "xyxy0", ".npz": "xyxy"}


class ReadyMade:
    """The boxes of a proposal file, found by image id."""

    def __init__(self, path: Path, file_boxes: str | None = None) -> None:
        ending = path.suffix.lower()
        if ending not in USUAL:
            raise MelmError(f"{path}: a proposal file ends in .mat, .npz or .pkl")
        self.path = path
        self.file_boxes = one_of("way to write boxes", file_boxes or USUAL[ending], FILE_BOXES)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise MelmError(f"{path}: cannot be read ({error.strerror})") from None
        self.digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        reader = {".mat": _read_mat, ".npz": _read_npz}.get(ending, _read_pickle)
        self.ids, self.arrays = reader(data, path)
        if self.ids is not None and len(self.ids) != len(self.arrays):
            raise MelmError(f"{path}: {len(self.ids)} images, but boxes for {len(self.arrays)}")

    def match(self, image_ids: Sequence[str]) -> list[NDArray[np.float64]]:
        """Boxes by edges and scores (n, 5) for each image of a data set. Ids match whole, by file name, or as numbers."""
        if self.ids is None:
            if len(self.arrays) != len(image_ids):
                raise MelmError(
                    f"{self.path}: has no image ids, and boxes for {len(self.arrays)} images "
                    f"where the data has {len(image_ids)}; "
                    "choose the split it was made for"
                )
            return [self._corners(array, id) for array, id in zip(self.arrays, image_ids, strict=True)]
        found = _matches([str(id) for id in self.ids], image_ids)
        missing = [id for id, i in zip(image_ids, found, strict=True) if i is None]
        if missing:
            listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
            raise MelmError(
                f"{self.path}: no boxes for image {listed}. Its first ids are {', '.join(map(str, self.ids[:3]))}"
            )
        return [self._corners(self.arrays[i], id) for i, id in zip(found, image_ids, strict=True) if i is not None]

    def _corners(self, array: Any, id: str) -> NDArray[np.float64]:
        boxes = np.asarray(array)
        if boxes.size == 0:
            return np.zeros((0, 5))
        if boxes.ndim != 2 or boxes.shape[1] not in (4, 5) or boxes.dtype.kind not in "iuf":
            found = f"shape {boxes.shape} and type {boxes.dtype}"
            raise MelmError(f"{self.path}: the boxes of image {id} have {found}; (n, 4) numbers were expected")
        scores = boxes[:, 4:].astype(np.float64) if boxes.shape[1] == 5 else np.zeros((len(boxes), 1))
        boxes = boxes[:, :4].astype(np.float64)
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise MelmError(f"{self.path}: a box of image {id} is not finite")
        if self.file_boxes.startswith("yxyx"):
            boxes = boxes[:, [1, 0, 3, 2]]
        if self.file_boxes != "xyxy":
            boxes -= int(self.file_boxes[-1])
            boxes[:, 2:] += 1  # the last pixel is in the box
        return np.concatenate([boxes, scores], axis=1)


def check_fits(boxes: NDArray[np.float64], width: int, height: int, what: str) -> None:
    """Refuses boxes that were made for an image of another size, or whose columns are in another order."""
    if len(boxes) == 0:
        return
    over = np.maximum(-boxes[:, :2], boxes[:, 2:4] - [width, height]).max(axis=1)
    turned = (boxes[:, 2:4] < boxes[:, :2]).any(axis=1)
    bad = np.flatnonzero((over > 1) | turned)
    if len(bad):
        x1, y1, x2, y2 = boxes[bad[0], :4]
        raise MelmError(
            f"{what}: {len(bad)} of {len(boxes)} boxes do not fit its {width} x {height} pixels, "
            f"the first is x {x1:g} to {x2:g}, y {y1:g} to {y2:g}. "
            "Was the file made for images of another size, or with another order of columns (--file-boxes)?"
        )


def _matches(file_ids: Sequence[str], image_ids: Sequence[str]) -> list[int | None]:
    """For each image the entry of the file that is its own: by the whole id, else by bare file name or number.

    A bare name must be the only one of its kind in the file and in the data, and one of the two must have no folders: otherwise
    test/001 would serve for train/001.
    """
    whole = {_without_ending(id): i for i, id in enumerate(file_ids)}
    bare: dict[str, list[int]] = defaultdict(list)
    for i, id in enumerate(file_ids):
        bare[_bare(id)].append(i)
    wanted = Counter(_bare(id) for id in image_ids)

    def match(id: str) -> int | None:
        if id in whole:
            return whole[id]
        candidates = bare[_bare(id)]
        if len(candidates) != 1 or wanted[_bare(id)] != 1 or ("/" in id and "/" in file_ids[candidates[0]]):
            return None
        return candidates[0]

    return [match(id) for id in image_ids]


def _without_ending(id: str) -> str:
    return id.rsplit(".", 1)[0] if id.lower().endswith(ENDINGS) else id


def _bare(id: str) -> str:
    """The file name alone; a number without its leading zeros, as some files have it."""
    name = _without_ending(id).rsplit("/", 1)[-1]
    return str(int(name)) if name.isdecimal() else name


def _read_mat(data: bytes, path: Path) -> tuple[list[Any] | None, list[Any]]:
    try:
        contents = scipy.io.loadmat(io.BytesIO(data), variable_names=["boxes", "images"])  # type: ignore[arg-type]
    except NotImplementedError:
        raise MelmError(f"{path}: a Matlab 7.3 file; save it with -v7, or convert it to .npz") from None
    except Exception as error:  # scipy's reader raises many things for a file that is cut or no .mat
        raise MelmError(f"{path}: not a readable .mat file ({error})") from None
    if "boxes" not in contents:
        raise MelmError(f"{path}: no variable `boxes`, as Fast R-CNN's proposal files have")
    arrays = list(contents["boxes"].ravel())
    if "images" not in contents:
        return None, arrays
    return [str(np.squeeze(name)[()] if np.size(name) == 1 else name) for name in contents["images"].ravel()], arrays


def _read_npz(data: bytes, path: Path) -> tuple[list[Any] | None, list[Any]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as contents:
            return list(contents.files), [contents[name] for name in contents.files]
    except Exception as error:  # a cut or crafted archive can raise many things
        raise MelmError(f"{path}: not a readable .npz of one (n, 4) array per image ({error})") from None


def _read_pickle(data: bytes, path: Path) -> tuple[list[Any] | None, list[Any]]:
    try:
        contents = NumpyUnpickler(io.BytesIO(data), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise MelmError(f"{path}: {error}") from None
    except Exception as error:  # a crafted or cut pickle can raise anything while it is read
        raise MelmError(f"{path}: not a readable pickle ({type(error).__name__}: {error})") from None
    if isinstance(contents, dict) and "boxes" in contents:
        ids = next((contents[key] for key in ("indexes", "indices", "ids", "images") if key in contents), None)
        boxes, scores = contents["boxes"], contents.get("scores")
        if not all(_is_list(part) for part in (boxes, ids, scores) if part is not None):
            raise MelmError(f"{path}: `boxes`, ids and `scores` should be lists with an entry per image")
        if scores is not None:
            boxes = _with_scores(boxes, scores, path)
        return (None if ids is None else [_plain(id) for id in ids]), list(boxes)
    if isinstance(contents, dict):
        return list(contents), list(contents.values())
    if isinstance(contents, (list, tuple)) or (isinstance(contents, np.ndarray) and contents.dtype == object):
        return None, list(contents)
    raise MelmError(f"{path}: holds a {type(contents).__name__}; boxes per image in a dict or a list were expected")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _with_scores(boxes: Any, scores: Any, path: Path) -> list[NDArray[Any]]:
    """Scores as a fifth column."""
    try:
        return [np.column_stack([b, np.reshape(s, -1)]) for b, s in zip(boxes, scores, strict=True)]
    except (ValueError, TypeError) as error:
        raise MelmError(f"{path}: `boxes` and `scores` do not fit together ({error})") from None


def _plain(id: Any) -> Any:
    return id.item() if isinstance(id, (np.generic, np.ndarray)) and id.size == 1 else id


def _encode_latin1(text: str, encoding: str) -> bytes:
    """What a pickled array's bytes go through in protocol 2, and only that."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"refused: an encoding {encoding!r} in the file")
    return text.encode("latin1")


NUMPY_CORE = "numpy._core"  # numpy 1 called it numpy.core, and pickles of either name the other


class NumpyUnpickler(pickle.Unpickler):
    """Reads plain containers, numbers, strings and numpy arrays. Anything else in the file is refused by its name."""

    ADMITTED = {
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        package, _, part = module.rpartition(".")
        if package in ("numpy.core", "numpy._core") and (part, name) in self.ADMITTED:
            return getattr(import_module(f"{NUMPY_CORE}.{part}"), name)
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1
        raise pickle.UnpicklingError(
            f"refused: the file wants {module}.{name}; only numpy arrays are read from a pickle"
        )
