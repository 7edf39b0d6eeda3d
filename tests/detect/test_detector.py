"""A learned detector: the branch that speaks, the views it means over, and what suppression leaves."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import melm
from learners import TUNED, small_config, small_train
from melm.boxes import iou
from melm.data import read_image
from melm.detect.detector import NMS, Detector, DetectSettings, default_branch, suppressed
from melm.errors import MelmError, UsageError
from melm.learn.model_file import load_model
from melm.model.trunks import FrozenTrunk, mirrored, mirrored_boxes
from melm.proposals import Proposals, compute_proposals


@pytest.fixture(scope="module")
def photo(small_scenes):
    return small_scenes / "test" / "00001.jpg"


@pytest.fixture(scope="module")
def tuned(small_scenes, tmp_path_factory):
    """A run whose trunk learned along."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(folder / "cache"))
        return small_train(small_scenes / "few.csv", folder / "run", epochs=1, **{**TUNED, "scales": (80, 64, 96)})


def seen(run, photo, **settings):
    """A detector, an image and its proposals."""
    detector = melm.load(run, DetectSettings(**settings), "cpu")
    pixels = read_image(photo)
    return detector, pixels, compute_proposals(pixels, detector.proposal_settings)


def assert_same(found, other):
    np.testing.assert_array_equal(found.boxes, other.boxes)
    np.testing.assert_array_equal(found.scores, other.scores)
    np.testing.assert_array_equal(found.classes, other.classes)
    assert (found.names, found.width, found.height) == (other.names, other.width, other.height)


def test_a_path_and_an_array_give_the_same(learned, photo):
    detector = melm.load(learned.run)
    found = detector(photo)
    assert len(found) > 10 and (found.width, found.height) == (160, 120)
    assert found.names == tuple(json.loads((learned.run / "model.json").read_text())["classes"])
    for image in (str(photo), read_image(photo)):
        assert_same(found, detector(image))
    assert_same(found, melm.load(str(learned.run))(photo))
    assert (np.diff(found.scores) <= 0).all() and found.scores.max() <= 1 and found.scores.min() >= 0


def test_the_random_state_takes_no_part(learned, photo):
    torch.manual_seed(1)
    first = melm.load(learned.run)(photo)
    torch.manual_seed(2)
    assert_same(first, melm.load(learned.run)(photo))


@pytest.mark.parametrize("wrong", [np.zeros((120, 160), np.uint8), np.zeros((9, 9, 3)), np.zeros((9, 9, 4), np.uint8)])
def test_what_is_no_image_is_refused(learned, wrong):
    with pytest.raises(ValueError, match=r"bytes of shape \(H, W, 3\) were expected"):
        melm.load(learned.run)(wrong)


def test_without_proposals_nothing_is_found(learned):
    none = Proposals(np.zeros((0, 4), np.float32), *np.zeros((2, 0), np.float32), 30, 20)
    found = melm.load(learned.run)(np.zeros((20, 30, 3), np.uint8), none)
    assert len(found) == 0 and (found.width, found.height) == (30, 20)


def test_given_proposals_are_the_boxes(learned, photo):
    detector, pixels, proposals = seen(learned.run, photo, nms=1.0, max_boxes=0, vote=0.0)
    some = Proposals(proposals.boxes[:7], proposals.prior[:7], proposals.score[:7], 160, 120)
    found = detector(pixels, some)
    assert len(found) == 7 * len(detector.classes)
    assert {tuple(box) for box in found.boxes.tolist()} == {tuple(box) for box in some.boxes.tolist()}


@pytest.mark.parametrize("views", ["single", "flip"])
def test_each_branch_and_their_mean(learned, photo, views):
    detector, pixels, proposals = seen(learned.run, photo, views=views)
    outputs = detector.outputs(pixels, proposals)
    assert len(outputs) == (1 if views == "single" else 2)
    branches = []
    for t in range(3):
        known = [np.exp((output.evidence - output.evidence.max()).numpy())[:, None] for output in outputs]
        plain = [output.localization[t].exp()[:, :-1].numpy() for output in outputs]
        own = np.mean([p * e for p, e in zip(plain, known, strict=True)], axis=0)
        np.testing.assert_allclose(detector.scores(pixels, proposals, f"localization {t + 1}"), own, rtol=1e-6)
        branches.append(own)
    np.testing.assert_allclose(detector.scores(pixels, proposals, "mean"), np.mean(branches, axis=0), rtol=1e-5)
    discovery = np.mean([output.log_prob.exp().numpy() for output in outputs], axis=0)
    np.testing.assert_allclose(detector.scores(pixels, proposals, "discovery"), discovery, rtol=1e-5)
    assert len({scores.tobytes() for scores in [*branches, discovery]}) == 4
    assert detector.branch == "all"
    np.testing.assert_array_equal(detector.scores(pixels, proposals), detector.scores(pixels, proposals, "all"))
    logs = [[o.log_prob, *(p[:, :-1] for p in o.localized())] for o in outputs]
    every = np.mean([np.exp(np.mean([p.double().numpy() for p in of_view], axis=0)) for of_view in logs], axis=0)
    np.testing.assert_allclose(detector.scores(pixels, proposals), every, rtol=1e-4, atol=1e-30)


