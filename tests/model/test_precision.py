"""Products in bfloat16 on a CPU: where they happen, and that nothing else is rounded."""

import threading

import numpy as np
import pytest
import torch

from conftest import draw_scene
from learners import TUNED, small_config
from melm.learn.map_store import MapStore
from melm.learn.network import build_network
from melm.learn.region_store import trunk_digest
from melm.learn.students import RetrainConfig
from melm.model.linear import Linear, linear
from melm.model.precision import bf16_is_fast, products
from melm.model.trunks import FrozenTrunk, TunedTrunk

CPU = torch.device("cpu")


def test_who_is_fast(bf16, monkeypatch):
    bf16(False)
    assert not bf16_is_fast(CPU)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert bf16_is_fast(CPU) and not bf16_is_fast(torch.device("cuda"))
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")  # another PyTorch
    assert not bf16_is_fast(CPU)


@pytest.mark.parametrize(("precision", "there"), [("fp32", True), ("bf16", False), ("fp16", False)])
def test_else_everything_stays_as_it_is(bf16, precision, there):
    bf16(there)
    x, weight = torch.randn(64, 300), torch.randn(100, 300)
    expected = linear(x, weight)
    with products(precision, CPU):
        assert torch.equal(linear(x, weight), expected)


def test_a_layer_rounds_what_it_takes_and_gives(bf16):
    """By hand: bfloat16 has 8 bits, so 257 is 256 to it, coming in or going out. What is given is of single precision's kind."""
    bf16(True)
    layer = Linear(512, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.0)
    x = torch.zeros(5, 512)
    x[:, 0] = torch.tensor([1.0, 256.0, 257.0, 3.5, 256.0])
    x[4, 1] = 1.0
    x.requires_grad_()
    with products("bf16", CPU):
        y = layer(x)
    assert y.dtype == torch.float32 and y[:, 0].tolist() == [1.0, 256.0, 256.0, 3.5, 256.0]
    y.sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    assert torch.equal(x.grad, torch.ones_like(x)) and layer.bias.grad.item() == 5


@pytest.mark.parametrize("backbone", ["lite0", "lite2", "resnet18"])
def test_a_trunk_reads_nearly_the_same(bf16, backbone):
    """What is read is single precision again, and lies in stores of its own. The basis is fitted to the same regions."""
    bf16(True)
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


def test_threads_do_not_disturb_each_other(bf16):
    """A layer that reads twice has both gradients added alike, whether or not another thread is done in between."""
    bf16(True)
    torch.manual_seed(0)
    layer, (x, y) = Linear(300, 64), torch.randn(2, 100, 300)

    def gradient(between):
        with products("bf16", CPU):
            first = layer(x)
            between()
            total = (first - 0.7 * layer(y)).square().sum()
        return torch.autograd.grad(total, layer.weight)[0]

    def another():
        def work():
            with products("bf16", CPU):
                layer(y)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert torch.equal(gradient(lambda: None), gradient(another))


def test_a_trunk_that_learns_along_multiplies_so_too(bf16):
    """Also where it only looks; its map is pooled into the same boxes."""
    bf16(True)
    pixels, objects = draw_scene(1)
    boxes, kinds = torch.tensor(objects).float(), []
    torch.manual_seed(0)
    trunk = build_network(small_config("MELM", **TUNED, precision="bf16"), 3).trunk
    assert isinstance(trunk, TunedTrunk)
    trunk.backbone.layer2.register_forward_hook(lambda module, given, made: kinds.append(made.dtype))
    assert trunk.look(pixels, boxes, 96).box.shape[0] == 2
    assert kinds == [torch.bfloat16]
