"""`tools/pseudo_objects.py`: what the rules for pseudo-objects choose, counted against true boxes."""

import sys
from pathlib import Path

import numpy as np

from melm.data import Source
from melm.learn.pseudo_objects import Objects

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import pseudo_objects


def test_a_count_by_hand():
    true = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]], float)
    boxes = np.array([[0, 0, 10, 9], [60, 0, 70, 10], [20, 0, 30, 8], [80, 0, 90, 10]], np.float32)
    found = Objects(boxes, np.zeros(4, np.intp), np.array([0.6, 0.2, 0.1, 0.1]), np.array([True, True, False, False]))
    count = pseudo_objects.Count()
    count.add(found, true)
    count.add(found.only(found.taught), true[:1])
    assert (count.tags, count.taught, count.right, count.left_out, count.left_out_right) == (2, 4, 2, 2, 1)
    assert (count.missed, count.spared) == (2, 1)  # of the first: the second object is spared, the third is not
    assert count.row() == ["2.00", "50.0", "75.0", "1.00", "50.0", "50.0"]


def test_every_rule_of_a_run(learned, small_scenes, shared_cache):
    counts = pseudo_objects.counted(learned.run, Source(small_scenes / "train.json"))
    assert list(counts) == list(pseudo_objects.RULES)
    first, itself, *others = counts.values()
    assert first.tags == first.taught == itself.taught > 0 and not first.left_out
    several, left_out = others[:3], others[3:]
    assert first.taught <= several[0].taught <= several[1].taught <= several[2].taught
    assert [count.taught for count in left_out] == [first.taught] * 3
    assert left_out[0].left_out <= left_out[1].left_out <= left_out[2].left_out
    assert left_out[2].left_out > 0 and left_out[2].spared <= left_out[2].missed


def test_nothing_found_is_no_division_by_nothing():
    assert pseudo_objects.Count(tags=1).row() == ["0.00", "0.0", "0.0", "0.00", "0.0", "0.0"]
