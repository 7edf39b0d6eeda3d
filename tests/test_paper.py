"""Every numbered equation of the paper on three or four boxes, with the expected value worked out by hand.

The boxes A, B, C are slices of one another and D lies elsewhere:
    O(A, B) = 80/100 = 0.8    O(B, C) = 64/80 = 0.8    O(A, C) = 64/100 = 0.64    O(D, any) = 0
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from melm.config import MELM as MELM_CONFIG
from melm.config import METHODS
from melm.errors import UsageError
from melm.model.branches import Regions
from melm.model.cliques import Cliques, NotFinite, coordinate_order, every_proposal, partition_cliques
from melm.model.entropy import (
    discovery_loss,
    global_entropy,
    image_loss,
    kernel,
    local_entropy,
    localization_loss,
    log_clique_weight,
    min_entropy_loss,
    neighbour_weight,
)
from melm.model.labels import make_labels, neighbourhood, overlaps
from melm.model.melm import MELM, MinEntropyLoss, among_known
from melm.model.objects import PseudoObjects, all_objects, objects_of_discovery, top_objects
from melm.model.recurrence import aggregate, feedback_strength, object_score
from melm.model.scoring import Joint, TwoStream

A, B, C, D = (0, 0, 10, 10), (0, 0, 10, 8), (0, 0, 10, 6.4), (20, 20, 30, 30)
BOXES = torch.tensor([A, B, C, D], dtype=torch.float64)
joint, two_stream = Joint.log_prob, TwoStream.log_prob


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def close(found, expected):
    found, expected = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


# Two cliques, {A, B} and {D}, and logits that are logarithms of whole numbers.
TWO_CLIQUES = Cliques(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), 2)
LOGITS = tensor([[1, 4], [4, 1], [3, 1]]).log()  # rows A, B, D
# The mean logit of {A, B} is log of the geometric mean, sqrt(1 x 4) = 2 for both classes; so exp(s) is [2 2; 3 1], 8 in all.
CLIQUE_PROB = tensor([[2, 2], [3, 1]]) / 8


# Eq. 1


def test_eq_1_total():
    close(min_entropy_loss(tensor(2.0), [tensor(3.0), tensor(5.0)], weight=0.1), 2.8)


# Eq. 2


def test_eq_2_cliques():
    """C is best; A overlaps C by 0.64 only, and still joins its clique through B."""
    cliques = partition_cliques(BOXES, tensor([0.1, 0.2, 0.9, 0.5]), clique_iou=0.7)
    assert cliques.selected.tolist() == [2, 3, 1, 0]  # C, D, B, A
    assert cliques.ids.tolist() == [0, 1, 0, 0] and cliques.count == 2
    assert sorted(cliques.members(0).tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("tau", "top", "sizes"),
    [
        (0.7, 200, [3, 1]),
        (0.8, 200, [3, 1]),  # at least tau, not more than tau
        (0.81, 200, [1, 1, 1, 1]),
        (1.0, 200, [1, 1, 1, 1]),
        (0.7, 3, [2, 1]),  # A, the worst, is not selected
        (0.7, 1, [1]),
    ],
)
def test_eq_2_threshold_and_top(tau, top, sizes):
    cliques = partition_cliques(BOXES, tensor([0.1, 0.2, 0.9, 0.5]), tau, top)
    assert torch.bincount(cliques.ids).tolist() == sizes


def test_eq_2_two_equal_scores_are_ordered_by_coordinates():
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        cliques = partition_cliques(BOXES[order], torch.full((4,), 0.5), 0.7)
        assert BOXES[order][cliques.selected].tolist() == [list(C), list(B), list(A), list(D)]


# Eq. 3 to 7, joint


def test_eq_4_joint():
    close(joint(TWO_CLIQUES.mean(LOGITS), None).exp(), CLIQUE_PROB)
    close(joint(LOGITS, None).exp(), tensor([[1, 4], [4, 1], [3, 1]]) / 14)


def test_eq_4_two_stream():
    """A softmax over classes times one over cliques, of the clique's mean logits."""
    of_class = TWO_CLIQUES.mean(LOGITS)  # exp [2 2; 3 1]: over classes [1/2 1/2; 3/4 1/4]
    location = tensor([[1, 1], [3, 5]]).log()  # over cliques [1/4 1/6; 3/4 5/6]
    close(two_stream(of_class, location).exp(), [[1 / 8, 1 / 12], [9 / 16, 5 / 24]])


