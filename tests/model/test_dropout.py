"""ReLU with dropout against their definition."""

import pytest
import torch

from melm.model.dropout import RectifiedDropout


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_drops_its_share_and_keeps_the_mean(share):
    torch.manual_seed(0)
    x = torch.ones(400, 500)
    y = RectifiedDropout(share)(x)
    assert abs(float((y == 0).float().mean()) - share) < 0.005
    assert y.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)])
    assert abs(float(y.mean()) - 1) < 0.02


def test_the_same_random_state_gives_the_same_values_and_another_does_not():
    x, drop = torch.randn(50, 60), RectifiedDropout(0.5)
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)


def test_rows_and_columns_are_independent():
    torch.manual_seed(0)
    kept = (RectifiedDropout(0.5)(torch.ones(2000, 64)) > 0).float()
    correlation = torch.corrcoef(kept.T) - torch.eye(64)
    assert float(correlation.abs().max()) < 0.12


def test_gradients_pass_where_values_were_kept():
    torch.manual_seed(0)
    x = torch.ones(30, 30, requires_grad=True)
    y = RectifiedDropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_nothing_is_dropped_when_not_training():
    x = torch.randn(5, 5)
    assert torch.equal(RectifiedDropout(0.5).eval()(x), x.relu())
    assert torch.equal(RectifiedDropout(0.0)(x), x.relu())


def test_what_is_kept_is_rectified_and_scaled():
    torch.manual_seed(0)
    x = torch.randn(40, 50, requires_grad=True)
    y = RectifiedDropout(0.75)(x)
    kept = y > 0
    assert (
        torch.equal(y[kept], 4 * x[kept]) and 0.1 < float(kept[x > 0].float().mean()) < 0.4 and not kept[x <= 0].any()
    )
    y.backward(torch.full_like(y, 3.0))
    assert torch.equal(x.grad, 12.0 * kept)
