"""The recipes: the paper's numbers, what a method changes on a trunk, and words for wrong settings."""

import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melm.commands.learning import config_for, train
from melm.commands.options import source_of
from melm.config import METHODS
from melm.errors import UsageError
from melm.learn.presets import PRESETS, LearnConfig, for_images, learn_config
from melm.proposals import ProposalSettings


@pytest.mark.parametrize(("preset", "backbone"), [("paper-vggf", "vgg-f"), ("paper-vgg16", "vgg16")])
def test_the_papers_recipe(preset, backbone):
    config = learn_config(preset)
    assert (config.preset, config.backbone, config.trunk) == (preset, backbone, "tuned")
    assert (config.optimizer, config.momentum, config.weight_decay) == ("sgd", 0.9, 5e-4)
    assert (config.accumulate, config.epochs, config.flips) == (1, 20, True)
    assert [config.rate(epoch) for epoch in range(20)] == pytest.approx([5e-3] * 15 + [5e-4] * 5)
    assert config.scales == (480, 576, 688, 864, 1200)
    assert config.settings.localization_weight == 0.1  # lambda of the released command
    assert not config.settings.reads_surround and config.settings.prior_weight == 0
    assert (config.proposals.method, config.proposals.max_boxes) == ("selective-search", 2000)
    assert config.proposals.min_side == 20


def test_the_fast_recipe_reads_the_surround_and_the_prior():
    config = learn_config()
    assert (config.preset, config.trunk, config.optimizer) == ("fast", "frozen", "adamw")
    assert config.settings.surround and config.settings.branch_sees_surround and config.settings.prior_weight == 6
    assert config.settings.contrast_weight == 1 and config.settings.score_weight == 0.5
    assert config.settings.size_weight == 0  # it helps where objects are of all sizes, and costs where they are not
    assert (config.proposals.method, config.proposals.max_boxes, config.boxes_a_step) == ("edge-boxes", 800, 400)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_itself_on_every_preset(preset, method):
    """A preset decides what is read and how the parts are weighed, never what the method is."""
    inputs = {
        "surround",
        "branch_sees_surround",
        "prior_weight",
        "localization_weight",
        "contrast_weight",
        "score_weight",
    }
    own, here = METHODS[method].as_dict(), learn_config(preset, method).settings.as_dict()
    assert {name for name in own if own[name] != here[name]} <= inputs


def test_changes_by_name_reach_the_recipe_and_the_method():
    config = learn_config("fast", "OICR", {"hidden": 64, "top": 50, "proposals": ProposalSettings("edge-boxes")})
    assert (config.hidden, config.settings.top, config.proposals.method) == (64, 50, "edge-boxes")
    assert (config.method, config.settings.teaching, config.settings.labels) == ("OICR", "chain", "hard")


def test_the_learning_rate_drops_to_a_tenth():
    config = learn_config(changes={"epochs": 4, "drop_after": 3, "learning_rate": 0.02})
    assert [config.rate(epoch) for epoch in range(4)] == pytest.approx([0.02, 0.02, 0.02, 0.002])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rte": 1.0}, "unknown setting 'learning_rte'. Did you mean 'learning_rate'?"),
        ({"clique_io": 0.5}, "Did you mean 'clique_iou'?"),
        ({"preset": "fast"}, "unknown setting 'preset'"),
        ({"backbone": "alexnett"}, "unknown backbone 'alexnett'. Did you mean 'alexnet'?"),
        ({"optimizer": "adam"}, "Did you mean 'adamw'?"),
        ({"trunk": "frosen"}, "Did you mean 'frozen'?"),
        ({"epochs": "8"}, "epochs is '8'; a value of type int was expected"),
        ({"epochs": 2.5}, "epochs is 2.5; a value of type int was expected"),
        ({"epochs": True}, "epochs is True; a value of type int was expected"),
        ({"flips": 1}, "flips is 1; a value of type bool was expected"),
        ({"learning_rate": None}, "learning_rate is None; a value of type float was expected"),
        ({"top": 1.5}, "top is 1.5; a value of type int was expected"),
        ({"epochs": 0}, "epochs is 0; at least 1 was expected"),
        ({"seed": -1}, "seed is -1; at least 0 was expected"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; a number above 0 was expected"),
        ({"learning_rate": -1}, "learning_rate is -1; a number above 0 was expected"),
        ({"dropout": 1.0}, "dropout and momentum are from 0 to below 1"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"scales": ()}, "scales are ()"),
        ({"scales": (8,)}, "sides of 32 to 10000 pixels were expected"),
        ({"scales": 480}, "scales are 480"),
        ({"scales": (480.5,)}, "scales are (480.5,)"),
        ({"proposals": "edge-boxes"}, "proposals"),
    ],
)
def test_wrong_settings_are_refused(changes, words):
    with pytest.raises(UsageError) as refused:
        learn_config(changes=changes)
    assert words in str(refused.value)


