"""The wiring of the model: every setting does what it says, against a plain numpy transcription of the whole pass."""

import numpy as np
import pytest
import torch
from torch import nn

from melm.boxes import iou
from melm.config import MELM as DEFAULT
from melm.config import METHODS
from melm.model.branches import Regions
from melm.model.cliques import coordinate_order
from melm.model.labels import make_labels
from melm.model.melm import MELM, MinEntropyLoss
from melm.model.objects import PseudoObjects, top_objects
from melm.model.rivals import cluster_entropy, cluster_labels, proposal_clusters

WIDTH, CLASSES, COUNT = 5, 3, 40


def log_softmax(x, axis=None):
    x = x - x.max(axis=axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))


class Transcription:
    """One forward pass and its loss, in numpy and loops, for the settings that are switched below."""

    def __init__(self, model, config, regions, boxes, prior, strength, tags, known):
        weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
        box, frame, ring = (part.numpy() for part in (regions.box, regions.frame, regions.ring))
        branches = []
        for t in range(config.branches):
            seen = np.concatenate([box, frame, ring], axis=1) if config.branch_sees_surround else box
            logits = seen @ weights[f"localization.{t}.of_class.weight"].T + weights[f"localization.{t}.of_class.bias"]
            branches.append(log_softmax(logits, axis=1))
        scale = np.ones(len(box))
        if config.feedback == "same":
            scale = (1 - strength) + strength * np.exp(branches[-1][:, :-1]).max(axis=1)
        box, frame, ring = (part * scale[:, None] for part in (box, frame, ring))
        of_class = box @ weights["discovery.of_class.weight"].T + weights["discovery.of_class.bias"]
        location = np.zeros_like(of_class)
        if config.surround:
            location = (frame - ring) @ weights["discovery.of_location.weight"].T
        elif config.scoring == "two_stream":
            location = box @ weights["discovery.of_location.weight"].T + weights["discovery.of_location.bias"]
        location = location + config.prior_weight * prior.numpy()[:, None]
        self.plain = self.scored(config, of_class, location)
        self.evidence = self.known_of(config, regions, prior.exp())
        self.log_prob = self.scored(config, of_class, location + self.evidence[:, None])
        overlap = iou(boxes.numpy(), boxes.numpy())
        self.cliques = self.partition(boxes.numpy(), overlap, self.log_prob.max(axis=1), config)
        given = of_class, location, location + self.evidence[:, None]
        means = [np.stack([values[c].mean(axis=0) for c in self.cliques]) for values in given]
        self.clique_log_prob = self.scored(config, means[0], means[1])
        self.chosen = np.exp(self.scored(config, means[0], means[2]))
        self.total = self.loss(config, branches, overlap, tags, known)

    @staticmethod
    def known_of(config, regions, score):
        differs = np.array(
            [
                -(b @ r) / np.sqrt((b @ b) * (r @ r))
                for b, r in zip(regions.box.numpy(), regions.ring.numpy(), strict=True)
            ]
        )
        kinds = (config.contrast_weight, differs), (config.score_weight, score.numpy())
        known = sum(weight * (values - values.mean()) / values.std() for weight, values in kinds)
        share = np.maximum(score.numpy() / 30, 0.01)
        return known + config.size_weight * np.log(share / 0.15) ** 2

    @staticmethod
    def scored(config, of_class, location):
        if config.scoring == "joint":
            return log_softmax((of_class + location).ravel(), 0).reshape(of_class.shape)
        return log_softmax(of_class, 1) + log_softmax(location, 0)

    @staticmethod
    def partition(boxes, overlap, score, config):
        if not config.cliques:
            return [[i] for i in sorted(range(len(score)), key=lambda i: tuple(boxes[i]))]
        left = list(np.argsort(-score)[: config.top])
        cliques = []
        while left:
            clique = [left.pop(0)]
            while joins := [i for i in left if overlap[i, clique].max() >= config.clique_iou]:
                clique += joins
                left = [i for i in left if i not in joins]
            cliques.append(clique)
        return cliques

    def loss(self, config, branches, overlap, tags, known):
        p = np.exp(self.clique_log_prob)
        weight = p / p.sum(axis=1, keepdims=True)
        used = weight if config.weighted else np.ones_like(weight)
        total = 0.0
        for y in range(len(tags)):
            if known[y] and tags[y]:
                total -= np.log((used[:, y] * p[:, y]).sum())
            elif known[y]:
                total -= np.log(1 - np.exp(self.plain[:, y])).sum()
        tagged = [y for y in range(len(tags)) if tags[y] and known[y]]
        found = [[]]
        weight = self.chosen / self.chosen.sum(axis=1, keepdims=True)
        used = weight if config.weighted else np.ones_like(weight)
        for y in tagged:
            c = int((used[:, y] * self.chosen[:, y]).argmax())
            found[0].append((max(self.cliques[c], key=lambda i: self.log_prob[i, y]), y, weight[c, y]))
        for log_prob in branches:
            teachers = [t for some in found for t in some] if config.teaching == "accumulated" else found[-1]
            total += config.localization_weight * self.taught(config, log_prob, teachers, overlap, known)
            best = [int((log_prob[:, y] + self.evidence).argmax()) for y in tagged]
            found.append([(i, y, np.exp(log_prob[i, y])) for i, y in zip(best, tagged, strict=True)])
        return total

    def taught(self, config, log_prob, teachers, overlap, known):
        kept = [*(y for y in range(len(known)) if known[y]), -1]
        log_prob = log_prob - np.log(np.exp(log_prob[:, kept]).sum(axis=1, keepdims=True))  # among what is known
        if not teachers:
            return -log_prob[:, -1].mean() if config.region == "all" else 0.0
        omega = range(len(log_prob))
        if config.region == "clique":
            heads = {i for i, _, _ in teachers}
            omega = sorted(heads.union(*[c for c in self.cliques if heads & set(c)]))
        losses = []
        for h in omega:
            best = max(overlap[h, i] for i, _, _ in teachers)
            # of equally near objects the surest counts; of equally sure ones the one found first
            _, y, confidence = max((t for t in teachers if overlap[h, t[0]] == best), key=lambda t: t[2])
            g = np.exp(-config.kernel * (1 - best) ** 2) if best >= config.object_iou else 0.0
            losses.append(-confidence * (g * log_prob[h, y] + (1 - g) * log_prob[h, -1]))
        return sum(losses) / (len(losses) if config.region == "all" else 1)


