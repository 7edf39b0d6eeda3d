"""Products in bfloat16 on a CPU: where they happen, and that nothing else is rounded."""

import numpy as np
import pytest
import torch

from conftest import draw_scene
from learners import small_config
from melm.learn.map_store import MapStore
from melm.learn.network import build_network
from melm.learn.region_store import trunk_digest
from melm.learn.students import RetrainConfig
from melm.model.linear import Linear, linear
from melm.model.precision import bf16_is_fast, products
from melm.model.trunks import FrozenTrunk

CPU = torch.device("cpu")


def test_who_is_fast(amx, monkeypatch):
    amx(False)
    assert not bf16_is_fast(CPU)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert bf16_is_fast(CPU) and not bf16_is_fast(torch.device("cuda"))
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)  # an older PyTorch
    assert not bf16_is_fast(CPU)


@pytest.mark.parametrize(("precision", "there"), [("fp32", True), ("bf16", False), ("fp16", False)])
def test_else_everything_stays_as_it_is(amx, precision, there):
    amx(there)
    x, weight = torch.randn(64, 300), torch.randn(100, 300)
    expected = linear(x, weight)
    with products(precision, CPU):
        assert torch.equal(linear(x, weight), expected)


def test_a_layer_rounds_what_it_multiplies_and_nothing_else(amx):
    """By hand: bfloat16 has 8 bits, so 257 is 256 to it; its sums, and what comes out, are in single precision."""
    amx(True)
    layer = Linear(512, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.0)
    x = torch.zeros(4, 512)
    x[:, 0] = torch.tensor([1.0, 256.0, 257.0, 3.5])
    x.requires_grad_()
    with products("bf16", CPU):
        y = layer(x)
    assert y.dtype == torch.float32 and y[:, 0].tolist() == [1.0, 256.0, 256.0, 3.5]
    y.sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    assert torch.equal(x.grad, torch.ones_like(x)) and layer.bias.grad.item() == 4


@pytest.mark.parametrize("backbone", ["lite0", "lite2", "resnet18"])
def test_a_trunk_reads_nearly_the_same(amx, backbone):
    """What is read is single precision again, and lies in stores of its own. The basis is fitted to the same regions."""
    amx(True)
    pixels, objects = draw_scene(0)
    random = np.random.default_rng(0)
    corners = torch.from_numpy(random.uniform(0, 60, (300, 2)).astype(np.float32))
    boxes = torch.cat([torch.tensor(objects).float(), torch.cat([corners, corners + 40], dim=1)])
    read, digests = {}, {}
    for precision in ("fp32", "bf16"):
        torch.manual_seed(0)
        trunk = build_network(small_config(backbone=backbone, precision=precision, named_components=0), 3).trunk
        assert isinstance(trunk, FrozenTrunk)
        wide = trunk.look_wide(pixels, boxes)
        if precision == "fp32":
            fitted = wide
        trunk.fit(fitted)
        read[precision] = wide, trunk.look(pixels, boxes).box
        digests[precision] = trunk_digest(trunk)
        if backbone != "resnet18":  # which is not in two parts
            maps = trunk.student_maps(pixels, (96,), True)
            assert maps[0].dtype == torch.float32
            digests[precision] += str(MapStore(trunk, RetrainConfig(scales=(96,))).folder)
    assert digests["fp32"] != digests["bf16"]
    for exact, rounded in zip(read["fp32"], read["bf16"], strict=True):
        assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    wide, rounded = (read[precision][0] for precision in ("fp32", "bf16"))
    assert (rounded - wide).norm() < 0.03 * wide.norm()
