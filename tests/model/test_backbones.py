"""Shapes, strides, what is frozen, the order of pooled features, and the layers that are easy to get wrong."""

import bisect

import pytest
import torch
from torch.nn import functional as F

from melm.errors import UsageError
from melm.model.backbones import BACKBONES, InputConvention, build_backbone
from melm.model.backbones.efficientnet_lite import EfficientNetLite, SameConv2d
from melm.model.backbones.resnet import Bottleneck, resnet18
from melm.model.backbones.vgg import VGG16, VGGF, AlexNet

# name, channels, pooled size, features, map of a 160 x 224 image
EXPECTED = [
    ("vgg-f", 256, 6, 4096, (9, 13)),  # the first convolution does not pad
    ("alexnet", 256, 6, 4096, (9, 13)),
    ("vgg16", 512, 7, 4096, (10, 14)),
    ("resnet18", 256, 14, 512, (10, 14)),
    ("resnet50", 1024, 14, 2048, (10, 14)),
    ("resnet101", 1024, 14, 2048, (10, 14)),
    ("lite0", 1280, 7, 1280, (10, 14)),
    ("lite2", 1280, 7, 1280, (10, 14)),
]


def on_paper(name):
    """A backbone that has shapes but no numbers: the large ones would take half a gigabyte."""
    with torch.device("meta"):
        return build_backbone(name)


def image(height, width):
    return torch.rand(1, 3, height, width)


def test_every_backbone_is_expected_here():
    assert [row[0] for row in EXPECTED] == list(BACKBONES)


@pytest.mark.parametrize(("name", "channels", "size", "features", "cells"), EXPECTED)
def test_shapes(name, channels, size, features, cells):
    backbone = on_paper(name)
    assert (backbone.name, backbone.stride) == (name, 16)
    assert (backbone.channels, backbone.pooled_size, backbone.features) == (channels, size, features)
    assert backbone.trunk(torch.empty(1, 3, 160, 224, device="meta")).shape == (1, channels, *cells)
    for boxes in (0, 1, 5):
        assert backbone.head(torch.empty(boxes, size, size, channels, device="meta")).shape == (boxes, features)


def test_the_official_map_sizes_at_224():
    """What fc6 saw in training, before the last pooling: 13 x 13 for VGG-F and AlexNet, 14 x 14 for VGG16."""
    for name, side in (("vgg-f", 13), ("alexnet", 13), ("vgg16", 14)):
        assert on_paper(name).trunk(torch.empty(1, 3, 224, 224, device="meta")).shape[2:] == (side, side)


def test_an_unknown_name_is_answered_with_the_closest():
    with pytest.raises(UsageError, match="Did you mean 'vgg16'"):
        build_backbone("vgg-16")


@pytest.mark.parametrize("name", list(BACKBONES))
def test_freeze_takes_out_what_is_named_and_nothing_else(name):
    backbone = on_paper(name)
    backbone.freeze()
    left = {key for key, parameter in backbone.named_parameters() if parameter.requires_grad}
    if name.startswith("lite"):
        assert left == set()
    elif name.startswith("resnet"):
        assert not [
            key for key in left if key.startswith(("conv1", "bn1", "layer1")) or ".bn" in key or "downsample.1" in key
        ]
        assert {"layer2.0.conv1.weight", "layer2.0.downsample.0.weight", "layer4.0.conv1.weight"} <= left
    else:
        frozen = ("conv1", "conv2") if name == "vgg16" else ("conv1",)
        convolutions = {key for key in left if key.startswith("convolutions.")}
        assert not [key for key in convolutions if key.split(".")[1].startswith(frozen)]
        assert len(convolutions) == 2 * (9 if name == "vgg16" else 4)
        assert {"fc6.weight", "fc7.bias"} <= left


def test_batch_normalisation_never_learns_from_the_image():
    backbone = resnet18().train()
    before = {key: value.clone() for key, value in backbone.state_dict().items() if "running" in key}
    first = backbone.trunk(image(64, 64))
    assert backbone.training and first.requires_grad
    after = backbone.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