def test_eq_4_two_stream_of_one_class_is_a_sigmoid():
    close(two_stream(tensor([[0.0], [math.log(3)]]), tensor([[0.0], [0.0]])).exp(), [[1 / 4], [3 / 8]])


def test_eq_3_and_5_global_entropy():
    log_prob = CLIQUE_PROB.log()
    close(global_entropy(log_prob, weighted=False), [-math.log(5 / 8), -math.log(3 / 8)])
    # w is [1/2 1/2; 3/4 1/4]: the sums are 1/8 + 9/32 = 13/32 and 1/8 + 1/32 = 5/32
    close(global_entropy(log_prob), [-math.log(13 / 32), -math.log(5 / 32)])


def test_eq_6_clique_weight():
    close(log_clique_weight(CLIQUE_PROB.log()).exp(), [[1 / 2, 1 / 2], [3 / 4, 1 / 4]])


def test_eq_7_discovery_loss():
    """Class 0 is there, class 1 is not: p(1, h) is 4/14, 1/14, 1/14 over all three proposals."""
    entropy, negatives = -math.log(13 / 32), -(math.log(10 / 14) + 2 * math.log(13 / 14))
    log_not = Joint.log_not(LOGITS, None)
    tags, all_known = tensor([1, 0]), tensor([1, 1])
    close(discovery_loss(CLIQUE_PROB.log(), log_not, tags, all_known), entropy + negatives)
    close(discovery_loss(CLIQUE_PROB.log(), log_not, tags, tensor([1, 0])), entropy)  # nobody knows of class 1
    close(discovery_loss(CLIQUE_PROB.log(), log_not, tags, tensor([0, 1])), negatives)
    no_tags = -sum(math.log(1 - p / 14) for p in (1, 4, 4, 1, 3, 1))
    close(discovery_loss(CLIQUE_PROB.log(), log_not, tensor([0, 0]), all_known), no_tags)
    both = -math.log(13 / 32) - math.log(5 / 32)
    close(discovery_loss(CLIQUE_PROB.log(), log_not, tensor([1, 1]), all_known), both)


# Eq. 8


def test_eq_8_discovered_objects():
    """w p is [1/8 1/8; 9/32 1/32]: class 0 is in clique {D}, class 1 in {A, B}, where A has the larger p(1, h) = 4/14."""
    found = objects_of_discovery(
        joint(LOGITS, None), CLIQUE_PROB.log(), TWO_CLIQUES, torch.tensor([0, 1]), torch.tensor([0, 1, 2])
    )
    assert found.index.tolist() == [2, 0] and found.classes.tolist() == [0, 1]
    close(found.confidence, [3 / 4, 1 / 2])  # w_Hc


def test_eq_8_objects_of_a_branch():
    log_prob = tensor([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.5, 0.4, 0.1]]).log()
    found = top_objects(log_prob, torch.tensor([0, 1]), torch.arange(3))
    assert found.index.tolist() == [1, 2]
    close(found.confidence, [0.6, 0.4])


def test_accumulated_objects_are_the_surest_first():
    first = PseudoObjects(torch.tensor([3]), torch.tensor([0]), tensor([0.5]))
    second = PseudoObjects(torch.tensor([1, 2]), torch.tensor([0, 1]), tensor([0.9, 0.5]))
    found = all_objects([first, second])
    assert found.index.tolist() == [1, 3, 2] and found.confidence.tolist() == [0.9, 0.5, 0.5]


# Eq. 9 to 11. One object: A, of class 1 of 2, with confidence 0.5. Overlaps with A, B, C, D are 1, 0.8, 0.64, 0.

