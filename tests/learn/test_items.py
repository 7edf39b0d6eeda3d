"""The images of an epoch: in which order, at which view, and loaded ahead of the step that needs them."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learners import BOXES, small_config
from melm.data import Source, TaggedImage, TaggedImages, read_tags
from melm.data.images import content_key
from melm.errors import UsageError
from melm.learn.items import AHEAD, Items, prepared
from melm.proposals import ProposalStore, make_proposals


def items_of(count, **changes):
    images = tuple(TaggedImage(str(i), None, ("a",) if i % 2 else ("b",)) for i in range(count))
    return Items(TaggedImages(None, ("a", "b"), images), ["key"] * count, None, None, small_config(**changes))


@given(count=st.integers(1, 200), seed=st.integers(0, 2**31), epoch=st.integers(0, 1000))
def test_an_epoch_sees_every_image_once(count, seed, epoch):
    order = items_of(count, seed=seed).order(epoch)
    assert sorted(order) == list(range(count))
    assert order == items_of(count, seed=seed, hidden=64, accumulate=7).order(epoch)


def test_the_order_depends_on_seed_and_epoch():
    orders = [items_of(50, seed=seed).order(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("count", [0, 1, AHEAD, 50])
def test_items_come_in_order(count):
    def load(index):
        time.sleep(0.002 if index % 3 else 0)
        return index * 10

    indices = [(7 * i) % max(count, 1) for i in range(count)]
    assert list(prepared(load, indices)) == [10 * i for i in indices]


def test_items_are_loaded_ahead_but_not_without_end():
    loaded = []
    coming = prepared(lambda i: loaded.append(i) or i, range(100))
    assert next(coming) == 0
    until = time.monotonic() + 5
    while len(loaded) < AHEAD + 1 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.02)
    assert loaded == list(range(AHEAD + 1))
    coming.close()


def test_an_error_comes_where_its_item_would():
    def load(index):
        if index == 5:
            raise ValueError("five")
        return index

    coming, got = prepared(load, range(100)), []
    with pytest.raises(ValueError, match="five"):
        got.extend(iter(lambda: next(coming), None))
    assert got == [0, 1, 2, 3, 4]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("melm-items")]


def test_the_view_of_a_tuned_trunk_is_drawn_from_seed_epoch_and_image(small_scenes, shared_cache):
    images = read_tags(Source(small_scenes / "train-tags.csv"))
    store = ProposalStore(BOXES)
    keys = [done.key for done in make_proposals(images, store, 1)]
    assert keys == [content_key(image.path.read_bytes()) for image in images]
    changes = {"backbone": "resnet18", "trunk": "tuned", "scales": (64, 80, 96), "flips": True}

    def views(seed, **more):
        items = Items(images, keys, store, None, small_config(seed=seed, **changes, **more))
        return [(item.scale, item.flip) for epoch in range(3) for item in map(items.load, range(13), [epoch] * 13)]

    found = views(0)
    assert found == views(0) and found != views(1)
    assert {scale for scale, _ in found} == {64, 80, 96} and {flip for _, flip in found} == {True, False}
    assert len({tuple(found[i : i + 13]) for i in (0, 13, 26)}) == 3  # every epoch looks anew


def test_an_item_has_the_tags_boxes_and_prior_of_its_image(small_scenes, shared_cache):
    images = read_tags(Source(small_scenes / "train-tags.csv"))
    store = ProposalStore(BOXES)
    keys = [done.key for done in make_proposals(images, store, 1)]
    items = Items(images, keys, store, None, small_config(backbone="resnet18", trunk="tuned"))
    for index in (0, 5, 12):
        item = items.load(index, 0)
        assert [images.classes[k] for k in torch.nonzero(item.tags)[:, 0]] == sorted(images[index].tags)
        assert item.known.tolist() == [1] * len(images.classes) and not item.flip
        assert item.pixels.shape == (120, 160, 3) and item.proposals.shape == (len(item.prior), 4)


def test_a_step_sees_some_boxes(small_scenes, shared_cache):
    """Drawn from seed, epoch and image; regions, prior and score are those of the same boxes."""
    images = read_tags(Source(small_scenes / "train-tags.csv"))
    store = ProposalStore(BOXES)
    keys = [str(done.key) for done in make_proposals(images, store, 1)]

    class Stored:
        def regions(self, key, some):
            return some

    def load(index, epoch, **changes):
        return Items(images, keys, store, Stored(), small_config(**changes)).load(index, epoch)

    for index in range(4):
        found = store.get(keys[index])
        item = load(index, 0, boxes_a_step=20)
        assert len(item.proposals) == 20 and (np.diff(item.regions) > 0).all()
        np.testing.assert_array_equal(item.proposals, found.boxes[item.regions])
        np.testing.assert_array_equal(item.prior, found.prior[item.regions])
        np.testing.assert_array_equal(item.score, found.score[item.regions])
        assert sorted(item.order.tolist()) == list(range(20))
        np.testing.assert_array_equal(load(index, 0, boxes_a_step=20).regions, item.regions)
        assert not np.array_equal(load(index, 1, boxes_a_step=20).regions, item.regions)
        for enough in (0, len(found), 10_000):
            assert len(load(index, 0, boxes_a_step=enough).proposals) == len(found)
    with pytest.raises(UsageError, match="set boxes_a_step to 0"):
        small_config(feedback="previous", boxes_a_step=20)
