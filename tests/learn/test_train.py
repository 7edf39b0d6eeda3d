"""Learning as a whole: what decides the weights, and what does not."""

import csv
import json
import math
import random

import numpy as np
import pytest
import torch

from learners import log_of, small_config, small_train, weights_of
from melm.config import METHODS
from melm.data import Source
from melm.data.images import content_key
from melm.detect.detector import load
from melm.errors import MelmError
from melm.learn.checkpoint import load_pair
from melm.learn.data import starting_backbone
from melm.learn.model_file import load_model
from melm.learn.presets import learn_config
from melm.learn.region_store import RegionStore
from melm.proposals import ProposalSettings


def test_the_same_seed_gives_the_same_weights_and_figures(small_scenes, learned, shared_cache, tmp_path):
    again = small_train(small_scenes / "train-tags.csv", tmp_path / "again")
    assert weights_of(again) == weights_of(learned.run)
    assert log_of(again) == log_of(learned.run)


def test_images_side_by_side_give_the_same_weights_and_figures(small_scenes, learned, shared_cache, tmp_path):
    """A thread for each image of a step: what each drops, and the order their gradients are added in, stays."""
    run = small_train(small_scenes / "train-tags.csv", tmp_path / "run", threads=2)
    assert weights_of(run) == weights_of(learned.run)
    assert log_of(run) == log_of(learned.run)


def test_another_seed_gives_others(small_scenes, tmp_path):
    """Another random trunk, other layers, another order."""
    changes = {"backbone": "resnet18", "epochs": 1}
    runs = [small_train(small_scenes / "few.csv", tmp_path / str(seed), seed=seed, **changes) for seed in (0, 1)]
    weights = [weights_of(run) for run in runs]
    assert weights[0].keys() == weights[1].keys()
    same = {name for name, value in weights[0].items() if value == weights[1][name]}
    assert not [name for name in same if name.startswith("melm.") and name.endswith("weight")]
    assert log_of(runs[0])[0]["loss"] != log_of(runs[1])[0]["loss"]


def test_the_log_has_every_step_and_the_mean_of_every_epoch(learned):
    records = log_of(learned.run)
    steps, means = [r for r in records if "step" in r], [r for r in records if "mean" in r]
    assert [(r["epoch"], r["step"]) for r in steps] == [(e, s) for e in range(2) for s in range(7)]
    assert [r["rate"] for r in steps] == [1e-3] * 7 + [1e-4] * 7  # drop_after = 1
    assert [r["strength"] for r in steps] == [0.0] * 7 + [1 - math.exp(-0.5)] * 7
    for record in means:
        own = [r for r in steps if r["epoch"] == record["epoch"]]
        for name, value in record["mean"].items():
            assert value == pytest.approx(sum(r[name] for r in own) / 7)
    about = json.loads((learned.run / "run.json").read_text())
    assert about["config"] == small_config().as_dict() and about["images_per_step"] == 2
    assert torch.__version__.startswith(about["versions"]["torch"])


def test_figures_of_a_callback_are_in_the_log_and_change_nothing(small_scenes, learned, shared_cache, tmp_path):
    seen = []

    def measure(epoch, network, strength):
        assert not network.training
        torch.rand(3)  # a callback may draw numbers
        seen.append((epoch, round(strength, 6)))
        return {"figure": 0.5}

    run = small_train(small_scenes / "train-tags.csv", tmp_path / "run", after_epoch=measure)
    assert seen == [(1, 0.0), (2, round(1 - math.exp(-0.5), 6))]
    assert [r["measured"] for r in log_of(run) if "mean" in r] == [{"figure": 0.5}] * 2
    assert weights_of(run) == weights_of(learned.run)


def test_what_is_not_a_number_stops_the_run_and_names_the_image(small_scenes, learned, copied_cache, tmp_path):
    model = load_model(learned.run)
    store = RegionStore(model.network.trunk, model.config.proposals)
    image = small_scenes / "train" / "00007.jpg"
    path = store.path(content_key(image.read_bytes()))
    good = path.read_bytes()

    def spoil(epoch, network, strength):
        regions = np.load(path)
        regions[0, 3] = np.nan
        np.save(path, regions)

    run, data = tmp_path / "run", small_scenes / "train-tags.csv"
    with pytest.raises(MelmError) as stopped:
        small_train(data, run, after_epoch=spoil)
    done = sum(r["epoch"] == 1 for r in log_of(run))
    for words in (str(image), f"epoch 2, step {done + 1}", str(run / "checkpoint.json")):
        assert words in str(stopped.value)
    assert str(stopped.value).count(".jpg") == 1
    tensors, card = load_pair(run, "checkpoint")
    assert card["position"]["epoch"] == 1 and all(bool(t.isfinite().all()) for t in tensors.values())
    path.write_bytes(good)
    small_train(data, run)
    assert weights_of(run) == weights_of(learned.run)


