"""Images from disk, always as the viewer sees them: upright (EXIF applied), RGB, 8 bit."""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from melm.errors import MelmError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
MAX_PIXELS = 178_956_970  # Pillow's own limit for a decompression bomb: 0.5 GB as RGB
EXIF_ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(MelmError):
    """An image that cannot be used. The message starts with its path."""


class MissingImage(ImageError):
    """An image that is not there at all."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What an image's header says."""

    width: int  # upright
    height: int
    orientation: int  # EXIF, 1 to 8
    mode: str
    pages: int

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height of the pixels on disk, before EXIF turns them."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def is_image(path: Path) -> bool:
    """Whether the name is that of an image `melm` reads. Hidden files are not."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingImage(f"{path}: there is no such file") from None
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error.strerror})") from None


def content_key(data: bytes) -> str:
    """The name of an image by what is in its file: a moved or renamed file keeps it, a changed one does not."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def content_of(key: str) -> str:
    """The content key of the image that a longer key is of, as that of proposals from a file."""
    return key.split("-", maxsplit=1)[0]


def image_info(path: Path) -> ImageInfo:
    """The header of an image, without decoding it."""
    with _opened(path, path) as image:
        return _info(image)


def read_image(path: Path) -> NDArray[np.uint8]:
    """An image file as an upright (H, W, 3) RGB array."""
    return decode_image(read_bytes(path), path)[0]


def decode_image(data: bytes, path: Path) -> tuple[NDArray[np.uint8], ImageInfo]:
    """The bytes of an image file as an upright (H, W, 3) RGB array; `path` is only for the words of an error."""
    with _opened(io.BytesIO(data), path) as image:
        info = _info(image)
        image.load()
        if image.format != "TIFF" and info.orientation in TURNS:  # a TIFF is turned by Pillow while it loads
            image = image.transpose(TURNS[info.orientation])
        pixels = np.asarray(_to_rgb(image, path))
    return np.ascontiguousarray(pixels), info


@contextlib.contextmanager
def _opened(source: Path | io.BytesIO, path: Path) -> Iterator[Image.Image]:
    """Opens an image and turns everything Pillow can raise for it, now or while it is used, into an ImageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # broken EXIF or metadata: the pixels decide
            with Image.open(source, formats=FORMATS) as image:
                yield image
    except FileNotFoundError:
        raise MissingImage(f"{path}: there is no such file") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{path}: not an image ({_what_it_is(path)}); JPEG, PNG, WebP, BMP and TIFF are read"
        ) from None
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(
            f"{path}: more than the {MAX_PIXELS:,} pixels allowed (a decompression bomb?). Make it smaller or cut it into tiles"
        ) from None
    except Exception as error:  # Pillow's decoders raise nearly everything for a damaged file
        raise ImageError(f"{path}: broken image ({str(error) or type(error).__name__})") from None


def _info(image: Image.Image) -> ImageInfo:
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # broken metadata, of whatever kind: the pixels decide
        orientation = 1
    if orientation not in range(1, 9):
        orientation = 1
    turned = orientation >= 5 and image.format != "TIFF"  # of a TIFF, Pillow tells the upright size already
    width, height = image.size[::-1] if turned else image.size
    pages = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
    return ImageInfo(width, height, orientation, image.mode, pages)


def _to_rgb(image: Image.Image, path: Path) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bit: scale, since Pillow's own conversion would clip at 255
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray(np.clip((values + 128) // 257, 0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        values = np.asarray(image)
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise ImageError(f"{path}: floating-point pixels outside 0 to 1; save it with 8 or 16 bits")
        return Image.fromarray(np.round(values * 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        with_alpha = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")  # what a viewer shows behind transparent pixels
        return Image.alpha_composite(white, with_alpha).convert("RGB")
    return image.convert("RGB")


def _what_it_is(path: Path) -> str:
    try:
        size = path.stat().st_size
        return "the file is empty" if size == 0 else f"{size:,} bytes"
    except OSError:
        return "unreadable"
