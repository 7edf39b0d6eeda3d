"""Products by oneDNN against PyTorch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from melm.model.linear import LEAST, Linear, linear, onednn, suits

there = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch is built without oneDNN")


def both(x, weight, bias, gradient):
    """Product and gradients, of ours and of PyTorch's."""
    results = []
    for product in (linear, F.linear):
        inputs = [t.clone().requires_grad_() for t in (x, weight) + (() if bias is None else (bias,))]
        y = product(*inputs)
        results.append((y.detach(), *torch.autograd.grad(y, inputs, gradient)))
    return results


@there
@given(st.integers(1, 70), st.integers(1, 90), st.booleans(), st.integers(0, 2**31))
def test_products_and_gradients_are_pytorchs(rows, outputs, biased, seed):
    random = torch.Generator().manual_seed(seed)
    inputs = -(-LEAST // (rows * outputs)) if rows * outputs > 300 else 3000
    x, weight = torch.randn(rows, inputs, generator=random), torch.randn(outputs, inputs, generator=random)
    bias = torch.randn(outputs, generator=random) if biased else None
    ours, theirs = both(x, weight, bias, torch.randn(rows, outputs, generator=random))
    for mine, his in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, his, rtol=1e-4, atol=1e-3)


@there
def test_which_products_are_onednns():
    x, weight = torch.zeros(64, 128), torch.zeros(128, 128)
    assert suits(x, weight)
    assert not suits(x[:-1], weight)  # too small
    assert not suits(x.double(), weight.double())
    assert not suits(x.to("meta"), weight)
    answers = []
    torch.jit.trace(lambda x: answers.append(suits(x, weight)) or x + 1, x, check_trace=False)
    assert answers == [False]


@there
@pytest.mark.parametrize("shape", [(256, 512), (16, 16, 512), (2, 8, 16, 512)])
def test_a_layer_of_any_rows(shape):
    """By hand: ones by a row of w are 512 w; the layer is its weights' own, strided or not."""
    layer = Linear(512, 16)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(16.0)[:, None].expand(16, 512))
        layer.bias.fill_(0.5)
    x = torch.ones(shape)
    assert suits(x, layer.weight)
    expected = (512 * torch.arange(16.0) + 0.5).expand(*shape[:-1], 16)
    assert torch.equal(layer(x), expected)
    strided = torch.ones(*shape[:-1], 1024)[..., ::2]
    assert torch.equal(layer(strided), expected)


@there
def test_the_same_bits_on_any_number_of_threads():
    torch.manual_seed(0)
    x, weight, gradient = torch.randn(800, 1500), torch.randn(500, 1500), torch.randn(800, 500)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(both(x, weight, None, gradient)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_elsewhere_it_is_pytorchs():
    """Other kinds of numbers, and no rows."""
    x, weight = torch.randn(64, 300, dtype=torch.float64), torch.randn(100, 300, dtype=torch.float64)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert linear(torch.zeros(0, 300), torch.zeros(100, 300)).shape == (0, 100)
    assert not onednn(x)