@pytest.mark.parametrize("make", [VGGF, AlexNet, VGG16])
def test_head_on_pooled_boxes_is_the_classic_head(make):
    """fc6 with its weights turned to (P, P, C) order equals the original on (C, P, P)."""
    torch.manual_seed(0)
    backbone = make(features=24).eval()
    size, channels = backbone.pooled_size, backbone.channels
    original = torch.nn.Linear(channels * size * size, 24)
    with torch.no_grad():
        turned = original.weight.view(24, channels, size, size).permute(0, 2, 3, 1).reshape(24, -1)
        backbone.fc6.weight.copy_(turned)
        backbone.fc6.bias.copy_(original.bias)
    pooled = torch.rand(3, channels, size, size)
    classic = F.relu(backbone.fc7(F.relu(original(pooled.flatten(1)))))
    ours = backbone.head(pooled.permute(0, 2, 3, 1).contiguous())
    torch.testing.assert_close(ours, classic, rtol=1e-5, atol=1e-6)
    assert ours.std() > 0


def test_dropout_is_on_while_learning_only():
    backbone = AlexNet(features=64)
    pooled = torch.rand(4, 6, 6, 256)
    assert torch.equal(backbone.eval().head(pooled), backbone.head(pooled))
    backbone.train()
    assert not torch.equal(backbone.head(pooled), backbone.head(pooled))


def test_local_response_normalisation_is_matconvnets():
    """y = x / (kappa + alpha * sum of squares over 5 neighbouring channels) ** beta, with alpha not divided by 5."""
    x = torch.rand(1, 8, 2, 3, dtype=torch.float64) * 100
    expected = torch.empty_like(x)
    for channel in range(8):
        near = x[:, max(0, channel - 2) : channel + 3]
        expected[:, channel] = x[:, channel] / (2 + 1e-4 * near.square().sum(1)) ** 0.75
    torch.testing.assert_close(VGGF(features=8).norm(x), expected)


@pytest.mark.parametrize("size", range(11, 17))
def test_pooling_of_vgg_f_pads_below_and_to_the_right(size):
    """MatConvNet's pad [0 1 0 1] and Caffe's rounding up are the same pooling, for odd and even maps."""
    x = torch.randn(1, 2, size, size)
    padded = F.pad(x, (0, 1, 0, 1), value=-torch.inf)
    assert torch.equal(VGGF(features=8).pool(x), F.max_pool2d(padded, 3, 2))


def small_lite(stride):
    """A Lite network of the real layout, narrow enough to be quick, with normalisation that is not the identity."""
    backbone = EfficientNetLite("small", width=0.25, depth=1.0, stride=stride).eval()
    random = torch.Generator().manual_seed(3)
    for key, value in backbone.state_dict().items():
        if "_bn" in key and value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=random) + (0.5 if key.endswith(("var", "weight")) else 0.0))
        elif value.is_floating_point():
            value.copy_(torch.randn(value.shape, generator=random) * 0.3)
    return backbone


@pytest.mark.parametrize(
    ("make", "height"),
    [
        (lambda: VGGF(8), 320),
        (lambda: AlexNet(8), 320),
        (lambda: VGG16(8), 320),
        (resnet18, 320),
        (lambda: small_lite(16), 1600),  # dilated, it sees far
    ],
    ids=["vgg-f", "alexnet", "vgg16", "resnet18", "lite"],
)
def test_cells_lie_where_stride_and_offset_say(make, height):
    """The rows of pixels that a cell looks at are centred at stride * (i + 0.5) + offset."""
    backbone = make().eval()
    backbone.norm = torch.nn.Identity()
    for key, value in backbone.state_dict().items():  # all positive, so that nothing seen can cancel
        value.fill_(0 if key.endswith(("bias", "running_mean")) else 1 / value[0].numel() if value.ndim > 1 else 1)
    cell = height // 32

    @torch.no_grad()
    def sees(rows):
        x = torch.zeros(1, 3, height, 32)
        x[:, :, rows] = 1
        return bool(backbone.trunk(x)[0, :, cell].sum() > 0)

    first = bisect.bisect_left(range(height), True, key=lambda row: sees(slice(0, row + 1)))
    last = height - 1 - bisect.bisect_left(range(height), True, key=lambda n: sees(slice(height - 1 - n, height)))
    assert 0 < first < last < height - 1
    assert (first + last + 1) / 2 == 16 * (cell + 0.5) + backbone.offset


