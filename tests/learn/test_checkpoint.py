"""Checkpoints: exact, whole or not there, and never more than their own folder."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from learners import small_train
from melm.errors import MelmError
from melm.learn.checkpoint import load_pair, optimizer_tensors, restore, restore_optimizer, save_pair
from melm.learn.model_file import load_model


def optimizers(kind):
    def one():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        if kind == "sgd":
            return layers, torch.optim.SGD(layers.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
        return layers, torch.optim.AdamW(layers.parameters(), 0.1, weight_decay=0.01)

    return one(), one()


def steps(layers, optimizer, seeds):
    for seed in seeds:
        optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(seed)
        layers(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_optimizer_goes_on_exactly(tmp_path, kind):
    (layers, optimizer), (others, other) = optimizers(kind)
    steps(layers, optimizer, range(3))
    weights = {f"network.{name}": value for name, value in layers.named_parameters()}
    save_pair(tmp_path, "checkpoint", {**weights, **optimizer_tensors(optimizer)}, {"count": 1})
    tensors, _ = load_pair(tmp_path, "checkpoint")
    restore(dict(others.named_parameters()), tensors, "network.", tmp_path)
    restore_optimizer(other, tensors)
    states = [o.state_dict()["state"] for o in (optimizer, other)]
    assert states[0].keys() == states[1].keys() and len(states[0]) == 4
    for i, kept in states[0].items():
        assert kept.keys() == states[1][i].keys()
        assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][i][k])) for k, value in kept.items())
    steps(layers, optimizer, range(3, 6))
    steps(others, other, range(3, 6))
    for one, two in zip(layers.parameters(), others.parameters(), strict=True):
        assert torch.equal(one, two)


def test_an_optimizer_that_has_not_stepped_goes_on(tmp_path):
    (_, optimizer), (_, other) = optimizers("adamw")
    restore_optimizer(other, optimizer_tensors(optimizer))
    assert other.state_dict()["state"] == {}


def test_only_the_last_checkpoint_stays(tmp_path):
    (tmp_path / "model-1.safetensors").write_bytes(b"of the model")
    for count in (1, 2, 3):
        save_pair(tmp_path, "checkpoint", {"a": torch.full((2,), float(count))}, {"count": count})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint-3.safetensors",
        "checkpoint.json",
        "model-1.safetensors",
    ]
    tensors, card = load_pair(tmp_path, "checkpoint")
    assert tensors["a"].tolist() == [3, 3] and card["count"] == 3


def test_numbers_that_a_killed_run_left_do_not_matter(tmp_path):
    save_pair(tmp_path, "checkpoint", {"a": torch.ones(1)}, {"count": 1})
    (tmp_path / "checkpoint-2.safetensors").write_bytes(b"written, but the card was not")
    assert load_pair(tmp_path, "checkpoint")[0]["a"].tolist() == [1]
    save_pair(tmp_path, "checkpoint", {"a": torch.zeros(1)}, {"count": 2})
    assert load_pair(tmp_path, "checkpoint")[0]["a"].tolist() == [0]


def test_there_need_be_none(tmp_path):
    assert load_pair(tmp_path, "checkpoint") is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checkpoint.json", b""),
        ("checkpoint.json", b"{"),
        ("checkpoint.json", b"[1, 2]"),
        ("checkpoint.json", b'{"count": 1}'),
        ("checkpoint.json", b"\xff\xfe"),
        ("checkpoint.json", b'{"count": 1, "numbers": "checkpoint-1.safetensors"}'),
        ("checkpoint.json", b'{"count": 1, "numbers": "checkpoint-1.safetensors", "position": {"epoch": 1, "stp": 2}}'),
        ("checkpoint.json", b'{"count": 1, "numbers": "..", "position": {}}'),
        ("checkpoint-1.safetensors", b""),
        ("checkpoint-1.safetensors", b"\x08\0\0\0\0\0\0\0garbage!"),
        ("checkpoint-1.safetensors", None),
    ],
)
def test_a_damaged_checkpoint_names_itself(small_scenes, learned, shared_cache, tmp_path, name, content):
    run = tmp_path / "run"
    shutil.copytree(learned.run, run)
    (run / "checkpoint-2.safetensors").rename(run / "checkpoint-1.safetensors")
    card = (run / "checkpoint.json").read_text()
    (run / "checkpoint.json").write_text(card.replace("checkpoint-2", "checkpoint-1"))
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    with pytest.raises(MelmError, match=r"(damaged|missing).*--overwrite") as refused:
        small_train(small_scenes / "train-tags.csv", run)
    assert str(run) in str(refused.value)


def test_half_a_file_is_damaged(tmp_path):
    save_pair(tmp_path, "checkpoint", {"a": torch.ones(1000)}, {"count": 1})
    path = tmp_path / "checkpoint-1.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(MelmError, match=r"checkpoint-1\.safetensors: damaged"):
        load_pair(tmp_path, "checkpoint")


def test_a_card_cannot_lead_out_of_the_folder(tmp_path):
    (tmp_path / "run").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "elsewhere.safetensors")
    for named in ("../elsewhere.safetensors", str(tmp_path / "elsewhere.safetensors")):
        (tmp_path / "run" / "checkpoint.json").write_text(json.dumps({"count": 1, "numbers": named}))
        with pytest.raises(MelmError, match=r"run/elsewhere\.safetensors: this file is missing"):
            load_pair(tmp_path / "run", "checkpoint")


def test_weights_of_another_shape_are_refused(tmp_path):
    own = {"layer": torch.zeros(2, 3)}
    with pytest.raises(MelmError, match=r"shape \(3, 2\) for layer; shape \(2, 3\) was expected"):
        restore(own, {"network.layer": torch.zeros(3, 2)}, "network.", tmp_path)
    with pytest.raises(MelmError, match="nothing for layer"):
        restore(own, {}, "network.", tmp_path)


@pytest.mark.parametrize("missing", ["config", "classes", "convention", "strength"])
def test_a_damaged_model_names_itself(learned, tmp_path, missing):
    card = json.loads((learned.run / "model.json").read_text())
    del card[missing]
    (tmp_path / "model.json").write_text(json.dumps(card))
    (tmp_path / card["numbers"]).symlink_to(learned.run / card["numbers"])
    with pytest.raises(MelmError, match=r"model\.json: damaged"):
        load_model(tmp_path)
