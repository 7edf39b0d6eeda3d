"""Pictures inside a page: JPEG as text, no larger than there is room for."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Side and quality, from what is good to what is still a picture.
STEPS = ((640, 78), (560, 76), (480, 75), (400, 72), (320, 70), (320, 55), (256, 50), (192, 45), (128, 40), (64, 30))
QUALITIES = (85, 75, 60, 45, 30, 15)


def thumbnail(image: NDArray[np.uint8], room: int) -> bytes:
    """The (H, W, 3) image as the largest JPEG of `STEPS` that has at most `room` bytes; at the least, the smallest."""
    picture = Image.fromarray(image)
    data = b""
    for side, quality in STEPS:
        scale = min(1.0, side / max(picture.size))
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        data = _jpeg(picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3), quality)
        if len(data) <= room:
            break
    return data


def drawing(image: NDArray[np.uint8], room: int) -> bytes:
    """A picture with thin lines and words in it, at its own size: at the best quality that has at most `room` bytes."""
    picture = Image.fromarray(image)
    data = b""
    for quality in QUALITIES:
        data = _jpeg(picture, quality, 0)  # thin lines keep their colours
        if len(data) <= room:
            break
    return data


def _jpeg(picture: Image.Image, quality: int, subsampling: int = 2) -> bytes:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=quality, subsampling=subsampling, optimize=True)
    return data.getvalue()


def data_uri(jpeg: bytes) -> str:
    """What an `src` says for a picture that is in the page itself: a third longer than the picture."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
