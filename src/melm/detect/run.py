"""`melm detect`: a detector on many images, results on disk as they come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from melm.data.images import read_image
from melm.data.records import TaggedImage
from melm.detect.detections import Detections, no_detections
from melm.detect.detector import Detector, presence
from melm.detect.ensemble import Ensemble, grouped
from melm.detect.results import ResultsFile
from melm.errors import MelmError
from melm.learn.features import read_one
from melm.learn.looks import Look
from melm.learn.map_store import MapStore
from melm.learn.network import forward
from melm.learn.processes import ALONE, Processes
from melm.learn.region_store import RegionStore
from melm.model.melm import Output
from melm.model.trunks import FrozenTrunk
from melm.proposals import Proposals, ProposalSettings, ProposalStore, ReadyMade, make_proposals, settings_for_file


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen in one image."""

    detections: Detections
    presence: NDArray[np.float64]  # (K,) P(y), by discovery
    scores: NDArray[np.float32] | None = None  # (N, K) of the proposals; None where several sets of them were looked at
    proposals: Proposals | None = None  # where they were moved to


class Looking:
    """A detector with the proposals and, where they are, the stored features of images.

    With `keep`, features that are not in the store are put there: for images that will be looked at again.
    """

    def __init__(self, detector: Detector, proposals: ProposalSettings | None = None, keep: bool = False) -> None:
        self.detector, self.keep = detector, keep
        self.proposals = ProposalStore(proposals or detector.proposal_settings)
        trunk = detector.network.trunk
        single = isinstance(trunk, FrozenTrunk) and detector.settings.views == "single"
        self.regions = RegionStore(trunk, self.proposals.settings) if single else None  # type: ignore[arg-type]
        students = detector.students if single and detector.students and not detector.students.config.whole else None
        self.maps = MapStore(trunk, students.config) if students else None  # type: ignore[arg-type]
        for store in (self.regions, self.maps):
            if store and keep:
                store.prepare()

    def outputs(self, key: str, path: Path) -> tuple[list[Output], Proposals]:
        """What the network says of an image in every view; of stored features, if they are there."""
        found = self.found(key, path)
        if self.regions and self.keep:
            read_one(self.detector.network.trunk, key, path, found, self.regions, self.maps)  # type: ignore[arg-type]
        stored = self.regions.get(key) if self.regions else None
        if self.regions is not None and stored is not None and stored.shape[1] == len(found):
            network = self.detector.network
            output = forward(network, self.detector.learned.strength, self.regions.regions(key), found)
            return [self.with_student(output, key, path, found)], found
        pixels = read_image(path)
        return self.detector.outputs(pixels, found, key), found

    def with_student(self, output: Output, key: str, path: Path, found: Proposals) -> Output:
        """What a retrained run's student says, too: the one that did not learn from this image, where one of them did."""
        students = self.detector.students
        if students is None:
            return output
        if self.maps is not None and self.maps.has(key):
            return Look(students, self.maps.get(key), found, key).judged(output)
        return Look(students, students.inputs(self.detector.network, read_image(path)), found, key).judged(output)

    def found(self, key: str, path: Path) -> Proposals:
        proposals = self.proposals.get(key)
        if proposals is None:
            raise MelmError(f"{path}: its proposals are gone from {self.proposals.folder}. Run the same command again")
        return proposals

    @property
    def at_once(self) -> bool:
        """Whether several images may be looked at at once, a core each: where little is computed of each. A whole network takes
        much memory, and its pooling has threads of its own."""
        students = self.detector.students
        return self.regions is not None and not (students and students.config.whole)

    @property
    def device(self) -> torch.device:
        return next(self.detector.network.parameters()).device

    @property
    def stores(self) -> list[ProposalStore]:
        """Where the proposals are that it needs."""
        return [self.proposals]

    def sight(self, key: str, path: Path) -> Sight:
        """What is seen in an image that has proposals."""
        judged = self.judged(key, path)
        if judged is None:
            return nothing_seen(self.detector.classes, self.found(key, path))
        scores, placed, of_image = judged
        return Sight(self.detector.chosen(scores, placed), of_image, scores, placed)

    def judged(self, key: str, path: Path) -> tuple[NDArray[np.float32], Proposals, NDArray[np.float64]] | None:
        """Scores (N, K) of the proposals, where these are moved to, and P(y) (K,); None where there is no proposal."""
        if not len(self.found(key, path)):
            return None
        outputs, found = self.outputs(key, path)
        return *self.detector.judged(outputs, found), np.mean([presence(output) for output in outputs], axis=0)

    def about(self) -> dict[str, Any]:
        """What must be the same for results to go into one file."""
        detector, card = self.detector, self.detector.learned.card
        return {
            "run": {
                "data_digest": card["data_digest"],
                "config": card["config"],
                "seconds": card["seconds"],
                **{key: card[key] for key in ("retrained", "teacher", "teaches_along") if key in card},
            },
            "branch": detector.branch,
            **{k: v for k, v in asdict(detector.settings).items() if k != "branch"},
            "proposals": self.proposals.settings.as_dict(),
        }