OBJECT = PseudoObjects(torch.tensor([0]), torch.tensor([1]), tensor([0.5]))
BRANCH = tensor([[0.2, 0.5, 0.3], [0.1, 0.4, 0.5], [0.3, 0.2, 0.5], [0.4, 0.1, 0.5]]).log()
G = [1, math.exp(-10 * 0.2**2), math.exp(-10 * 0.36**2)]  # kernel with a = 10


def labels(reading, **options):
    return make_labels(OBJECT, BOXES, BRANCH, reading, a=10, **options)


def test_kernel():
    close(kernel(tensor([1, 0.8, 0.64]), 10), G)


def test_eq_10_soft():
    made = labels("soft")
    close(made.target, [[0, G[0], 0], [0, G[1], 1 - G[1]], [0, G[2], 1 - G[2]], [0, 0, 1]])
    close(made.weight, [0.5] * 4)


def test_eq_10_confidence_in_the_target():
    made = labels("confident_target")
    close(made.target, [[0, G[k] / 2, 1 - G[k] / 2] for k in range(3)] + [[0, 0, 1]])
    close(made.weight, [1] * 4)


def test_eq_10_hard():
    close(labels("hard").target, [[0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    close(labels("hard", object_iou=0.7).target, [[0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])


def test_eq_10_literal_is_one_constant_around_the_object():
    """p(1, h) is 0.5, 0.4, 0.2 around A; the mean with weights g is the same target for the three."""
    mean = (G[0] * 0.5 + G[1] * 0.4 + G[2] * 0.2) / sum(G)
    close(neighbour_weight(tensor([0.5, 0.4, 0.2]), tensor(G)), [mean / 0.5, mean / 0.4, mean / 0.2])
    made = labels("literal")
    close(made.target, [[0, mean, 0]] * 3 + [[0, 0, 0]])
    close(made.weight, [1, 1, 1, 0])


def test_eq_10_smoothed_is_centred_at_each():
    """O(B, .) is 0.8, 1, 0.8 and O(C, .) is 0.64, 0.8, 1."""
    near, far = G[1], G[2]
    means = [
        (0.5 + near * 0.4 + far * 0.2) / (1 + near + far),
        (near * 0.5 + 0.4 + near * 0.2) / (1 + 2 * near),
        (far * 0.5 + near * 0.4 + 0.2) / (1 + near + far),
    ]
    close(labels("smoothed").target, [[0, m, 1 - m] for m in means] + [[0, 0, 1]])


def test_eq_9_and_11_soft():
    made = labels("soft")
    per_proposal = [
        -0.5 * math.log(0.5),
        -0.5 * (G[1] * math.log(0.4) + (1 - G[1]) * math.log(0.5)),
        -0.5 * (G[2] * math.log(0.2) + (1 - G[2]) * math.log(0.5)),
        -0.5 * math.log(0.5),
    ]
    entropy = local_entropy(BRANCH, made.target, made.weight)
    close(entropy, per_proposal)
    close(localization_loss(entropy), sum(per_proposal) / 4)
    close(localization_loss(entropy, averaged=False), sum(per_proposal))


def test_omega_is_the_clique_of_the_object():
    cliques = Cliques(torch.tensor([1, 0, 3]), torch.tensor([0, 0, 1]), 2)  # {B, A}, {D}; C not selected
    assert neighbourhood(OBJECT, cliques, 4).tolist() == [True, True, False, False]
    alone = PseudoObjects(torch.tensor([2]), torch.tensor([1]), tensor([0.5]))  # C is in no clique
    assert neighbourhood(alone, cliques, 4).tolist() == [False, False, True, False]


def test_a_proposal_belongs_to_the_object_it_overlaps_most():
    objects = PseudoObjects(torch.tensor([0, 3]), torch.tensor([1, 0]), tensor([0.9, 0.4]))
    made = make_labels(objects, BOXES, BRANCH, "hard", a=10)
    close(made.target, [[0, 1, 0]] * 3 + [[1, 0, 0]])
    close(made.weight, [0.9, 0.9, 0.9, 0.4])


def test_an_image_without_tags_is_background_all_over():
    nothing = PseudoObjects(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), tensor([]))
    made = make_labels(nothing, BOXES, BRANCH, "soft", a=10)
    close(made.target, [[0, 0, 1]] * 4)
    close(made.weight, [1] * 4)
    assert made.inside.all()
    # where Omega is a clique, or nothing is ever background, there is nothing to teach
    assert not make_labels(nothing, BOXES, BRANCH, "soft", a=10, cliques=TWO_CLIQUES).inside.any()
    assert not make_labels(nothing, BOXES, BRANCH, "literal", a=10).inside.any()


def test_eq_10_literal_runs_over_the_whole_clique():
    """C overlaps A by 0.64 and D not at all: with all four in one clique, all four have the mean."""
    clique = Cliques(torch.arange(4), torch.zeros(4, dtype=torch.long), 1)
    g = [*G, math.exp(-10)]
    mean = (g[0] * 0.5 + g[1] * 0.4 + g[2] * 0.2 + g[3] * 0.1) / sum(g)
    close(labels("literal", cliques=clique).target, [[0, mean, 0]] * 4)


def test_unknown_classes_are_left_out_of_the_localization_loss():
    """p is 0.2, 0.5, 0.3 of which the first is unknown: 0.5/0.8 and 0.3/0.8 remain, and the first gets no gradient."""
    logits = tensor([[0.2, 0.5, 0.3]]).log().requires_grad_()
    among = among_known(torch.log_softmax(logits, dim=1), tensor([0, 1]))
    close(among[0, 1:].exp(), [5 / 8, 3 / 8])
    among[0, 2].backward()
    close(logits.grad, [[0, -5 / 8, 5 / 8]])


def test_overlaps():
    close(overlaps(BOXES, BOXES[:1])[:, 0], [1, 0.8, 0.64, 0])
    close(overlaps(tensor([[3, 3, 3, 3]]), tensor([[3, 3, 3, 3]])), [[0]])


# Alg. 1


def test_alg_1_feedback():
    score = object_score(tensor([[0.2, 0.7, 0.1], [0.1, 0.1, 0.8]]).log())
    close(score, [0.7, 0.1])  # the largest but for background
    features = tensor([[2, 4], [10, 20]])
    close(aggregate(features, score, 1.0), [[1.4, 2.8], [1, 2]])
    close(aggregate(features, score, 0.0), features)
    close(aggregate(features, score, 0.5), features * tensor([[0.85], [0.55]]))
    assert feedback_strength(0) == 0 and feedback_strength(1) == pytest.approx(1 - 1 / math.e)


# WSDDN's loss


def test_image_loss():
    """p summed over proposals is 8/14 and 6/14."""
    image = Joint.image(LOGITS, None)
    close(image[0].exp(), [8 / 14, 6 / 14])
    close(image_loss(*image, tensor([1, 0]), tensor([1, 1])), -math.log(8 / 14) - math.log(8 / 14))
    close(image_loss(*image, tensor([1, 0]), tensor([1, 0])), -math.log(8 / 14))


@pytest.mark.parametrize("scoring", [Joint, TwoStream])
@pytest.mark.parametrize("classes", [1, 3])
def test_what_is_not_there(scoring, classes):
    """log(1 - p), of proposals and of the image, is what it says."""
    of_class, location = (torch.tensor(np.random.default_rng(i).normal(size=(5, classes))) for i in (0, 1))
    p = scoring.log_prob(of_class, location).exp()
    close(scoring.log_not(of_class, location).exp(), 1 - p)
    if scoring is TwoStream or classes > 1:  # with one class the joint image is certain
        found, missing = scoring.image(of_class, location)
        close(found.exp(), p.sum(dim=0))
        close(missing.exp(), 1 - p.sum(dim=0))


@pytest.mark.parametrize("scoring", [Joint, TwoStream])
@pytest.mark.parametrize("certain", [5.0, 20.0, 60.0])
def test_a_class_that_is_surely_and_wrongly_seen_is_unlearned(scoring, certain):
    """In float32, where p rounds to 1, the gradient is that of float64 and not 0."""
    gradients = []
    for kind in (torch.float32, torch.float64):
        logits = torch.zeros(3, 2, dtype=kind)
        logits[0, 0] = certain
        logits.requires_grad_()
        tags, known = torch.tensor([0, 1], dtype=kind), torch.tensor([1, 0], dtype=kind)
        loss = -scoring.log_not(logits, logits)[:, 0].sum() + image_loss(*scoring.image(logits, logits), tags, known)
        gradients.append(torch.autograd.grad(loss, logits)[0])
    assert gradients[1][0, 0] > 0.9
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-5)


# The Appendix, mended


def appendix_gradient(scores, tags):
    """dL/ds of Eq. 7 for cliques of one proposal each, by the Appendix with its slips mended.

    dp(y', h')/ds(y, h) = p(y', h') ([same] - p(y, h)); the negative term is +1 / (1 - p); and dE/dp minds that w depends on
    every class of its clique: with P(h) = sum_y p(y, h) and S(y) = sum_h p(y, h)^2 / P(h),
    dE(y)/dp(y', h) = -([y = y'] 2 p(y, h) / P(h) - p(y, h)^2 / P(h)^2) / S(y).
    """
    p = np.exp(scores - np.log(np.exp(scores).sum()))
    total = p.sum(axis=1, keepdims=True)
    by_p = (1 - tags) / (1 - p)
    for y in np.flatnonzero(tags):
        s = (p[:, y] ** 2 / total[:, 0]).sum()
        by_p[:, y] -= 2 * p[:, y] / total[:, 0] / s
        by_p += (p[:, [y]] ** 2 / total**2) / s
    return p * (by_p - (by_p * p).sum())


@pytest.mark.parametrize("seed", range(5))
def test_appendix_discovery_gradient(seed):
    random = np.random.default_rng(seed)
    scores = torch.tensor(random.normal(size=(6, 4)), requires_grad=True)
    tags = torch.tensor(random.integers(0, 2, 4), dtype=torch.float64)
    log_prob = joint(scores, None)
    discovery_loss(log_prob, Joint.log_not(scores, None), tags, torch.ones(4)).backward()
    np.testing.assert_allclose(scores.grad, appendix_gradient(scores.detach().numpy(), tags.numpy()), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_through_larger_cliques(seed):
    """Eq. 4 averages logits: what the positive term asks of a clique, each member gets 1/|H_c| of."""
    random = np.random.default_rng(seed)
    scores = torch.tensor(random.normal(size=(6, 3)), requires_grad=True)
    tags = torch.tensor([1.0, 0, 1], dtype=torch.float64)
    ids = np.array([0, 0, 0, 1, 1, 2])
    cliques = Cliques(torch.arange(6), torch.tensor(ids), 3)
    global_part = tags @ global_entropy(joint(cliques.mean(scores), None))
    global_part.backward()
    means = np.stack([scores.detach().numpy()[ids == c].mean(axis=0) for c in range(3)])
    no_negatives = appendix_gradient(means, tags.numpy()) - negative_gradient(means, tags.numpy())
    sizes = np.bincount(ids)
    np.testing.assert_allclose(scores.grad, no_negatives[ids] / sizes[ids][:, None], atol=1e-12)


def negative_gradient(scores, tags):
    p = np.exp(scores - np.log(np.exp(scores).sum()))
    by_p = (1 - tags) / (1 - p) * np.ones_like(p)
    return p * (by_p - (by_p * p).sum())


def test_appendix_localization_gradient():
    """-w t / p, with the minus that the Appendix drops, through the softmax of each proposal: w (p sum_y t - t)."""
    scores = torch.tensor(np.random.default_rng(0).normal(size=(4, 3)), requires_grad=True)
    log_prob = torch.log_softmax(scores, dim=1)
    made = make_labels(OBJECT, BOXES, log_prob, "soft", a=10)
    localization_loss(local_entropy(log_prob, made.target, made.weight), averaged=False).backward()
    p = log_prob.detach().exp()
    close(scores.grad, made.weight[:, None] * (p * made.target.sum(dim=1, keepdim=True) - made.target))


@pytest.mark.parametrize("scoring", [Joint, TwoStream])
def test_gradcheck(scoring):
    random = torch.Generator().manual_seed(0)
    of_class, location = (
        torch.randn(5, 3, generator=random, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    cliques = Cliques(torch.arange(5), torch.tensor([0, 0, 1, 1, 2]), 3)

    def loss(a, b):
        in_cliques = scoring.log_prob(cliques.mean(a), cliques.mean(b))
        return discovery_loss(in_cliques, scoring.log_not(a, b), tensor([1, 0, 1]), tensor([1, 1, 1]))

    assert torch.autograd.gradcheck(loss, (of_class, location))


# The whole model


def model_of(config, classes=3, width=8, seed=0):
    torch.manual_seed(seed)
    model = MELM(nn.Identity(), width, classes, config).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def picture(count, width=8, seed=0):
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 100, (count, 4))
    boxes = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], axis=1
    )
    parts = [torch.tensor(random.normal(size=(count, width))) for _ in range(3)]
    return Regions(*parts), torch.tensor(boxes), torch.tensor(random.uniform(size=count))


def run(config, count=30, tags=(1, 0, 1), known=None, seed=0, classes=3, previous=None):
    model = model_of(config, classes)
    regions, boxes, prior = picture(count, seed=seed)
    output = model(regions, boxes, prior, strength=0.5, previous=previous)
    tags = tensor(tags)
    losses = MinEntropyLoss(config)(output, boxes, tags, tensor(known) if known is not None else torch.ones_like(tags))
    return model, output, losses


@pytest.mark.parametrize("name", METHODS)
def test_every_variant_and_rival_learns(name):
    config = METHODS[name]
    model, output, losses = run(config)
    assert len(losses.localization) == len(output.localization) == config.branches
    assert len(losses.found) == config.branches + 1
    losses.total.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), parameter_name


@pytest.mark.parametrize("scoring", ["joint", "two_stream"])
@pytest.mark.parametrize("reading", ["soft", "confident_target", "literal", "smoothed", "hard"])
@pytest.mark.parametrize("region", ["all", "clique"])
def test_every_reading_runs(scoring, reading, region):
    _, _, losses = run(
        MELM_CONFIG.with_(scoring=scoring, labels=reading, region=region, surround=True, prior_weight=2.0)
    )
    assert torch.isfinite(losses.total)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("count", "tags", "known"),
    [
        (1, (1, 0, 0), None),  # one proposal
        (30, (0, 0, 0), None),  # background image
        (30, (0, 0, 0), (1, 0, 1)),
        (30, (1, 1, 1), None),  # all tags
        (150, (1, 0, 0), None),  # below 200
    ],
)
def test_limits(name, count, tags, known):
    model, _, losses = run(METHODS[name], count, tags, known)
    losses.total.backward()
    assert torch.isfinite(losses.total)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_eight_thousand_proposals():
    _, output, losses = run(MELM_CONFIG, 8000)
    assert len(output.cliques.selected) == 200 and torch.isfinite(losses.total)