def test_the_chosen_branch_speaks_with_its_own_suppression(learned, photo):
    for branch, overlap in (("discovery", 0.4), ("localization 2", 0.3), ("mean", 0.3), ("all", 0.3)):
        detector, pixels, proposals = seen(learned.run, photo, branch=branch, max_boxes=0)
        scores = detector.scores(pixels, proposals, branch)
        by_hand = suppressed(proposals.boxes, scores, detector.classes, 160, 120, overlap, 0.0, vote=0.6)
        assert_same(detector(pixels), by_hand)
        stays, pixels, proposals = seen(learned.run, photo, branch=branch, max_boxes=0, vote=0.0)
        left = suppressed(proposals.boxes, scores, detector.classes, 160, 120, overlap, 0.0)
        assert_same(stays(pixels), left)
        assert sorted(left.scores.tolist()) == sorted(by_hand.scores.tolist())
        assert {tuple(box) for box in left.boxes} <= {tuple(box) for box in proposals.boxes}
    assert NMS == {"discovery": 0.4, "localization": 0.3}


@pytest.mark.parametrize("branch", ["localization 4", "localization 0", "location 1", "best"])
def test_an_unknown_branch_says_which_there_are(learned, branch):
    with pytest.raises(UsageError) as refused:
        melm.load(learned.run, DetectSettings(branch))
    assert f"unknown branch '{branch}'" in str(refused.value)
    assert "Known: discovery, mean, all, localization 1, localization 2, localization 3." in str(refused.value)


@pytest.mark.parametrize(
    ("method", "branch"),
    [("L2+ARL", "all"), ("D+ARL", "discovery"), ("D", "discovery"), ("WSDDN", "discovery"), ("OICR", "all")],
)
def test_a_method_has_its_branch(method, branch):
    assert default_branch(small_config(method)) == branch
    assert default_branch(melm.learn_config("paper-vggf", "OICR")) == "mean"


def test_the_views_of_a_frozen_trunk(learned, photo):
    """It reads all its scales at once: another view is the mirrored one."""
    detector, pixels, proposals = seen(learned.run, photo)
    mirror = mirrored_boxes(torch.from_numpy(proposals.boxes), 160).numpy()
    other = Proposals(mirror, proposals.prior, proposals.score, 160, 120)
    by_hand = (detector.scores(pixels, proposals) + detector.scores(mirrored(pixels), other)) / 2
    for views in ("flip", "paper"):
        there = melm.load(learned.run, DetectSettings(views=views))
        assert there.views() == [(None, False), (None, True)]
        np.testing.assert_allclose(there.scores(pixels, proposals), by_hand, rtol=1e-5)
    assert not np.allclose(by_hand, detector.scores(pixels, proposals), rtol=1e-3)


def test_the_views_of_a_tuned_trunk(tuned, photo):
    """`single` is the middle scale, `flip` both ways at it, `paper` all scales both ways; a mean for each proposal."""
    detector, pixels, proposals = seen(tuned, photo)
    assert not isinstance(detector.network.trunk, FrozenTrunk)
    boxes = torch.from_numpy(proposals.boxes)
    scores = {}
    with torch.no_grad():
        for scale in (64, 80, 96):
            for flip in (False, True):
                image, there = (mirrored(pixels), mirrored_boxes(boxes, 160)) if flip else (pixels, boxes)
                regions = detector.network.trunk.look(image, there, scale)
                output = detector.network.melm(
                    regions, boxes, torch.from_numpy(proposals.prior), detector.learned.strength
                )
                scores[scale, flip] = torch.stack(output.localization).exp().mean(dim=0)[:, :-1].numpy()
    expected = {
        "single": scores[80, False],
        "flip": np.mean([scores[80, flip] for flip in (False, True)], axis=0),
        "paper": np.mean(list(scores.values()), axis=0),
    }
    for views, by_hand in expected.items():
        there = melm.load(tuned, DetectSettings(views=views))
        np.testing.assert_allclose(there.scores(pixels, proposals), by_hand, rtol=1e-4, atol=1e-7)
    assert len({by_hand.tobytes() for by_hand in expected.values()}) == 3


