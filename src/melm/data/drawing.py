"""How the generated scenes are drawn: outlines, colours, clouds of noise, and solid-looking parts laid over each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Points = NDArray[np.float64]  # (K, 2) x, y in pixels; the first pixel reaches from 0 to 1
Colour = NDArray[np.float64]  # (3,) RGB, 0 to 1
Masks = NDArray[np.bool_]
Pattern = Callable[[Floats, Floats], NDArray[Any]]  # positive where light
Place = Sequence[float] | NDArray[np.float64]
Random = np.random.Generator

FINE = 2  # parts are drawn this much larger and averaged down


@dataclass(frozen=True, slots=True)
class Part:
    """A closed outline, filled with a colour or, where there is a `pattern`, with two."""

    outline: Points
    colour: Colour
    mottle: float
    light: Colour | None = None  # where the pattern is positive
    pattern: Pattern | None = None
    frame: Points | None = None  # (2, 3) from x, y, 1 to the pattern's two coordinates


@dataclass(frozen=True, slots=True)
class Layer:
    """Parts as drawn, at a place: colours weighted by the cover."""

    x: int
    y: int
    rgb: Floats  # (h, w, 3)
    cover: Floats  # (h, w)
    last: Floats  # (h, w) cover of the last part alone

    @property
    def bottom(self) -> int:
        return self.y + len(self.cover)

    def masks(self, height: int, width: int) -> Masks:
        """(2, H, W) the pixels of an image, in which it lies, that it covers by half or more; and those of its last part."""
        masks = np.zeros((2, height, width), bool)
        window = np.s_[:, self.y : self.bottom, self.x : self.x + self.cover.shape[1]]
        masks[window] = np.stack([self.cover, self.last]) >= 0.5
        return masks


def render(random: Random, parts: Sequence[Part], light: Points) -> Layer:
    """Parts over each other, each rounded off as if lit from the direction `light`."""
    points = np.concatenate([part.outline for part in parts])
    origin = np.floor(points.min(axis=0)).astype(int) - 1
    wide, tall = (np.ceil(points.max(axis=0)).astype(int) + 1 - origin) * FINE
    rgb, cover, last = (np.zeros((tall, wide, *more), np.float32) for more in ((3,), (), ()))
    grain = noise(random, wide, tall, max(2, wide // 16), 3)
    for part in parts:
        fine = (part.outline - origin) * FINE - 0.5  # to OpenCV, whole numbers are the centres of pixels
        x1, y1 = np.maximum(np.floor(fine.min(axis=0)).astype(int) - 1, 0)
        x2, y2 = np.ceil(fine.max(axis=0)).astype(int) + 2
        window = np.s_[y1:y2, x1:x2]
        over = _mask(fine - (x1, y1), cover[window])
        shade = _relief(over, light) * np.clip(1 + part.mottle * grain[window], 0.4, 1.6)
        paint = _paint(part, x1 / FINE + origin[0], y1 / FINE + origin[1], over) * shade[..., None]
        rgb[window] += over[..., None] * (paint - rgb[window])
        cover[window] += over * (1 - cover[window])
    last[window] = over
    small = (wide // FINE, tall // FINE)
    fields = [cv2.resize(field, small, interpolation=cv2.INTER_AREA) for field in (rgb, cover, last)]
    return Layer(int(origin[0]), int(origin[1]), *fields)


def _mask(outline: Points, like: Floats) -> Floats:
    """(h, w) the share of each pixel that an outline covers."""
    mask = np.zeros(like.shape, np.uint8)
    cv2.fillPoly(mask, [np.rint(outline * 16).astype(np.int32)], 255, cv2.LINE_AA, 4)
    return np.divide(mask, 255, dtype=np.float32)


def _relief(mask: Floats, light: Points) -> Floats:
    """Brightness of a shape that swells towards its middle."""
    depth = cv2.distanceTransform((mask > 0.5).astype(np.uint8), cv2.DIST_L2, 3)
    most = float(depth.max()) + 1
    swell = np.sqrt(cv2.GaussianBlur(depth, (0, 0), 1 + most / 5) / most)
    slope = light[0] * cv2.Sobel(swell, cv2.CV_32F, 1, 0) + light[1] * cv2.Sobel(swell, cv2.CV_32F, 0, 1)
    away = np.tanh(slope * (most / 8))  # what rises towards the light is turned away from it
    lit: Floats = (0.62 + 0.4 * swell - 0.35 * away).astype(np.float32)
    return lit


def _paint(part: Part, left: float, top: float, like: Floats) -> Floats:
    """(h, w, 3) or (3,) colours of a part in a window of fine pixels."""
    if part.pattern is None or part.light is None or part.frame is None:
        return part.colour.astype(np.float32)
    x = (left + (np.arange(like.shape[1]) + 0.5) / FINE).astype(np.float32)
    y = (top + (np.arange(like.shape[0]) + 0.5) / FINE).astype(np.float32)[:, None]
    (a, b, c), (d, e, f) = part.frame.astype(np.float32)
    bright = np.clip(0.5 + 4 * part.pattern(a * x + b * y + c, d * x + e * y + f), 0, 1)[..., None]
    return (part.colour + bright * (part.light - part.colour)).astype(np.float32)


def lay(canvas: Floats, layer: Layer, shadow: float) -> None:
    """Puts a layer into an image (H, W, 3), in place, with its shadow on the ground. What lies outside is cut off."""
    height, width = canvas.shape[:2]
    wide = layer.cover.shape[1]
    middle, deep = layer.x + wide / 2, max(2.0, wide * 0.08)
    x1, x2 = np.clip((int(middle - wide), int(middle + wide)), 0, width)
    y1, y2 = np.clip((int(layer.bottom - 3 * deep), int(layer.bottom + 3 * deep)), 0, height)
    across = np.exp(-((np.arange(x1, x2) - middle) ** 2) * 5 / wide**2)
    down = np.exp(-((np.arange(y1, y2) - layer.bottom + 2) ** 2) / deep**2)
    canvas[y1:y2, x1:x2] *= (1 - shadow * np.outer(down, across)).astype(np.float32)[..., None]
    x1, x2 = np.clip((layer.x, layer.x + wide), 0, width)
    y1, y2 = np.clip((layer.y, layer.bottom), 0, height)
    inner = np.s_[y1 - layer.y : y2 - layer.y, x1 - layer.x : x2 - layer.x]
    if x1 < x2 and y1 < y2:
        canvas[y1:y2, x1:x2] *= 1 - layer.cover[inner][..., None]
        canvas[y1:y2, x1:x2] += layer.rgb[inner]


def noise(random: Random, width: int, height: int, cells: int, octaves: int, decay: float = 0.6) -> Floats:
    """Clouds (height, width) of about mean 0 and deviation 1: `cells` across, twice as many at each further octave."""
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        across = min(cells * 2**octave, width)
        grid = random.standard_normal((max(1, min(height, across * height // width)), across), np.float32)
        total += cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC) * np.float32(decay**octave)
    return total


def colour(random: Random, palette: str) -> Colour:
    """One of the palette's colours, varied a little."""
    names = palette.split()
    rgb = np.array([*bytes.fromhex(names[random.integers(len(names))])]) / 255
    return np.clip(rgb * random.uniform(0.85, 1.12) + random.normal(0, 0.02, 3), 0.02, 1)


def turn(angle: float) -> Points:
    """The matrix of a rotation."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def polar(radius: Callable[[Points], NDArray[Any]]) -> Points:
    """The closed outline whose distance from the origin is `radius` of the angle."""
    t = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    outline: Points = np.stack([np.cos(t), np.sin(t)], 1) * radius(t)[:, None]
    return outline


def blob(centre: Place, radii: Place, dents: Place = ()) -> Points:
    """An ellipse, dented by waves of the given strengths."""
    waves = polar(lambda t: 1 + sum((dent * np.cos((k + 2) * t + 7 * k) for k, dent in enumerate(dents)), 0 * t))
    return np.add(centre, waves * np.asarray(radii, np.float64))


def limb(start: Place, end: Place, thick: float, thin: float) -> Points:
    """A bar with round ends whose radius goes from `thick` to `thin`."""
    along = np.subtract(end, start)
    t = np.linspace(np.pi / 2, 3 * np.pi / 2, 12) + np.arctan2(along[1], along[0])
    arc = np.stack([np.cos(t), np.sin(t)], 1)
    return np.concatenate([np.asarray(start) + thick * arc, np.asarray(end) - thin * arc])