def test_one_class():
    with pytest.raises(UsageError, match="use scoring = two_stream"):
        model_of(MELM_CONFIG.with_(scoring="joint"), classes=1)
    for tags in ((1,), (0,)):
        _, _, losses = run(MELM_CONFIG, tags=tags, classes=1)
        assert torch.isfinite(losses.total) and losses.total.requires_grad


def test_a_clique_of_everything():
    boxes = torch.tensor([[0, 0, 100, 100 + i] for i in range(20)], dtype=torch.float64)
    cliques = partition_cliques(boxes, torch.rand(20), 0.7)
    assert cliques.count == 1
    log_prob = joint(cliques.mean(torch.randn(20, 3, dtype=torch.float64)), None)
    close(log_prob.exp().sum(), 1)
    assert torch.isfinite(global_entropy(log_prob)).all()


def test_equal_scores():
    """All logits the same: p is 1/(C K), w is 1/K, and E = -log(1/K^2) whatever C is."""
    log_prob = joint(torch.zeros(7, 4, dtype=torch.float64), None)
    close(global_entropy(log_prob), [math.log(16)] * 4)


def test_feedback_of_the_preceding_iteration():
    """At first there is none, and nothing is scaled; then the features of both branches are."""
    config = MELM_CONFIG.with_(feedback="previous")
    plain = run(MELM_CONFIG.with_(feedback="none"))[1]
    first = run(config)[1]
    close(first.log_prob, plain.log_prob)
    later = run(config, previous=torch.full((30,), 0.5, dtype=torch.float64))[1]
    close(later.features.box, plain.features.box * 0.75)  # (1 - r) + r s with r = s = 0.5