class LookingTogether:
    """Several detectors that look at images together."""

    def __init__(self, ensemble: Ensemble, proposals: ProposalSettings | None = None, keep: bool = False) -> None:
        self.detector = ensemble
        self.each = [Looking(member, proposals, keep) for member in ensemble.members]
        self.groups = grouped([looking.proposals.settings for looking in self.each])

    @property
    def at_once(self) -> bool:
        return all(looking.at_once for looking in self.each)

    @property
    def device(self) -> torch.device:
        return self.each[0].device

    @property
    def stores(self) -> list[ProposalStore]:
        return [self.each[group[0]].proposals for group in self.groups]

    def sight(self, key: str, path: Path) -> Sight:
        ensemble, of_groups, of_image = self.detector, [], []
        for group in self.groups:
            judged = [one for n in group if (one := self.each[n].judged(key, path)) is not None]
            if judged:  # all of them, as they share proposals
                of_groups.append((group, ensemble.together(group, [(scores, placed) for scores, placed, _ in judged])))
                of_image += [one for _, _, one in judged]
        if not of_groups:
            return nothing_seen(ensemble.classes, self.each[0].found(key, path))
        present = np.sum(of_image, axis=0) / len(self.each)
        alone = of_groups[0][1] if len(self.groups) == 1 else (None, None)
        return Sight(ensemble.chosen(of_groups, self.groups), present, *alone)

    def about(self) -> dict[str, Any]:
        return {"ensemble": [looking.about() for looking in self.each]}


def looking_with(
    detector: Detector | Ensemble, proposals: ProposalSettings | None = None, keep: bool = False
) -> Looking | LookingTogether:
    """A detector, or several, with what is stored."""
    kind = LookingTogether if isinstance(detector, Ensemble) else Looking
    return kind(detector, proposals, keep)  # type: ignore[arg-type]


def nothing_seen(classes: tuple[str, ...], found: Proposals) -> Sight:
    """In an image without a proposal."""
    return Sight(no_detections(classes, found.width, found.height), np.zeros(len(classes)))


def detect_images(
    detector: Detector | Ensemble,
    images: Sequence[TaggedImage],
    out: Path,
    *,
    proposals: ProposalSettings | None = None,
    proposals_file: ReadyMade | None = None,
    workers: int = 1,
    overwrite: bool = False,
    each: Callable[[TaggedImage, Detections], None] = lambda image, found: None,
    processes: Processes = ALONE,
) -> list[str]:
    """Detections of all images in `out`/detections.jsonl, in their order, going on where it stopped; what was wrong with images
    that failed. Each of many processes does its share, and all return the same."""
    settings = proposals
    if proposals_file is not None:
        settings = settings_for_file(proposals or ProposalSettings("file"), proposals_file)
    looking = looking_with(detector, settings)
    with ResultsFile(out, detector.classes, looking.about(), overwrite=overwrite, processes=processes) as results:
        waiting = Waiting(looking, images, results.done, processes)
        for image, key in waiting.with_proposals("detecting", workers, proposals_file):
            found = looking.sight(key, image.path).detections
            results.append(image.id, str(image.path), found)
            each(image, found)
        results.join([image.id for image in images])
    return waiting.failed()


class Waiting:
    """The images that are not `done` yet. This process takes its share of them."""

    def __init__(
        self,
        looking: Looking | LookingTogether,
        images: Sequence[TaggedImage],
        done: Collection[str],
        processes: Processes = ALONE,
    ) -> None:
        self.looking, self.images, self.processes = looking, images, processes
        self.mine = processes.share([image for image in images if image.id not in done])
        self._errors: dict[str, str] = {}

    def with_proposals(
        self, doing: str, workers: int = 1, proposals_file: ReadyMade | None = None
    ) -> Iterator[tuple[TaggedImage, str]]:
        """Makes the proposals of this process's images, then gives each with its key, telling the progress."""
        mine = self.mine
        for store in self.looking.stores:  # an image that cannot be read can be read for none
            with self.processes.steps("proposals", len(mine)) as steps:
                results = make_proposals(mine, store, workers, proposals_file, steps.advance, self.images)
        with self.processes.steps(doing, len(mine)) as steps:
            for image, result in zip(mine, results, strict=True):
                if result.key is None:
                    self._errors[image.id] = str(result.error)
                else:
                    yield image, result.key
                steps.advance()

    def failed(self) -> list[str]:
        """What was wrong with images that could not be read, by any process."""
        errors = {id: text for share in self.processes.gather(self._errors) for id, text in share.items()}
        return [errors[image.id] for image in self.images if image.id in errors]
