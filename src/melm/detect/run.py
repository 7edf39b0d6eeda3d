"""`melm detect`: a detector on many images, results on disk as they come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from melm.data.images import read_image
from melm.data.records import TaggedImage
from melm.detect.detections import Detections, no_detections
from melm.detect.detector import Detector, branch_scores
from melm.detect.results import ResultsFile
from melm.errors import MelmError
from melm.learn.map_store import MapStore
from melm.learn.network import forward
from melm.learn.processes import ALONE, Processes
from melm.learn.region_store import RegionStore
from melm.model.melm import Output
from melm.model.trunks import FrozenTrunk
from melm.proposals import Proposals, ProposalSettings, ProposalStore, ReadyMade, make_proposals, settings_for_file


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
        students = detector.students if single else None
        self.maps = MapStore(trunk, students.config.scales) if students else None  # type: ignore[arg-type]
        for store in (self.regions, self.maps):
            if store and keep:
                store.prepare()

    def outputs(self, key: str, path: Path) -> tuple[list[Output], Proposals]:
        """What the network says of an image in every view; of stored features, if they are there."""
        found = self.found(key, path)
        stored = self.regions.get(key) if self.regions else None
        if self.regions and self.keep and (stored is None or stored.shape[1] != len(found)):
            pixels = read_image(path)
            self.regions.put(key, self.detector.network.trunk.look(pixels, torch.from_numpy(found.boxes), None))
            stored = self.regions.get(key)
        if self.regions is not None and stored is not None and stored.shape[1] == len(found):
            network = self.detector.network
            output = forward(network, self.detector.learned.strength, self.regions.regions(key), found)
            return [self.with_student(output, key, path, found)], found
        pixels = read_image(path)
        return self.detector.outputs(pixels, found, key), found

    def with_student(self, output: Output, key: str, path: Path, found: Proposals) -> Output:
        """What a retrained run's student says, too: the one that did not learn from this image, where one of them did."""
        if self.maps is None or self.detector.students is None:
            return output
        if self.keep:
            self.maps.make(key, path)
        there = self.maps.has(key)
        maps = self.maps.get(key) if there else self.maps.trunk.stem_maps(read_image(path), self.maps.scales)
        return self.detector.students.judge(output, maps, found, key)

    def found(self, key: str, path: Path) -> Proposals:
        proposals = self.proposals.get(key)
        if proposals is None:
            raise MelmError(f"{path}: its proposals are gone from {self.proposals.folder}. Run the same command again")
        return proposals

    def detect(self, key: str, path: Path) -> Detections:
        if not len(found := self.found(key, path)):
            return no_detections(self.detector.classes, found.width, found.height)
        outputs, found = self.outputs(key, path)
        scores = np.mean([branch_scores(output, self.detector.branch) for output in outputs], axis=0)
        return self.detector.chosen(scores, found)


def detect_images(
    detector: Detector,
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
    looking = Looking(detector, settings)
    decides = about(detector, looking)
    with ResultsFile(out, detector.classes, decides, overwrite=overwrite, processes=processes) as results:
        waiting = Waiting(looking, images, results.done, processes)
        for image, key in waiting.with_proposals("detecting", workers, proposals_file):
            found = looking.detect(key, image.path)
            results.append(image.id, str(image.path), found)
            each(image, found)
        results.join([image.id for image in images])
    return waiting.failed()


class Waiting:
    """The images that are not `done` yet. This process takes its share of them."""

    def __init__(
        self, looking: Looking, images: Sequence[TaggedImage], done: Collection[str], processes: Processes = ALONE
    ) -> None:
        self.looking, self.images, self.processes = looking, images, processes
        self.mine = processes.share([image for image in images if image.id not in done])
        self._errors: dict[str, str] = {}

    def with_proposals(
        self, doing: str, workers: int = 1, proposals_file: ReadyMade | None = None
    ) -> Iterator[tuple[TaggedImage, str]]:
        """Makes the proposals of this process's images, then gives each with its key, telling the progress."""
        store, mine = self.looking.proposals, self.mine
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


def about(detector: Detector, looking: Looking) -> dict[str, Any]:
    """What must be the same for results to go into one file."""
    card = detector.learned.card
    return {
        "run": {
            "data_digest": card["data_digest"],
            "config": card["config"],
            "seconds": card["seconds"],
            **{key: card[key] for key in ("retrained", "teacher") if key in card},
        },
        "branch": detector.branch,
        **{k: v for k, v in asdict(detector.settings).items() if k != "branch"},
        "proposals": looking.proposals.settings.as_dict(),
    }