def test_readouts_of_one_training_share_their_configuration():
    assert METHODS["D"] == METHODS["L"] and METHODS["D+RL"] == METHODS["L+RL"] and METHODS["D+ARL"] == METHODS["L2+ARL"]


# Properties

finite = st.floats(-1e4, 1e4, allow_nan=False)
three_flags = st.tuples(*[st.integers(0, 1)] * 3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 0.7, 1.0]), st.sampled_from([1, 5, 200]))
def test_cliques_partition_exactly(count, seed, tau, top):
    random = np.random.default_rng(seed)
    boxes = picture(count, seed=seed)[1].round()
    score = torch.tensor(random.integers(0, 5, count) / 4)
    cliques = partition_cliques(boxes, score, tau, top)
    assert len(cliques.selected) == len(set(cliques.selected.tolist())) == min(top, count)
    assert sorted(set(cliques.ids.tolist())) == list(range(cliques.count))
    left_out = set(range(count)) - set(cliques.selected.tolist())
    assert all(score[i] <= score[cliques.selected].min() for i in left_out)
    near = overlaps(boxes[cliques.selected], boxes[cliques.selected]) >= tau
    linked = near & ~torch.eye(len(near), dtype=torch.bool)
    for i, j in torch.nonzero(linked).tolist():  # neighbours are together
        assert cliques.ids[i] == cliques.ids[j]
    for c in range(cliques.count):  # and a clique of several hangs together
        members = torch.nonzero(cliques.ids == c)[:, 0]
        if len(members) > 1:
            assert (linked[members][:, members].sum(dim=1) > 0).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10_000), st.sampled_from(["L+RL", "L2+ARL", "base", "OICR", "PCL", "D"]))
