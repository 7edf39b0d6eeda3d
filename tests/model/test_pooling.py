"""RoI pooling, aligning and averaging: by hand, against the definition written out slowly, and against torchvision's."""

import math
import subprocess
import sys
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melm.model import pooling, pooling_numba
from melm.model.pooling import frame_and_ring, region_mean, region_means, roi_align, roi_pool, roi_pool_reference
from melm.model.trunks import region_parts

BOTH = pytest.mark.parametrize("pool", [roi_pool, roi_pool_reference])


def torchvision_ops():
    ops = pooling.torchvision_ops()
    if ops is None:
        pytest.skip("torchvision is not installed, or does not work beside this torch")
    return ops


def c_round(value):
    """C's round: halves away from zero."""
    return int(Decimal(float(value)).to_integral_value(ROUND_HALF_UP))


def definition(features, boxes, size, scale, holes=None):
    """RoI max pooling and its argmax, bin by bin, in the precision of the features."""
    kind = features.dtype.type
    height, width, channels = features.shape
    pooled = np.zeros((len(boxes), size, size, channels), kind)
    argmax = np.full(pooled.shape, -1)
    for n, box in enumerate(boxes):
        x1, y1, x2, y2 = (c_round(kind(v) * kind(scale)) for v in box)
        tall, wide = (kind(max(end - start + 1, 1)) / kind(size) for start, end in ((y1, y2), (x1, x2)))
        hole = None
        if holes is not None:
            left, top, right, bottom = (kind(v) * kind(scale) for v in holes[n])  # cells wholly inside
            hole = [math.ceil(left), math.ceil(top), math.floor(right) - 1, math.floor(bottom) - 1]
        for i, j in np.ndindex(size, size):
            cells = [
                y * width + x
                for y in range(y1 + math.floor(kind(i) * tall), y1 + math.ceil(kind(i + 1) * tall))
                for x in range(x1 + math.floor(kind(j) * wide), x1 + math.ceil(kind(j + 1) * wide))
                if 0 <= y < height and 0 <= x < width
                if not (hole and hole[0] <= x <= hole[2] and hole[1] <= y <= hole[3])
            ]
            if cells:
                values = features.reshape(-1, channels)[cells]  # (cells, C)
                pooled[n, i, j] = values.max(axis=0)
                argmax[n, i, j] = np.array(cells)[values.argmax(axis=0)]  # the first, where several are equal
    return pooled, argmax