@pytest.mark.parametrize(("preset", "method"), [("fats", "L2+ARL"), ("fast", "L2+AR")])
def test_an_unknown_preset_or_method_is_refused(preset, method):
    with pytest.raises(UsageError, match=r"Did you mean '(fast|L2\+ARL)'"):
        learn_config(preset, method)


@given(
    preset=st.sampled_from(list(PRESETS)),
    method=st.sampled_from(list(METHODS)),
    scales=st.lists(st.integers(32, 10_000), min_size=1, max_size=5).map(tuple),
    learning_rate=st.floats(1e-9, 10, allow_subnormal=False),
    epochs=st.integers(1, 1000),
    weights=st.text(max_size=20),
    boxes=st.sampled_from([ProposalSettings(), ProposalSettings("edge-boxes", 7, 3.5, whole_image=False)]),
)
def test_a_configuration_survives_json(preset, method, scales, learning_rate, epochs, weights, boxes):
    changes = {"scales": scales, "learning_rate": learning_rate, "epochs": epochs, "weights": weights}
    config = learn_config(preset, method, {**changes, "proposals": boxes})
    assert LearnConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_presets_are_listed(command):
    said = command("presets").stdout
    assert all(name in said for name in PRESETS) and said.count("cost: ") == len(PRESETS) == said.count("gives: ")
    listed = json.loads(command("presets", "--json").stdout)
    assert {name: LearnConfig.from_dict(kept) for name, kept in listed.items()} == {
        name: preset.config for name, preset in PRESETS.items()
    }


@pytest.mark.parametrize(
    ("images", "epochs"),
    [(5000, 3), (294, 3), (293, 4), (100, 9), (1, 880), (0, 880)],
)
def test_few_images_are_seen_more_often(images, epochs):
    """At least 220 steps of 4 images; the learning rate drops after two thirds of them, as in the preset."""
    config = for_images(learn_config(), images)
    assert (config.epochs, config.drop_after) == (epochs, max(1, epochs * 2 // 3))
    if epochs == 3:
        assert config == learn_config()


def test_the_papers_recipes_stay_as_they_are():
    assert for_images(learn_config("paper-vgg16"), 10) == learn_config("paper-vgg16")


@pytest.mark.parametrize(("words", "epochs"), [([], 68), (["--epochs", "2"], 2), (["--set", "epochs=1"], 1)])
def test_epochs_that_somebody_asked_for_are_never_changed(words, epochs, small_scenes):
    """13 images: 68 epochs if nobody says how many."""
    with click.Context(train) as context:
        train.parse_args(context, [str(small_scenes / "train-tags.csv"), "--out", "run", *words])
    options = dict(context.params)
    names = ("epochs", "learning_rate", "accumulate", "seed")
    asked = {name: options.pop(name) for name in names}
    assert config_for(options, asked, source_of(options))[0].epochs == epochs