def scrambled(boxes):
    random.Random(0).shuffle(boxes)
    return boxes


@pytest.mark.parametrize(
    "change",
    [
        scrambled,
        lambda boxes: [[1e9, -5, 0, float(i)] for i in range(len(boxes))],
        lambda boxes: ["nonsense" for _ in boxes],
    ],
    ids=["scrambled", "elsewhere", "nonsense"],
)
def test_true_boxes_cannot_reach_learning(own_scenes, shared_cache, tmp_path, change):
    """The same images and tags with other boxes: the same data to learning, and the same weights."""
    path = own_scenes / "train.json"
    coco = json.loads(path.read_text())
    there = {a["category_id"] for a in coco["annotations"]}
    coco["categories"] = [c for c in coco["categories"] if c["id"] in there]
    path.write_text(json.dumps(coco))
    runs = [small_train(Source(path, "coco"), tmp_path / "true", epochs=1)]
    boxes = change([annotation["bbox"] for annotation in coco["annotations"]])
    for annotation, box in zip(coco["annotations"], boxes, strict=True):
        annotation["bbox"], annotation["area"] = box, 7
    path.write_text(json.dumps(coco))
    runs.append(small_train(Source(path, "coco"), tmp_path / "changed", epochs=1))
    digests = [json.loads((run / "run.json").read_text())["data_digest"] for run in runs]
    assert digests[0] == digests[1]
    assert weights_of(runs[0]) == weights_of(runs[1])


def test_other_tags_give_other_weights(own_scenes, shared_cache, learned, tmp_path):
    """So that the test above could fail."""
    path = own_scenes / "train-tags.csv"
    rows = list(csv.reader(path.open()))
    names = sorted({name for _, tags in rows[1:] for name in tags.split("|") if name})
    rows[-1][1] = "|".join(names)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    run = small_train(path, tmp_path / "run")
    digests = [json.loads((r / "run.json").read_text())["data_digest"] for r in (run, learned.run)]
    assert digests[0] != digests[1] and weights_of(run) != weights_of(learned.run)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(small_scenes, shared_cache, tmp_path, method):
    run = small_train(small_scenes / "train-tags.csv", tmp_path / "run", method, epochs=1, accumulate=100)
    step = log_of(run)[0]
    figures = {k: v for k, v in step.items() if k not in ("epoch", "step")}
    assert all(math.isfinite(value) for value in figures.values()), figures
    assert step["loss"] > 0 and step["gradient_discovery"] > 0
    assert (step["gradient_localization"] > 0) == (METHODS[method].branches > 0)
    assert step["loss"] == pytest.approx(step["discovery"] + step["localization"], rel=1e-5)  # lambda = 1


@pytest.mark.slow
def test_the_papers_network_learns_as_a_whole(small_scenes, tmp_path):
    """VGG-F with all its layers, in the paper's way: all but the first convolutions change."""
    changes = {"weights": "none", "scales": (96, 128), "epochs": 1, "proposals": ProposalSettings("edge-boxes", 12)}
    config = learn_config("paper-vggf", "L2+ARL", changes)
    run = small_train(small_scenes / "few.csv", tmp_path / "run", config=config)
    assert all(math.isfinite(record["loss"]) for record in log_of(run) if "step" in record)
    begun, _ = starting_backbone(config)
    learned = load_model(run).network.trunk.backbone
    begun.freeze()
    for name, before in begun.named_parameters():
        assert torch.equal(before, learned.get_parameter(name)) != before.requires_grad, name


def test_learning_in_bfloat16(small_scenes, learned, tmp_path, bf16):
    """On a CPU that is made for it: nearly what single precision learns, twice the same. Another processor can use
    the run, and says nearly the same."""
    bf16(True)
    one, two = (
        small_train(small_scenes / "train-tags.csv", tmp_path / name, precision="bf16") for name in ("one", "two")
    )
    assert weights_of(one) == weights_of(two) and log_of(one) == log_of(two)
    assert weights_of(one) != weights_of(learned.run)
    first, exact = log_of(one)[0], log_of(learned.run)[0]
    assert first["loss"] == pytest.approx(exact["loss"], rel=0.02)
    assert first["gradient"] == pytest.approx(exact["gradient"], rel=0.1)
    image = min((small_scenes / "train").glob("*.jpg"))
    fast = load(one, device="cpu")(image)
    bf16(False)
    plain = load(one, device="cpu")(image)
    assert len(plain) and abs(fast.scores[0] - plain.scores[0]) < 0.05 * plain.scores[0]
