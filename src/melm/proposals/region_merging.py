"""The hierarchy of selective search: of all regions that touch, the two most alike become one, until the image is one.

Everything is counted in whole numbers, shares of a histogram too: from the same regions the result depends on no order of
summing and no processor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from melm.proposals.regions import COLOURS, Regions

ONE = 1 << 20  # the whole of a histogram, of a size or of a box in whole numbers


@dataclass(frozen=True, slots=True)
class Merging:
    """What R - 1 merges made of R regions."""

    boxes: NDArray[np.int32]  # (R - 1, 4) of the merged regions, in the order of merging
    merged: NDArray[np.int32]  # (R - 1, 2) the two that became one, which goes by the number of the first from then on
    sizes: NDArray[np.int32]  # (R,) of each region when it was last there, and so the others
    colours: NDArray[np.int32]  # (R, 75)
    textures: NDArray[np.int32]  # (R, 240)


def merge(regions: Regions, weights: tuple[int, int, int, int]) -> Merging:
    """Merges regions to the last. `weights` of the four measures of likeness, each 0 to 1 (section 3.2 of the paper):

    colour and texture, what the histograms have in common; size, that small ones are merged early; and fill, that the two
    fill the box around both.
    """
    made = _merge(
        regions.sizes.copy(),
        regions.boxes.copy(),
        regions.colours.copy(),
        regions.textures.copy(),
        regions.pairs.copy(),
        np.array(weights, np.int64),
    )
    return Merging(*made)


@numba.njit(cache=True)
def _shares(counts, size, shares):  # type: ignore[no-untyped-def]
    """Writes a histogram as shares of its whole: `size` pixels in each of some channels make ONE together."""
    for i in range(len(counts)):
        shares[i] = np.int64(counts[i]) * ONE // size


@numba.njit(cache=True)
def _common(one, other):  # type: ignore[no-untyped-def]
    """What two histograms have in common."""
    total = np.int32(0)
    for i in range(len(one)):
        total += min(one[i], other[i])
    return total


@numba.njit(cache=True)
def _likeness(a, b, pixels, sizes, boxes, colours, textures, weights):  # type: ignore[no-untyped-def]
    """How alike two regions are, by their histograms as shares, in parts of ONE for each weight."""
    size = np.int64(sizes[a]) + sizes[b]
    width = np.int64(max(boxes[a, 2], boxes[b, 2]) - min(boxes[a, 0], boxes[b, 0]))
    height = np.int64(max(boxes[a, 3], boxes[b, 3]) - min(boxes[a, 1], boxes[b, 1]))
    total = weights[2] * (ONE - size * ONE // pixels)
    total += weights[3] * (ONE - (width * height - size) * ONE // pixels)
    if weights[0]:
        total += weights[0] * _common(colours[a], colours[b])
    if weights[1]:
        total += weights[1] * _common(textures[a], textures[b])
    return total


@numba.njit(cache=True)
def _before(one, other, likeness):  # type: ignore[no-untyped-def]
    """Whether one pair is merged before another: the more alike, of equals the one that was met first."""
    return likeness[one] > likeness[other] or (likeness[one] == likeness[other] and one < other)


@numba.njit(cache=True)
def _settle(heap, place, count, at, likeness):  # type: ignore[no-untyped-def]
    """Moves the pair at a place of the heap up or down to where it belongs."""
    pair = heap[at]
    while at > 0 and _before(pair, heap[(at - 1) // 2], likeness):
        heap[at] = heap[(at - 1) // 2]
        place[heap[at]] = at
        at = (at - 1) // 2
    while True:
        below = 2 * at + 1
        if below + 1 < count and _before(heap[below + 1], heap[below], likeness):
            below += 1
        if below >= count or not _before(heap[below], pair, likeness):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = pair
    place[pair] = at


@numba.njit(cache=True)
def _remove(heap, place, count, pair, likeness):  # type: ignore[no-untyped-def]
    """Takes a pair out of the heap; the number that is left."""
    at = place[pair]
    place[pair] = -1
    count -= 1
    if at < count:
        heap[at] = heap[count]
        place[heap[at]] = at
        _settle(heap, place, count, at, likeness)
    return count


@numba.njit(cache=True)
def _merge(sizes, boxes, colours, textures, pairs, weights):  # type: ignore[no-untyped-def]
    """The parts of a `Merging`. Overwrites what it is given; each pair is a link in the lists of both its regions."""
    regions, links = len(sizes), len(pairs)
    pixels = np.int64(sizes.sum())
    channels = colours.shape[1] // COLOURS
    first = np.full(
        regions, -1, np.int32
    )  # half links: 2 * pair is in the list of pairs[pair, 0], 2 * pair + 1 in the other
    after = np.empty(2 * links, np.int32)
    for half in range(2 * links - 1, -1, -1):
        region = pairs[half >> 1, half & 1]
        after[half] = first[region]
        first[region] = half
    colour_shares, texture_shares = np.empty_like(colours), np.empty_like(textures)
    for region in range(regions):
        _shares(colours[region], channels * sizes[region], colour_shares[region])
        _shares(textures[region], channels * sizes[region], texture_shares[region])
    likeness = np.empty(links, np.int64)
    heap, place = np.arange(links).astype(np.int32), np.arange(links).astype(np.int32)
    for pair in range(links):
        a, b = pairs[pair]
        likeness[pair] = _likeness(a, b, pixels, sizes, boxes, colour_shares, texture_shares, weights)
        _settle(heap, place, pair + 1, pair, likeness)
    count = links
    made, of = np.empty((max(regions - 1, 0), 4), np.int32), np.empty((max(regions - 1, 0), 2), np.int32)
    neighbour_of = np.full(regions, -1, np.int32)  # the last region whose neighbours this one was counted among
    n = 0
    while count:
        a, b = pairs[heap[0]]
        of[n] = a, b
        boxes[a, :2] = np.minimum(boxes[a, :2], boxes[b, :2])
        boxes[a, 2:] = np.maximum(boxes[a, 2:], boxes[b, 2:])
        made[n] = boxes[a]
        sizes[a] += sizes[b]
        colours[a] += colours[b]
        textures[a] += textures[b]
        _shares(colours[a], channels * sizes[a], colour_shares[a])
        _shares(textures[a], channels * sizes[a], texture_shares[a])
        # the lists of both become the list of a, without what is gone, a neighbour of both once
        new = np.int32(-1)
        for source in (a, b):
            half = first[source]
            while half >= 0:
                following, pair = after[half], half >> 1
                if place[pair] >= 0:
                    other = pairs[pair, 1 - (half & 1)]
                    if other in (a, b) or neighbour_of[other] == n:
                        count = _remove(heap, place, count, pair, likeness)
                    else:
                        neighbour_of[other] = n
                        pairs[pair, half & 1] = a
                        likeness[pair] = _likeness(
                            a, other, pixels, sizes, boxes, colour_shares, texture_shares, weights
                        )
                        _settle(heap, place, count, place[pair], likeness)
                        after[half] = new
                        new = half
                half = following
        first[a] = new
        n += 1
    return made[:n], of[:n], sizes, colours, textures
