"""Regions, their pairs and their merging, counted again from the pixels."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from melm.proposals.graph_segmentation import segment, sorted_edges
from melm.proposals.region_merging import merge
from melm.proposals.regions import COLOURS, STRENGTHS, TEXTURES, Regions, pixel_bins, regions_of

SIZES = st.tuples(st.integers(1, 16), st.integers(1, 16), st.just(3))
IMAGES = SIZES.flatmap(lambda size: hnp.arrays(np.uint8, size))
WEIGHTS = st.sampled_from([(1, 1, 1, 1), (0, 1, 1, 1), (0, 0, 1, 0), (1, 0, 0, 0)])


def segmented(image, k=20, least=2):
    labels, bins = segment(sorted_edges(image, 0.8), k, least), pixel_bins(image)
    return labels, bins, regions_of(labels, bins)


def counted(bins, mask):
    """Histograms of colours and textures of the pixels under a mask."""
    inside = bins[mask].astype(int)
    colours = [np.bincount(inside[:, c], minlength=COLOURS) for c in range(3)]
    textures = [np.bincount(inside[:, 3 + c], minlength=TEXTURES) for c in range(3)]
    return np.concatenate(colours), np.concatenate(textures)


def box_of(mask):
    y, x = np.nonzero(mask)
    return [x.min(), y.min(), x.max() + 1, y.max() + 1]


@settings(max_examples=30)
@given(IMAGES)
def test_regions_are_what_their_pixels_are(image):
    labels, bins, regions = segmented(image)
    for region in range(labels.max() + 1):
        mask = labels == region
        colours, textures = counted(bins, mask)
        assert regions.sizes[region] == mask.sum() and regions.boxes[region].tolist() == box_of(mask)
        assert (regions.colours[region] == colours).all() and (regions.textures[region] == textures).all()
    beside = [(labels[:, :-1], labels[:, 1:]), (labels[:-1], labels[1:])]
    pairs = {tuple(sorted(pair)) for a, b in beside for pair in zip(a.flat, b.flat, strict=True) if pair[0] != pair[1]}
    assert len(pairs) == len(regions.pairs) and pairs == {tuple(pair) for pair in regions.pairs.tolist()}


@settings(max_examples=30)
@given(IMAGES, WEIGHTS)
def test_merging_is_what_the_pixels_are(image, weights):
    """R - 1 merges; after them all, sizes, boxes and histograms are those of the pixels that came together."""
    labels, bins, regions = segmented(image)
    before = [
        array.copy() for array in (regions.sizes, regions.boxes, regions.colours, regions.textures, regions.pairs)
    ]
    merging = merge(regions, weights)
    after = (regions.sizes, regions.boxes, regions.colours, regions.textures, regions.pairs)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))  # what was given is left alone
    assert len(merging.boxes) == len(merging.merged) == labels.max()
    labels = labels.copy()
    last = {}
    for step, (a, b) in enumerate(merging.merged.tolist()):
        assert (labels == a).any() and (labels == b).any()
        labels[labels == b] = a
        assert merging.boxes[step].tolist() == box_of(labels == a)
        last[b] = None
        mask = labels == a
        last[a] = (mask.sum(), *counted(bins, mask))
    for region, expected in last.items():
        if expected is not None:
            size, colours, textures = expected
            assert merging.sizes[region] == size
            assert (merging.colours[region] == colours).all() and (merging.textures[region] == textures).all()


def likeness(regions, a, b, weights):
    """As the paper has it, in real numbers."""
    pixels, size = regions.sizes.sum(), regions.sizes[a] + regions.sizes[b]
    corner, end = (f(regions.boxes[a], regions.boxes[b]) for f in (np.minimum, np.maximum))
    fill = 1 - ((end[2:] - corner[:2]).prod() - size) / pixels
    shares = [[h[r] / h[r].sum() for r in (a, b)] for h in (regions.colours, regions.textures)]
    common = [np.minimum(*pair).sum() for pair in shares]
    return np.dot(weights, [*common, 1 - size / pixels, fill])


@settings(max_examples=30)
@given(IMAGES, WEIGHTS)
def test_each_merge_is_of_the_most_alike(image, weights):
    """Against a plain search over all pairs, with everything computed anew at each step."""
    labels, bins, regions = segmented(image)
    labels = labels.copy()
    for a, b in merge(regions, weights).merged.tolist():
        numbers, packed = np.unique(labels, return_inverse=True)
        now = regions_of(packed.reshape(labels.shape).astype(np.int32), bins)
        values = [likeness(now, *pair, weights) for pair in now.pairs]
        one, other = np.searchsorted(numbers, (a, b))
        assert likeness(now, one, other, weights) >= max(values) - 1e-3  # whole numbers round
        labels[labels == b] = a


def field(sizes, colours, boxes, pairs):
    """Regions of one colour each, without texture."""
    histogram = np.zeros((len(sizes), 3 * COLOURS), np.int32)
    textures = np.zeros((len(sizes), 3 * TEXTURES), np.int32)
    for region, (size, colour) in enumerate(zip(sizes, colours, strict=True)):
        histogram[region, [c * COLOURS + colour for c in range(3)]] = size
        textures[region, [c * TEXTURES for c in range(3)]] = size
    return Regions(np.array(sizes, np.int32), np.array(boxes, np.int32), histogram, textures, np.array(pairs, np.int32))


FOUR = field(  # four columns, each 10 high
    [100, 100, 300, 500],
    [3, 9, 9, 3],
    [[0, 0, 10, 10], [10, 0, 20, 10], [20, 0, 50, 10], [50, 0, 100, 10]],
    [[0, 1], [1, 2], [2, 3]],
)


def test_colour_joins_what_has_the_same_colour():
    """Columns 1 and 2 are of one colour; then nothing is alike, and the pair met first is merged."""
    assert merge(FOUR, (1, 0, 0, 0)).boxes.tolist() == [[10, 0, 50, 10], [0, 0, 50, 10], [0, 0, 100, 10]]


def test_size_joins_the_small_ones_first():
    assert merge(FOUR, (0, 0, 1, 0)).boxes.tolist() == [[0, 0, 20, 10], [0, 0, 50, 10], [0, 0, 100, 10]]


def test_fill_joins_what_fits_together():
    """A corner and what lies in it, rather than two at the ends of a diagonal."""
    regions = field(
        [400, 100, 500],
        [3, 9, 9],
        [[0, 0, 25, 20], [5, 0, 15, 10], [0, 0, 100, 100]],
        [[0, 2], [0, 1], [1, 2]],
    )
    assert merge(regions, (0, 0, 0, 1)).boxes[0].tolist() == [0, 0, 25, 20]


def test_orientation_and_strength_of_a_gradient():
    image = np.zeros((9, 9, 3), np.uint8)
    image[:, 5:] = 255
    across = pixel_bins(image)[4, 4, 3:]
    assert (across // STRENGTHS == across[0] // STRENGTHS).all() and (across % STRENGTHS == STRENGTHS - 1).all()
    kinds = {int(pixel_bins(np.ascontiguousarray(np.rot90(image, turn)))[4, 4, 3]) for turn in range(4)}
    slanted = np.fromfunction(lambda y, x, c: 255 * (x + y > 8), (9, 9, 3)).astype(np.uint8)
    kinds |= {int(pixel_bins(np.ascontiguousarray(np.rot90(slanted, turn)))[4, 4, 3]) for turn in range(4)}
    assert len({kind // STRENGTHS for kind in kinds}) == 8
    assert (pixel_bins(np.full((3, 3, 3), 9, np.uint8))[..., 3:] % STRENGTHS == 0).all()  # nothing: the least strength