def test_the_order_of_proposals_does_not_matter(count, seed, name):
    config = METHODS[name]
    model, loss = model_of(config), MinEntropyLoss(config)
    regions, boxes, prior = picture(count, seed=seed)
    boxes = boxes + 1e-3 * torch.arange(count)[:, None]  # all different
    shuffle = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    outputs = []
    for order in (torch.arange(count), shuffle):
        output = model(regions.each(lambda part, order=order: part[order]), boxes[order], prior[order], 0.5)
        losses = loss(output, boxes[order], tensor([1, 0, 1]), torch.ones(3))
        outputs.append(
            (losses.total, [sorted(map(tuple, boxes[order][found.index].tolist())) for found in losses.found])
        )
    torch.testing.assert_close(outputs[0][0], outputs[1][0], rtol=1e-9, atol=1e-12)
    assert outputs[0][1] == outputs[1][1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["joint", "two_stream"]),
    st.sampled_from([(1, 0, 1), (0, 0, 0), (1, 1, 1)]),
)
def test_entropies_are_finite_for_any_finite_logits(rows, dtype, scoring, tags):
    logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
    form = {"joint": Joint, "two_stream": TwoStream}[scoring]
    boxes = torch.tensor([[0, 0, 10, 10 + i] for i in range(len(rows))], dtype=dtype)
    cliques = every_proposal(boxes)
    log_not = form.log_not(logits, logits.flip(0))
    in_cliques = form.log_prob(cliques.mean(logits), cliques.mean(logits.flip(0)))
    tags, known = torch.tensor(tags, dtype=dtype), torch.ones(3, dtype=dtype)
    branch = torch.log_softmax(logits, dim=1)
    made = make_labels(
        PseudoObjects(torch.tensor([0]), torch.tensor([1]), torch.tensor([0.3], dtype=dtype)),
        torch.tensor([[0, 0, 10, 10 + i] for i in range(len(rows))], dtype=dtype),
        branch,
        "soft",
        a=10,
    )
    losses = [
        discovery_loss(in_cliques, log_not, tags, known),
        image_loss(*form.image(logits, logits.flip(0)), tags, known),
        localization_loss(local_entropy(branch, made.target, made.weight)),
        *global_entropy(in_cliques),
        *log_not.flatten(),
    ]
    assert all(torch.isfinite(loss) for loss in losses)
    sum(losses[:3]).backward()
    assert torch.isfinite(logits.grad).all()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(sorted(METHODS)),
    st.tuples(*[st.integers(0, 1)] * 3),
    st.tuples(*[st.integers(0, 1)] * 3),
)
def test_pseudo_objects_carry_only_known_tags(seed, name, tags, known):
    _, _, losses = run(METHODS[name], tags=tags, known=known, seed=seed)
    allowed = {k for k in range(3) if tags[k] and known[k]}
    for found in losses.found:
        assert set(found.classes.tolist()) <= allowed
        assert not found.confidence.requires_grad


