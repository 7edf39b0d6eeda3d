"""The min-entropy latent model: `MELM.forward` is the paper's main figure, `MinEntropyLoss.forward` its Alg. 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from melm.config import MethodConfig
from melm.errors import UsageError
from melm.model.branches import Discovery, Localization, Regions, Scores
from melm.model.cliques import Cliques, coordinate_order, every_proposal, partition_cliques
from melm.model.entropy import (
    discovery_loss,
    global_entropy,
    image_loss,
    local_entropy,
    localization_loss,
    min_entropy_loss,
)
from melm.model.evidence import contrast, from_middle_size, in_deviations
from melm.model.labels import make_labels
from melm.model.objects import PseudoObjects, all_objects, objects_of_discovery, top_objects
from melm.model.recurrence import aggregate, object_score
from melm.model.rivals import cluster_entropy, cluster_labels, proposal_clusters
from melm.model.scoring import Joint, TwoStream

SCORING: dict[str, type[Joint] | type[TwoStream]] = {"joint": Joint, "two_stream": TwoStream}  # Eq. 4


@dataclass(frozen=True, slots=True)
class Output:
    """Everything a forward pass knows of one image, by name."""

    features: Regions  # phi_h, (N, D)
    scores: Scores  # s(y, h), (N, K)
    log_prob: Tensor  # log p(y, h) of the discovery branch, (N, K), with the evidence
    cliques: Cliques  # H_c
    clique_log_prob: Tensor  # log p(y, H_c), (C, K), which is learned
    chosen_log_prob: Tensor  # the same with the evidence, by which cliques are chosen
    localization: list[Tensor]  # log p_t(y, h), T of (N, K+1), which are learned
    objectness: Tensor | None  # s(h), (N,)
    evidence: Tensor  # (N,) for an object of any class, not learned through; 0 where the method has none
    student: Tensor | None = None  # log p(y, h) of a student that learned from what these found, (N, K+1)
    fused: Tensor | None = None  # log of what student and teacher say together, (N, K)
    shift: Tensor | None = None  # how the student moves the proposals, (N, 4)

    def prob(self, branch: str) -> Tensor:
        """p(y, h) (N, K) by discovery, by `localization 1` and so on, by their mean, by all (the geometric mean of these and
        discovery), by the student, or by it and its teacher."""
        if branch == "discovery":
            return self.log_prob.exp()
        if branch == "mean":
            return torch.stack([log_prob.exp() for log_prob in self.localized()]).mean(dim=0)[:, :-1]
        if branch == "all":
            return torch.stack([self.log_prob, *(p[:, :-1] for p in self.localized())]).mean(dim=0).exp()
        if branch == "student" and self.student is not None:
            return self.student.exp()[:, :-1]
        if branch == "fused" and self.fused is not None:
            return self.fused.exp()
        return self.localized()[int(branch.split()[1]) - 1].exp()[:, :-1]

    def shift_of(self, branch: str) -> Tensor | None:
        """How a branch moves the proposals, (N, 4); None where they stay."""
        return self.shift if branch in ("student", "fused") else None

    def localized(self) -> list[Tensor]:
        """log p_t(y, h) with the evidence, T of (N, K+1): by which objects are chosen. At most 0."""
        least = self.evidence - self.evidence.max() if len(self.evidence) else self.evidence
        return [log_prob + least[:, None] for log_prob in self.localization]


class MELM(nn.Module):
    """Branches on top of region features. `neck` maps what was pooled for N regions to their features (N, width)."""

    def __init__(self, neck: nn.Module, width: int, classes: int, config: MethodConfig) -> None:
        super().__init__()
        if classes == 1 and config.scoring == "joint":
            raise UsageError(
                "with one class the joint probability is constant and cannot learn; use scoring = two_stream"
            )
        self.config = config
        self.neck = neck
        streams = 2 if config.scoring == "two_stream" else 1
        self.discovery = Discovery(width, classes, streams, config.surround, config.prior_weight)
        seen = 3 * width if config.branch_sees_surround else width
        self.localization = nn.ModuleList(Localization(seen, classes) for _ in range(config.branches))

    def forward(
        self,
        pooled: Regions,
        proposals: Tensor,
        prior: Tensor | None = None,
        strength: float = 0.0,
        previous: Tensor | None = None,
        score: Tensor | None = None,
        share: Tensor | None = None,
    ) -> Output:
        """One image: what was pooled for its proposals (N, 4), their prior (N,), the strength r of the feedback, for
        `feedback = previous` the objectness (N,) of the preceding iteration (none at first: 1 for all), the proposals' own
        score (N,), and the share of the image that each covers (N,)."""
        features = pooled.together(self.neck)  # phi_h (N, D)
        if self.config.feedback == "previous" and previous is not None:
            features = self.fed_back(features, previous, strength)
        of_region = features.joined() if self.config.branch_sees_surround else features.box
        localization = [branch(of_region) for branch in self.localization]  # T x (N, K+1)
        objectness = object_score(localization[-1]) if localization else None  # s(h) (N,)
        seen = features
        if self.config.feedback == "same" and objectness is not None:
            seen = self.fed_back(features, objectness, strength)
        scores = self.discovery(seen, prior)  # s(y, h) (N, K)
        evidence = self.evidence(pooled, score, share)  # (N,)
        chosen = scores.located(evidence) if self.config.has_evidence else scores
        log_prob = self.prob_of(chosen)
        cliques = self.partition(proposals, log_prob)
        clique_log_prob = self.prob_of(scores.each(cliques.mean))  # (C, K)
        chosen_log_prob = self.prob_of(chosen.each(cliques.mean)) if self.config.has_evidence else clique_log_prob
        return Output(
            features, scores, log_prob, cliques, clique_log_prob, chosen_log_prob, localization, objectness, evidence
        )

    def evidence(self, pooled: Regions, score: Tensor | None, share: Tensor | None) -> Tensor:
        """(N,) what is known of a box without learning."""
        evidence = pooled.box.new_zeros(len(pooled.box))
        if self.config.contrast_weight:
            evidence = evidence + self.config.contrast_weight * contrast(pooled)
        if self.config.score_weight:
            if score is None:
                raise ValueError("score_weight is set, but no score was given")
            evidence = evidence + self.config.score_weight * in_deviations(score)
        if self.config.size_weight:
            if share is None:
                raise ValueError("size_weight is set, but it was not given what share of the image boxes cover")
            evidence = evidence + self.config.size_weight * from_middle_size(share)
        return evidence

    def prob_of(self, scores: Scores) -> Tensor:
        """Eq. 4, for proposals or for cliques."""
        return SCORING[self.config.scoring].log_prob(scores.class_logits, scores.location_logits)

    def partition(self, proposals: Tensor, log_prob: Tensor) -> Cliques:
        """Eq. 2 on the proposals that some class scores best."""
        if not self.config.cliques:
            return every_proposal(proposals)
        return partition_cliques(proposals, log_prob.detach().amax(dim=1), self.config.clique_iou, self.config.top)

    @staticmethod
    def fed_back(features: Regions, objectness: Tensor, strength: float) -> Regions:
        return features.each(lambda part: aggregate(part, objectness, strength))


@dataclass(frozen=True, slots=True)
class Losses:
    """The loss of one image, its parts, and what was found on the way."""

    total: Tensor
    discovery: Tensor
    localization: list[Tensor]  # T
    global_entropy: Tensor  # mean over the image's tags, not learned through
    local_entropy: Tensor  # mean over the branches, not learned through
    found: list[PseudoObjects]  # by the discovery branch, then by each localization branch


class MinEntropyLoss(nn.Module):
    """The losses of Eq. 7 and 11: every branch is taught by what was found before it."""

    def __init__(self, config: MethodConfig) -> None:
        super().__init__()
        self.config = config

    def forward(
        self, output: Output, proposals: Tensor, tags: Tensor, known: Tensor, order: Tensor | None = None
    ) -> Losses:
        """The loss of one image with `tags` (K,) and `known` (K,), both of 0 and 1. `order` is the proposals' order by
        coordinates, where it is known already."""
        tags, known = tags.to(output.log_prob.dtype), known.to(output.log_prob.dtype)
        tagged = torch.nonzero(tags * known)[:, 0]  # (P,)
        order = coordinate_order(proposals) if order is None else order
        discovery = self.discovery_loss(output, tags, known)
        found = [self.first_objects(output, proposals, tagged, order)]
        localization = []
        for log_prob, chosen in zip(output.localization, output.localized(), strict=True):
            teachers = all_objects(found if self.config.teaching == "accumulated" else found[-1:])
            localization.append(self.localization_loss(among_known(log_prob, known), teachers, output, proposals))
            found.append(self.next_objects(log_prob, chosen, proposals, tagged, order))
        entropy = global_entropy(output.clique_log_prob.detach(), self.config.weighted)[tagged]
        return Losses(
            min_entropy_loss(discovery, localization, self.config.localization_weight),
            discovery,
            localization,
            entropy.mean() if len(tagged) else entropy.new_zeros(()),
            torch.stack(localization).detach().mean() if localization else entropy.new_zeros(()),
            found,
        )

    def discovery_loss(self, output: Output, tags: Tensor, known: Tensor) -> Tensor:
        scoring, scores = SCORING[self.config.scoring], output.scores
        if self.config.discovery_loss == "image":
            return image_loss(*scoring.image(scores.class_logits, scores.location_logits), tags, known)
        log_not = scoring.log_not(scores.class_logits, scores.location_logits)  # (N, K)
        return discovery_loss(output.clique_log_prob, log_not, tags, known, self.config.weighted)

    def first_objects(self, output: Output, proposals: Tensor, tagged: Tensor, order: Tensor) -> PseudoObjects:
        if self.config.objects == "clique":
            return objects_of_discovery(
                output.log_prob, output.chosen_log_prob, output.cliques, tagged, order, self.config.weighted
            )
        return self.next_objects(output.log_prob, output.log_prob, proposals, tagged, order)

    def next_objects(
        self, log_prob: Tensor, chosen: Tensor, proposals: Tensor, tagged: Tensor, order: Tensor
    ) -> PseudoObjects:
        if self.config.objects == "clusters":
            return proposal_clusters(chosen, proposals, tagged)
        return top_objects(log_prob, tagged, order, chosen)

    def localization_loss(self, log_prob: Tensor, objects: PseudoObjects, output: Output, proposals: Tensor) -> Tensor:
        config = self.config
        if config.labels == "clusters" and len(objects):
            labels, cluster = cluster_labels(objects, proposals, log_prob, config.object_iou)
            return localization_loss(cluster_entropy(log_prob, labels, cluster))
        whole = config.region == "all"
        cliques = None if whole else output.cliques
        labels = make_labels(objects, proposals, log_prob, config.labels, config.kernel, config.object_iou, cliques)
        entropy = local_entropy(log_prob, labels.target, labels.weight)
        return localization_loss(entropy[labels.inside], averaged=whole)


def among_known(log_prob: Tensor, known: Tensor) -> Tensor:
    """log p_t (N, K+1) among background and the classes that are known of the image: the others are left out of the loss."""
    unknown = torch.cat([known == 0, known.new_zeros(1, dtype=torch.bool)])
    if not bool(unknown.any()):
        return log_prob
    among = torch.log_softmax(log_prob.masked_fill(unknown, -torch.inf), dim=1)
    return among.masked_fill(unknown, 0)  # where the target is 0 too