def scene(seed, count=COUNT):
    random = np.random.default_rng(seed)
    centre, size = random.uniform(20, 80, (count, 2)), random.uniform(10, 40, (count, 2))
    boxes = torch.tensor(np.concatenate([centre - size / 2, centre + size / 2], axis=1))
    regions = Regions(*(torch.tensor(random.normal(size=(count, WIDTH))) for _ in range(3)))
    return regions, boxes, torch.tensor(random.uniform(size=count))


def build(config, seed=0):
    torch.manual_seed(seed)
    model = MELM(nn.Identity(), WIDTH, CLASSES, config).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


PLAIN = DEFAULT.with_(kernel=3.0, clique_iou=0.3, top=15)
SETTINGS = {
    "default": PLAIN,
    "surround and prior": PLAIN.with_(surround=True, prior_weight=4.0, branch_sees_surround=True),
    "contrast": PLAIN.with_(contrast_weight=1.5),
    "joint and contrast": PLAIN.with_(scoring="joint", contrast_weight=1.5),
    "score": PLAIN.with_(score_weight=2.0),
    "size": PLAIN.with_(size_weight=0.7),
    "joint": PLAIN.with_(scoring="joint"),
    "joint, surround and prior": PLAIN.with_(scoring="joint", surround=True, prior_weight=4.0),
    "chain": PLAIN.with_(teaching="chain"),
    "no feedback": PLAIN.with_(feedback="none"),
    "w = 1": PLAIN.with_(weighted=False),
    "no cliques": PLAIN.with_(cliques=False),
    "Omega the clique": PLAIN.with_(region="clique"),
    "tau": PLAIN.with_(clique_iou=0.6),
    "top": PLAIN.with_(top=5),
    "lambda": PLAIN.with_(localization_weight=0.1),
    "two branches": PLAIN.with_(branches=2),
    "overlap of an object": PLAIN.with_(object_iou=0.3),
}
IMAGES = [((1, 0, 1), (1, 1, 1)), ((1, 1, 0), (1, 0, 1)), ((0, 0, 0), (1, 1, 1)), ((0, 0, 0), (1, 0, 1))]


def totals(config, seed, tags, known):
    model, (regions, boxes, prior) = build(config), scene(seed)
    output = model(regions, boxes, prior, strength=0.6, score=prior.exp(), share=prior.exp() / 30)
    losses = MinEntropyLoss(config)(output, boxes, torch.tensor(tags), torch.tensor(known))
    return output, losses, Transcription(model, config, regions, boxes, prior, 0.6, tags, known)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("tags", "known"), IMAGES)
def test_the_whole_pass_equals_its_transcription(name, tags, known):
    for seed in range(4):
        output, losses, expected = totals(SETTINGS[name], seed, tags, known)
        np.testing.assert_allclose(output.log_prob.detach(), expected.log_prob, atol=1e-12)
        np.testing.assert_allclose(output.clique_log_prob.detach(), expected.clique_log_prob, atol=1e-12)
        np.testing.assert_allclose(losses.total.item(), expected.total, rtol=1e-10)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "default"])