def test_no_gradient_through_pseudo_labels_or_objectness():
    """What teaches a branch does not reach the branch that found the objects, nor the feedback its source."""
    config = MELM_CONFIG.with_(branches=2)
    model, output, losses = run(config)
    sum(losses.localization).backward(retain_graph=True)
    assert all(p.grad is None for p in model.discovery.parameters())
    model.zero_grad()
    losses.localization[1].backward(retain_graph=True)  # taught by branch 0 among others
    assert all(p.grad is None for p in model.localization[0].parameters())
    model.zero_grad()
    losses.discovery.backward()  # sees features weighted by the objectness of the last branch
    assert all(p.grad is None for p in model.localization.parameters())
    assert not output.objectness.requires_grad


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scoring": "jiont"}, "Did you mean 'joint'"),
        ({"clique_ioy": 0.5}, "Did you mean 'clique_iou'"),
        ({"clique_iou": 1.5}, "clique_iou is 1.5"),
        ({"branches": 0}, "feedback needs a localization branch"),
        ({"labels": "clusters"}, "belong together"),
        ({"branches": 1.5}, "branches is 1.5; a value of type int"),
        ({"cliques": "no"}, "cliques is 'no'; a value of type bool"),
        ({"kernel": "3"}, "kernel is '3'"),
        ({"prior_weight": float("nan")}, "prior_weight is nan"),
    ],
)
def test_wrong_configurations(changes, words):
    with pytest.raises(UsageError, match=words):
        MELM_CONFIG.with_(**changes)


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(NotFinite, match="NaN"):
        partition_cliques(BOXES, tensor([0.1, math.nan, 0.2, 0.3]))


def test_a_prior_that_is_asked_for_must_be_given():
    regions, boxes, _ = picture(5)
    with pytest.raises(ValueError, match="no prior was given"):
        model_of(MELM_CONFIG.with_(prior_weight=2.0))(regions, boxes)


def test_equal_proposals_without_cliques_are_told_apart_by_coordinates():
    config = METHODS["D"].with_(cliques=False)
    model = model_of(config)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        output = model(Regions(torch.ones(4, 8, dtype=torch.float64)), BOXES[order])
        found = MinEntropyLoss(config)(output, BOXES[order], tensor([1, 0, 0]), torch.ones(3)).found[0]
        assert BOXES[order][found.index].tolist() == [list(C)]


def test_the_order_of_equal_boxes():
    assert coordinate_order(BOXES).tolist() == [2, 1, 0, 3]