def test_the_fewest_scores_and_boxes(learned, photo):
    every = seen(learned.run, photo, max_boxes=0)[0](photo)
    least = float(np.median(every.scores))
    above = melm.load(learned.run, DetectSettings(min_score=least, max_boxes=0))(photo)
    assert_same(above, every.above(least))  # what is suppressed is suppressed by a better one
    few = melm.load(learned.run, DetectSettings(max_boxes=5))(photo)
    assert_same(few, every[:5])
    none = melm.load(learned.run, DetectSettings(min_score=1.0))(photo)
    assert len(none) == 0


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 40),
    overlap=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    min_score=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_suppression_is_per_class(seed, count, overlap, min_score):
    random = np.random.default_rng(seed)
    corners = random.integers(0, 12, (count, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + random.integers(1, 9, (count, 2))], axis=1).astype(np.float32)
    scores = random.choice(np.linspace(0, 1, 9), (count, 3)).astype(np.float32)  # with ties
    found = suppressed(boxes, scores, ("a", "b", "c"), 20, 20, overlap, min_score)
    assert (np.diff(found.scores) <= 0).all() and (found.scores >= min_score).all()
    for k, name in enumerate(found.names):
        kept = found.of(name)
        overlaps = iou(kept.boxes, kept.boxes)
        assert (overlaps[~np.eye(len(kept), dtype=bool)] <= overlap).all()
        for box, score in zip(boxes, scores[:, k], strict=True):  # what is gone overlaps a better one that stayed
            better = kept.boxes[kept.scores >= score]
            there = iou(box[None], better) if len(better) else np.zeros((1, 0))
            same = (better == box).all(axis=1).any()
            assert score < min_score or same or (there > overlap).any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"views": "papr"}, "Did you mean 'paper'"),
        ({"nms": 1.5}, "--nms is 1.5; 0 to 1"),
        ({"nms": float("nan")}, "--nms is nan"),
        ({"vote": 1.5}, "--vote is 1.5; 0 to 1"),
        ({"min_score": -0.1}, "--min-score is -0.1"),
        ({"max_boxes": -1}, "--max-boxes is -1"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        DetectSettings(**settings)


def test_a_run_that_is_not_finished_or_none(small_scenes, shared_cache, tmp_path):
    class Enough(Exception):
        pass

    def stop(epoch, network, strength):
        raise Enough

    with pytest.raises(Enough):
        small_train(small_scenes / "train-tags.csv", tmp_path / "begun", after_epoch=stop)
    (tmp_path / "file").write_text("")
    for path, words in (
        (tmp_path / "begun", "this run is not finished: run its `melm train` again"),
        (small_scenes, "not the folder of a run"),
        (tmp_path / "nowhere", "there is no such run"),
        (tmp_path / "file", "there is no such run"),
    ):
        with pytest.raises(MelmError) as refused:
            melm.load(path)
        assert str(refused.value).startswith(f"{path}: {words}")


def test_feedback_of_the_preceding_iteration_is_that_of_a_first_pass(small_scenes, shared_cache, tmp_path, photo):
    run = small_train(small_scenes / "train-tags.csv", tmp_path / "run", feedback="previous", boxes_a_step=0)
    detector, pixels, proposals = seen(run, photo, branch="mean")
    assert detector.learned.strength == pytest.approx(1 - np.exp(-0.5))  # r of the last epoch
    given = (proposals.boxes, proposals.prior, proposals.score, proposals.share)
    boxes, prior, score, share = (torch.from_numpy(array) for array in given)
    with torch.no_grad():
        regions = detector.network.trunk.look(pixels, boxes)
        first = detector.network.melm(regions, boxes, prior, detector.learned.strength, score=score, share=share)
        second = detector.network.melm(regions, boxes, prior, detector.learned.strength, first.objectness, score, share)
    by_hand = torch.stack(second.localized()).exp().mean(dim=0)[:, :-1].numpy()
    np.testing.assert_allclose(detector.scores(pixels, proposals), by_hand, rtol=1e-5)


def test_a_detector_learned_on_a_file_asks_for_one(learned, tmp_path):
    from dataclasses import replace

    model = load_model(learned.run)
    boxes = replace(model.config.proposals, method="file", file_digest="x", file_boxes="xyxy")
    detector = Detector(replace(model, config=replace(model.config, proposals=boxes)), device="cpu")
    with pytest.raises(UsageError, match="learned on proposals of a file"):
        detector(np.zeros((60, 60, 3), np.uint8))
