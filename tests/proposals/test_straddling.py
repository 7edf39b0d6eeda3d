"""Straddling against its definition, pixel by pixel."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from melm.proposals.straddling import inside_out, straddling


def by_definition(segments, box):
    x1, y1, x2, y2 = box
    inside = np.zeros(segments.shape, bool)
    inside[y1:y2, x1:x2] = True
    if not inside.any():
        return 0.0
    cut = sum(min((inside & (segments == s)).sum(), (~inside & (segments == s)).sum()) for s in np.unique(segments))
    return 1 - cut / inside.sum()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12), st.integers(1, 6))
def test_equals_the_definition(seed, height, width, count):
    random = np.random.default_rng(seed)
    segments = random.integers(0, count, (height, width)).astype(np.int32)
    xs = np.sort(random.integers(0, width + 1, (6, 2)), axis=1)
    ys = np.sort(random.integers(0, height + 1, (6, 2)), axis=1)
    boxes = np.stack([xs[:, 0], ys[:, 0], xs[:, 1], ys[:, 1]], axis=1)
    expected = [by_definition(segments, box) for box in boxes]
    np.testing.assert_allclose(inside_out(segments, count, boxes), expected)


def test_a_box_around_an_object_beats_one_across_it():
    image = np.full((100, 120, 3), 40, np.uint8)
    image[30:70, 40:90] = (200, 60, 60)
    around, across, whole = straddling(image, np.array([[40.0, 30, 90, 70], [60, 20, 110, 60], [0, 0, 120, 100]]))
    assert around > 0.9 > across
    assert whole == 1  # nothing lies outside the whole image