def test_the_dilated_lite_network_holds_the_trained_one():
    """At stride 16 every second cell is a cell of the stride-32 network, to the last layer and up to the edges."""
    dilated, trained = small_lite(16).double(), small_lite(32).double()
    trained.load_state_dict(dilated.state_dict())
    x = image(160, 224).double()
    with torch.no_grad():
        fine, coarse = dilated.trunk(x), trained.trunk(x)
    assert fine.shape[2:] == (10, 14) and coarse.shape[2:] == (5, 7)
    assert coarse.std() > 0.01
    torch.testing.assert_close(fine[:, :, 1::2, 1::2], coarse)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("size", [(8, 9), (7, 10)])
def test_same_padding_rounds_up_and_pads_below_and_to_the_right(stride, kernel, size):
    layer = SameConv2d(2, 3, kernel, stride, bias=False)
    x = torch.randn(1, 2, *size)
    needed = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in size]
    (down, across) = needed
    padded = F.pad(x, (across // 2, -(-across // 2), down // 2, -(-down // 2)))
    torch.testing.assert_close(layer(x), F.conv2d(padded, layer.weight, stride=stride))
    assert layer(x).shape[2:] == tuple(-(-side // stride) for side in size)


def test_resnets_have_their_stride_on_the_3x3():
    block = Bottleneck(64, 32, 2)
    assert block.conv1.stride == (1, 1) and block.conv2.stride == (2, 2)
    assert block(torch.rand(1, 64, 8, 8)).shape == (1, 128, 4, 4)


def test_normalise_gives_each_network_its_own_numbers():
    pixels = torch.tensor([[[10, 20, 30], [255, 0, 128]]], dtype=torch.uint8)  # (1, 2, 3)
    red, green, blue = 10.0, 20.0, 30.0
    vgg_f, vgg16, lite = VGGF(8), VGG16(8), small_lite(16)
    assert vgg_f.normalise(pixels)[:, 0, 0].tolist() == pytest.approx([red - 123.68, green - 116.779, blue - 103.939])
    expected = [(red / 255 - 0.485) / 0.229, (green / 255 - 0.456) / 0.224, (blue / 255 - 0.406) / 0.225]
    assert vgg16.normalise(pixels)[:, 0, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert lite.normalise(pixels)[:, 0, 0].tolist() == pytest.approx([(v - 127) / 128 for v in (red, green, blue)])
    vgg16.convention = InputConvention("bgr", 255.0, (1.0, 2.0, 3.0), (1.0, 1.0, 2.0))
    assert vgg16.normalise(pixels)[:, 0, 0].tolist() == [blue - 1, green - 2, (red - 3) / 2]
    assert (vgg16.mean, vgg16.std) == ((1.0, 2.0, 3.0), (1.0, 1.0, 2.0))
    assert VGG16(8).mean == (0.485, 0.456, 0.406)  # another network is not touched


def test_normalise_takes_both_orders_and_bytes_only():
    backbone = VGGF(8)
    pixels = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8)
    assert torch.equal(backbone.normalise(pixels), backbone.normalise(pixels.permute(2, 0, 1)))
    for wrong in (pixels.float() / 255, pixels[:, :, :2], pixels[None]):
        with pytest.raises(ValueError, match="uint8"):
            backbone.normalise(wrong)