def test_every_setting_changes_the_loss(name):
    """Or the comparison above would not have tried it."""
    changed = [totals(SETTINGS[name], s, (1, 0, 1), (1, 1, 1))[1].total.item() for s in range(4)]
    plain = [totals(PLAIN, s, (1, 0, 1), (1, 1, 1))[1].total.item() for s in range(4)]
    assert max(abs(a - b) for a, b in zip(changed, plain, strict=True)) > 1e-6


def test_equal_scores_choose_by_coordinates():
    boxes = torch.tensor([[9, 0, 20, 10], [1, 0, 10, 10], [5, 0, 20, 10.0]])
    assert top_objects(torch.zeros(3, 2), torch.tensor([0]), coordinate_order(boxes)).index.tolist() == [1]


@pytest.mark.parametrize("reading", ["soft", "confident_target", "literal", "smoothed", "hard"])
def test_labels_need_no_gradient_whoever_made_them(reading):
    log_prob = torch.randn(4, 3, requires_grad=True).log_softmax(1)
    objects = PseudoObjects(torch.tensor([0]), torch.tensor([1]), torch.tensor([0.5], requires_grad=True))
    labels = make_labels(objects, torch.tensor([[0, 0, 10, 10.0 - i] for i in range(4)]), log_prob, reading, a=5)
    assert not labels.target.requires_grad and not labels.weight.requires_grad


# PCL. Six boxes: three around one place, two around another, one elsewhere; scores of class 0 in three groups.

PLACES = torch.tensor(
    [[0, 0, 10, 10], [0, 0, 10, 8], [0, 2, 10, 10], [50, 50, 60, 60], [50, 50, 60, 59], [80, 0, 90, 10.0]]
)
SCORES = torch.tensor([[0.90], [0.92], [0.91], [0.95], [0.89], [0.10]]).log()


def test_pcl_centres_are_those_with_most_neighbours():
    """Of the five high scores, box 0 overlaps 1 (0.8) and 2 (0.8), which overlap each other by 0.6: all three are neighbours of
    each other, so the best-scored of them, 1, is a centre; then 3 and 4 are left, and 3 is the better."""
    found = proposal_clusters(SCORES, PLACES, torch.tensor([0]))
    assert sorted(found.index.tolist()) == [1, 3]
    assert dict(zip(found.index.tolist(), found.confidence.tolist(), strict=True)) == pytest.approx({1: 0.92, 3: 0.95})
    apart = torch.tensor(
        [[0, 0, 10, 10], [0, 0, 10, 3], [0, 7, 10, 10], [80, 0, 90, 10.0]]
    )  # overlap by 0.3: no neighbours
    assert sorted(proposal_clusters(SCORES[[0, 1, 2, 5]], apart, torch.tensor([0])).index.tolist()) == [0, 1, 2]


def test_pcl_score_of_a_centre_is_the_best_of_its_neighbours():
    chain = torch.tensor(
        [[0, 0, 10, 10], [0, 4, 10, 14], [0, 8, 10, 18], [80, 0, 90, 10.0]]
    )  # the middle overlaps both by 0.43
    found = proposal_clusters(torch.tensor([[0.9], [0.8], [0.85], [0.1]]).log(), chain, torch.tensor([0]))
    assert found.index.tolist() == [1] and found.confidence.tolist() == pytest.approx([0.9])


def test_pcl_labels_and_bags():
    objects = PseudoObjects(torch.tensor([1, 3]), torch.tensor([0, 1]), torch.tensor([0.9, 0.5]))
    log_prob = torch.tensor([[0.5, 0.2, 0.3]] * 3 + [[0.1, 0.6, 0.3]] * 2 + [[0.2, 0.2, 0.6]]).log()
    log_prob[0] = torch.tensor([0.1, 0.2, 0.7]).log()
    labels, cluster = cluster_labels(objects, PLACES, log_prob, 0.5)
    assert cluster.tolist() == [0, 0, 0, 1, 1, -1]
    assert labels.weight.tolist() == pytest.approx(
        [0.9] * 3 + [0.5] * 2 + [0]
    )  # the last overlaps nothing by 0.1: ignored
    mean = (0.1 + 0.5 + 0.5) / 3
    expected = [-0.9 * np.log(mean)] * 3 + [-0.5 * np.log(0.6)] * 2 + [0]
    assert cluster_entropy(log_prob, labels, cluster).tolist() == pytest.approx(expected, rel=1e-5)


def test_rivals_differ_where_the_table_says():
    assert METHODS["WSDDN"].discovery_loss == METHODS["OICR"].discovery_loss == METHODS["PCL"].discovery_loss == "image"
    assert METHODS["ContextLocNet"] == METHODS["WSDDN"].with_(surround=True)
    assert METHODS["OICR"].labels == "hard" and METHODS["OICR"].teaching == "chain" and METHODS["OICR"].objects == "top"