@st.composite
def problems(draw, kind=torch.float32, small=False):
    """(features, boxes, size, scale, holes); equal values are common, boxes may be empty, inside out or off the map."""
    height, width = draw(st.integers(1, 4 if small else 12)), draw(st.integers(1, 4 if small else 12))
    channels, size = draw(st.integers(1, 2 if small else 5)), draw(st.integers(1, 3 if small else 7))
    scale = draw(st.sampled_from([1.0, 1 / 16, 0.37]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (height, width, channels)
    values = random.integers(-2, 3, shape) if draw(st.booleans()) else random.standard_normal(shape)
    count = draw(st.integers(0, 3 if small else 6))
    reach = np.array([width, height, width, height]) / scale

    def corners():
        if draw(st.booleans()):  # in order, and halves of cells are common
            a, b = np.sort(random.integers(-2, 2 * max(width, height) + 4, (2, count, 2)), axis=0) / 2 / scale
            return np.concatenate([a, b], axis=1)
        return random.uniform(-0.5, 1.5, (count, 4)) * reach

    boxes, holes = corners(), corners() if draw(st.booleans()) else None
    if count and draw(st.booleans()):
        boxes[0, 2:] = boxes[0, :2]  # of no size
    return (
        torch.tensor(values, dtype=kind),
        torch.tensor(boxes, dtype=kind),
        size,
        scale,
        None if holes is None else torch.tensor(holes, dtype=kind),
    )


def with_gradient(pool, features, *rest):
    """Pooled features, and the gradient of a fixed sum of them."""
    features = features.clone().requires_grad_()
    pooled = pool(features, *rest)
    torch.manual_seed(0)
    weight = torch.randn(pooled.shape, dtype=torch.float64).to(pooled.dtype)
    (gradient,) = torch.autograd.grad((pooled * weight).sum(), features)
    return pooled.detach(), gradient, weight


@settings(deadline=None)
@given(st.sampled_from([torch.float32, torch.float64]).flatmap(problems))
def test_kernel_equals_reference_equals_definition(problem):
    features = problem[0]
    fast, fast_gradient, weight = with_gradient(roi_pool, *problem)
    plain, plain_gradient, _ = with_gradient(roi_pool_reference, *problem)
    assert torch.equal(fast, plain)
    assert torch.equal(roi_pool(*problem), plain)  # the way without argmax
    torch.testing.assert_close(fast_gradient, plain_gradient, atol=1e-6, rtol=1e-6)

    slow, argmax = definition(*(t if t is None or isinstance(t, (int, float)) else t.numpy() for t in problem))
    assert np.array_equal(fast.numpy(), slow)
    gradient = np.zeros((features.shape[0] * features.shape[1], features.shape[2]))
    *_, c = np.indices(argmax.shape)
    there = argmax >= 0
    np.add.at(gradient, (argmax[there], c[there]), weight.numpy()[there])
    np.testing.assert_allclose(fast_gradient.numpy(), gradient.reshape(features.shape), atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(problems(torch.float64, small=True))
def test_gradients(problem):
    features, boxes, size, scale, holes = problem
    random = np.random.default_rng(0).permutation(features.numel())  # all values apart: the maximum has a derivative
    features = torch.tensor(random, dtype=torch.float64).view(features.shape).requires_grad_()
    assert torch.autograd.gradcheck(lambda f: roi_pool(f, boxes, size, scale, holes), features)
    assert torch.autograd.gradcheck(lambda f: roi_pool_reference(f, boxes, size, scale, holes), features)
    assert torch.autograd.gradcheck(lambda f: roi_align(f, boxes, size, scale), features)
    assert torch.autograd.gradcheck(lambda f: region_mean(f, boxes, scale, holes), features)


MAP = torch.arange(1.0, 17).view(4, 4, 1)  # rows 1 2 3 4 | 5 6 7 8 | 9 10 11 12 | 13 14 15 16


@BOTH
def test_by_hand(pool):
    boxes = torch.tensor(
        [
            [0.0, 0, 3, 3],  # cells 0 to 3: four quarters
            [0.0, 0, 2, 2],  # three cells in two bins: the middle one is in both
            [1.0, 1, 1, 1],  # one cell in every bin
            [3.0, 3, 0, 0],  # inside out: the one cell at its start
            [2.0, 0, 5, 1],  # cells 2 to 5, of which 4 and 5 are off the map
            [9.0, 9, 9, 9],
        ]
    )
    expected = [[6, 8, 14, 16], [6, 7, 10, 11], [6] * 4, [16] * 4, [4, 0, 8, 0], [0] * 4]
    assert pool(MAP, boxes, 2, 1.0).view(6, 4).tolist() == expected


@BOTH
def test_halves_round_away_from_zero(pool):
    # 0.5 and 2.5 to 1 and 3 (to even: 0 and 2); -0.5 to -1, which is off the map (to even: 0)
    boxes = torch.tensor([[8.0, 8, 8, 8], [40.0, 40, 40, 40], [-8.0, -8, -8, -8]])
    assert pool(MAP, boxes, 1, 1 / 16).flatten().tolist() == [6, 16, 0]
    almost = torch.tensor([[0.49999997] * 4])  # adding a half in float32 would give 1
    assert pool(MAP, almost, 1, 1.0).item() == 1


@BOTH
def test_holes_by_hand(pool):
    boxes = torch.tensor([[0.0, 0, 3, 3]]).repeat(4, 1)
    holes = torch.tensor(
        [
            [1.0, 1, 3, 3],  # the middle: each quarter keeps its three outer cells
            [1.0, 1, 4, 4],  # all but the first row and column: nothing remains at the bottom right
            [0.0, 0, 4, 4],  # everything
            [2.0, 2, 1, 1],  # inside out: nothing is left out
        ]
    )
    expected = [[5, 8, 14, 16], [5, 4, 13, 0], [0] * 4, [6, 8, 14, 16]]
    assert pool(MAP, boxes, 2, 1.0, holes).view(4, 4).tolist() == expected
    negative, nothing = pool(-MAP, boxes[:2], 2, 1.0, holes[:2])  # an empty bin is 0, others may be less
    assert negative.flatten().tolist() == [-1, -3, -9, -12]
    assert nothing.flatten().tolist() == [-1, -3, -9, 0]


def test_no_frame_or_ring_on_the_map_is_empty():
    """Also of boxes of 20 pixels, not much more than a cell."""
    random = np.random.default_rng(0)
    start = random.uniform(40, 400, (500, 2))
    boxes = torch.tensor(np.concatenate([start, start + random.uniform(20, 60, (500, 2))], axis=1))
    frame, inner, ring, within = frame_and_ring(boxes)
    ones = torch.ones(40, 40, 1, dtype=torch.float64)
    for outer, hole in ((frame, inner), (ring, within)):
        assert (roi_pool(ones, outer, 1, 1 / 16, hole) == 1).all()


@BOTH
def test_of_equal_values_the_first_gets_the_gradient(pool):
    features = torch.zeros(3, 3, 2, requires_grad=True)
    pool(features, torch.tensor([[0.0, 0, 2, 2], [1.0, 1, 2, 2], [7.0, 7, 8, 8]]), 1, 1.0).sum().backward()
    assert features.grad[:, :, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]  # nothing from the box off the map


@BOTH
def test_nan_is_not_hidden(pool):
    features = MAP.clone()
    features[1, 1] = math.nan
    pooled = pool(features, torch.tensor([[0.0, 0, 3, 3]]), 2, 1.0).flatten()
    assert pooled.isnan().tolist() == [True, False, False, False]
    assert pool(torch.full((2, 2, 1), -math.inf), torch.tensor([[0.0, 0, 1, 1]]), 1, 1.0).item() == -math.inf


def random_problem(seed=0, height=19, width=23, channels=37, count=60):
    torch.manual_seed(seed)
    boxes = torch.rand(count, 4) * torch.tensor([width, height, width, height]) * 16
    boxes = torch.cat([torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])], dim=1)
    return torch.randn(height, width, channels), boxes


def test_the_number_of_threads_changes_no_bit():
    features, boxes = random_problem()
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 1, 7):
            torch.set_num_threads(threads)
            results.append(with_gradient(roi_pool, features, boxes, 7, 1 / 16)[:2])
    finally:
        torch.set_num_threads(before)
    for pooled, gradient in results[1:]:
        assert torch.equal(pooled, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_the_number_of_threads_stays_as_it_was_set():
    """numba starts its threads at its first parallel call, and OpenMP's setting is torch's too: so in a fresh process."""
    code = """
import torch
from melm.model.pooling import roi_pool
torch.set_num_threads(1)
roi_pool(torch.zeros(3, 3, 1), torch.zeros(1, 4), 1, 1.0)
print(torch.get_num_threads())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout.strip() == "1"


def test_a_map_too_large_for_short_argmax():
    features, boxes = random_problem(1, height=182, width=190, channels=2, count=8)
    assert features.shape[0] * features.shape[1] > 2**15
    fast, plain = (with_gradient(pool, features, boxes, 14, 1 / 16) for pool in (roi_pool, roi_pool_reference))
    assert torch.equal(fast[0], plain[0])
    torch.testing.assert_close(fast[1], plain[1], atol=1e-6, rtol=1e-6)


def test_input_that_is_not_contiguous():
    features, boxes = random_problem()
    turned = features.permute(2, 0, 1).contiguous().permute(1, 2, 0)  # as a convolution leaves it
    assert not turned.is_contiguous()
    wide = torch.cat([boxes, boxes], dim=1)[:, :4]
    for pool in (roi_pool, roi_pool_reference, roi_align):
        expected, gradient, _ = with_gradient(pool, features, boxes, 3, 1 / 16)
        result = with_gradient(pool, turned, wide, 3, 1 / 16)
        assert torch.equal(result[0], expected)
        torch.testing.assert_close(result[1], gradient)
    torch.testing.assert_close(region_mean(turned, wide, 1 / 16), region_mean(features, boxes, 1 / 16))
    pooled = roi_pool(turned.clone().requires_grad_(), boxes, 3, 1 / 16)
    pooled.permute(3, 0, 1, 2).sum().backward()  # a gradient that is expanded, not laid out


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_the_same_numbers(kind):
    """The largest of some numbers is one of them: nothing is rounded."""
    features, boxes = random_problem()
    features = features.to(kind)
    expected = roi_pool(features.float(), boxes, 7, 1 / 16)
    pooled, gradient, _ = with_gradient(roi_pool, features, boxes, 7, 1 / 16)
    assert pooled.dtype == gradient.dtype == kind
    assert torch.equal(pooled.float(), expected)
    assert roi_align(features, boxes, 2, 1 / 16).dtype == region_mean(features, boxes, 1 / 16).dtype == kind


def test_no_argmax_is_kept_where_no_gradient_is_wanted(monkeypatch):
    asked = []
    kernel = pooling_numba._forward
    monkeypatch.setattr(pooling_numba, "_forward", lambda *a: (asked.append((a[5], a[7].size)), kernel(*a)))
    features, boxes = random_problem()
    roi_pool(features, boxes, 2, 1 / 16)
    learned = features.clone().requires_grad_()
    with torch.no_grad():
        roi_pool(learned, boxes, 2, 1 / 16)
    roi_pool(learned, boxes, 2, 1 / 16)
    assert asked == [(False, 0), (False, 0), (True, 60 * 2 * 2 * 37)]


@settings(deadline=None)
@given(problems(torch.float32), st.booleans())
def test_means_by_the_kernel_are_those_of_plain_torch(problem, with_holes):
    """The plain way is taken where there is a way back, which gradcheck has checked above."""
    features, boxes, _, scale, holes = problem
    holes = holes if with_holes else None
    plain = region_mean(features.clone().requires_grad_(), boxes, scale, holes)
    assert not region_mean(features, boxes, scale, holes).requires_grad and plain.requires_grad
    torch.testing.assert_close(region_mean(features, boxes, scale, holes), plain.detach(), rtol=1e-6, atol=1e-6)


@settings(deadline=None)
@given(problems(torch.float32), st.integers(0, 4))
def test_parts_that_share_corners_are_read_as_each_by_itself(problem, bins):
    features, boxes, _, scale, _ = problem
    outer, holes = region_parts(boxes, 3, bins)
    together = region_means(features, outer, scale, holes)
    alone = [region_mean(features, part, scale, hole) for part, hole in zip(outer, holes, strict=True)]
    assert torch.equal(together, torch.stack(alone))


def test_no_boxes():
    features = torch.randn(5, 6, 3, requires_grad=True)
    none = torch.zeros(0, 4)
    for pool in (roi_pool, roi_pool_reference, roi_align):
        pooled = pool(features, none, 7, 1.0)
        assert pooled.shape == (0, 7, 7, 3)
        pooled.sum().backward()
    mean = region_mean(features, none, 1.0, none)
    assert mean.shape == (0, 3)
    mean.sum().backward()
    assert features.grad.abs().sum() == 0


def test_shapes_that_do_not_fit():
    features, boxes = torch.zeros(4, 4, 2), torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"\(1, 4, 4, 2\).*the map of one image"):
        roi_pool(features[None], boxes, 7, 1.0)
    with pytest.raises(ValueError, match=r"boxes have shape \(3, 5\)"):
        roi_align(features, torch.zeros(3, 5), 7, 1.0)
    with pytest.raises(ValueError, match=r"holes have shape \(2, 4\); expected \(3, 4\)"):
        region_mean(features, boxes, 1.0, boxes[:2])


def nchw(features):
    return features.permute(2, 0, 1)[None].contiguous()


@settings(deadline=None)
@given(st.sampled_from([torch.float32, torch.float64]).flatmap(problems))
def test_as_torchvision(problem):
    ops = torchvision_ops()
    features, boxes, size, scale, _ = problem

    def theirs(f, b, *rest):
        return ops.roi_pool(nchw(f), [b], *rest).permute(0, 2, 3, 1)

    def theirs_aligned(f, b, *rest):
        return ops.roi_align(nchw(f), [b], *rest, 2, True).permute(0, 2, 3, 1)

    for one, other, tolerance in ((roi_pool, theirs, 0), (roi_align, theirs_aligned, 1e-5)):
        ours, expected = (with_gradient(f, features, boxes, size, scale) for f in (one, other))
        torch.testing.assert_close(ours[0], expected[0], atol=tolerance, rtol=0)
        torch.testing.assert_close(ours[1], expected[1], atol=1e-5, rtol=1e-5)


def test_align_by_hand():
    # one bin, one point: the middle of the box, half a cell back. (2, 2) is between 6, 7, 10 and 11
    boxes = torch.tensor([[1.0, 1, 3, 3], [0.0, 0, 1, 1], [-1.0, -1, 0, 0], [-4.0, 0, -2, 2], [3.0, 3, 6, 6]])
    # the middle of the first cell; half a cell off the map still reads its edge; -3.5 is more than one off; 4 still reads 16
    assert roi_align(MAP, boxes, 1, 1.0, 1).flatten().tolist() == [8.5, 1, 1, 0, 16]
    # 2 x 2 points in one bin of the whole map at 0.5 and 2.5: the mean of the map
    assert roi_align(MAP, torch.tensor([[0.0, 0, 4, 4]]), 1, 1.0, 2).item() == 8.5


@settings(deadline=None)
@given(problems(torch.float64), st.integers(1, 3))
def test_align_by_definition(problem, sampling):
    features, boxes, size, scale, _ = problem
    height, width, channels = features.shape

    def read(y, x):
        if not (-1 <= y <= height and -1 <= x <= width):
            return np.zeros(channels)
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
        total = np.zeros(channels)
        for v in {math.floor(y), math.ceil(y)}:
            for u in {math.floor(x), math.ceil(x)}:
                total += (1 - abs(y - v)) * (1 - abs(x - u)) * features[v, u].numpy()
        return total

    expected = np.zeros((len(boxes), size, size, channels))
    for n, (x1, y1, x2, y2) in enumerate(boxes.numpy() * scale - 0.5):
        tall, wide = (y2 - y1) / size, (x2 - x1) / size
        for i, j, a, b in np.ndindex(size, size, sampling, sampling):
            y, x = y1 + i * tall + (a + 0.5) * tall / sampling, x1 + j * wide + (b + 0.5) * wide / sampling
            expected[n, i, j] += read(y, x) / sampling**2
    np.testing.assert_allclose(roi_align(features, boxes, size, scale, sampling).numpy(), expected, atol=1e-9)


def test_frame_and_ring_by_hand():
    # centre (30, 40), 36 wide and 18 high; a factor of 1.8 gives 20 x 10 and 64.8 x 32.4
    boxes = torch.tensor([[12.0, 31, 48, 49]])
    frame, frame_hole, ring, ring_hole = frame_and_ring(boxes)
    assert torch.equal(frame, boxes)
    assert torch.equal(ring_hole, boxes)
    torch.testing.assert_close(frame_hole, torch.tensor([[20.0, 35, 40, 45]]))
    torch.testing.assert_close(ring, torch.tensor([[-2.4, 23.8, 62.4, 56.2]]))
    _, half, double, _ = frame_and_ring(boxes, 2)
    assert half.tolist() == [[21, 35.5, 39, 44.5]]
    assert double.tolist() == [[-6, 22, 66, 58]]


def test_frame_and_ring_pooled():
    features = torch.zeros(12, 12, 1)
    features[4:8, 4:8] = 1  # the inside of the box
    features[5:7, 5:7] = 5  # its heart
    frame, frame_hole, ring, ring_hole = frame_and_ring(torch.tensor([[4.0, 4, 8, 8]]), 2)
    assert region_mean(features, frame, 1.0).item() == 2  # (12 * 1 + 4 * 5) / 16
    assert region_mean(features, frame, 1.0, frame_hole).item() == 1
    assert region_mean(features, ring, 1.0, ring_hole).item() == 0
    assert roi_pool(features, frame, 1, 1.0, frame_hole).item() == 1
    assert roi_pool(features, ring, 1, 1.0, ring_hole).item() == 0


@settings(deadline=None)
@given(st.data())
def test_region_mean_of_whole_cells(data):
    height, width, scale = (
        data.draw(st.integers(1, 9)),
        data.draw(st.integers(1, 9)),
        data.draw(st.sampled_from([1, 1 / 16])),
    )
    features = torch.randn(height, width, 3, generator=torch.Generator().manual_seed(height * 9 + width))
    corner = st.integers(-3, 12)
    box, hole = (data.draw(st.tuples(corner, corner, corner, corner)) for _ in range(2))
    for one in (None, hole):
        cells = [
            features[y, x]
            for y in range(height)
            for x in range(width)
            if box[0] <= x < box[2] and box[1] <= y < box[3]
            if not (one and one[0] <= x < one[2] and one[1] <= y < one[3])
        ]
        expected = torch.stack(cells).mean(0) if cells else torch.zeros(3)
        holes = None if one is None else torch.tensor([one]) / scale
        result = region_mean(features, torch.tensor([box], dtype=torch.float32) / scale, scale, holes)
        torch.testing.assert_close(result[0], expected, atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-16, 96), min_size=8, max_size=8))
def test_region_mean_of_parts_of_cells(sixteenths):
    features = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    box, hole = (torch.tensor([sixteenths[k : k + 4]]) for k in (0, 4))
    # cells cut into 16 x 16: borders at sixteenths fall between the small cells
    fine = features.repeat_interleave(16, 0).repeat_interleave(16, 1)
    for one in (None, hole):
        expected = region_mean(fine, box, 1.0, one)  # of whole cells, which the test above covers
        result = region_mean(features, box / 16, 1.0, None if one is None else one / 16)
        torch.testing.assert_close(result, expected, atol=1e-10, rtol=1e-10)


def test_region_mean_against_dense_points():
    features, boxes = random_problem(2, height=9, width=11, channels=3, count=12)
    holes = frame_and_ring(boxes)[1] + 7.3
    steps = 800
    result, less = region_mean(features, boxes, 1 / 16), region_mean(features, boxes, 1 / 16, holes)
    for n, (x1, y1, x2, y2) in enumerate(boxes.double().numpy()):
        x = x1 + (np.arange(steps) + 0.5) / steps * (x2 - x1)
        y = y1 + (np.arange(steps) + 0.5) / steps * (y2 - y1)
        values = features.double().numpy()[(y // 16).astype(int)[:, None], (x // 16).astype(int)]  # (steps, steps, C)
        np.testing.assert_allclose(result[n].numpy(), values.mean((0, 1)), atol=0.005)
        in_x, in_y = (
            (x >= holes[n, 0].item()) & (x <= holes[n, 2].item()),
            (y >= holes[n, 1].item()) & (y <= holes[n, 3].item()),
        )
        np.testing.assert_allclose(less[n].numpy(), values[~(in_y[:, None] & in_x)].mean(0), atol=0.005)


def test_region_mean_by_hand():
    boxes = torch.tensor([[0.5, 0, 2.5, 1], [0.25, 0.25, 0.5, 0.5], [3.5, 3.5, 9, 9], [4.0, 0, 9, 4], [2.0, 2, 1, 1]])
    # half of 1, 2 and half of 3, over 2; inside one cell; the rest of the last cell; off the map; inside out
    assert region_mean(MAP, boxes, 1.0).flatten().tolist() == [2, 1, 16, 0, 0]


def test_region_mean_of_a_large_map():
    """A small box in the far corner of a map whose sum is large: float32 sums would keep three digits of it."""
    features = torch.full((1000, 1000, 1), 1000.0)
    features[-1, -1] = 1000.5
    features[-2, -1] = 999.25
    boxes = torch.tensor([[999.0, 999, 1000, 1000], [999.0, 998, 1000, 999], [0.0, 0, 1000, 1000]])
    result = region_mean(features, boxes, 1.0).flatten()
    torch.testing.assert_close(result, torch.tensor([1000.5, 999.25, 1000]), atol=1e-3, rtol=0)
