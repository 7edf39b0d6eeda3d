"""A closer look at a few images: proposals, cliques, where the scores lie, and how the box moved while it was learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.boxes import Boxes, ranked
from melm.data.images import ImageError, read_image
from melm.data.records import TaggedImage
from melm.detect.detector import DetectSettings, load
from melm.detect.labels import LabelledImage, Labels
from melm.detect.run import Looking
from melm.errors import UsageError, did_you_mean
from melm.measure.truth import Truth
from melm.measure.watching import Look, looks_at
from melm.progress import Steps
from melm.proposals import Done, ProposalSettings, ReadyMade, make_proposals, settings_for_file
from melm.show.evolution import chosen_epochs, clique_strip, evolution_strip, true_boxes_of
from melm.show.report_facts import Glance, RunFacts, spread_over
from melm.show.report_pictures import data_uri, drawing
from melm.show.score_map import draw_cliques, draw_proposals, draw_score_map

PROPOSALS = 60  # drawn
ALSO_WATCHED = 4  # images that the run watched, beside those that were chosen
ROOM = 4_500_000  # bytes of text for all pictures
OF_LOOK = 600_000  # and for those of one look


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tag of one image, and why it is looked at."""

    image: TaggedImage
    tag: str
    why: str


@dataclass(frozen=True, slots=True)
class Picture:
    caption: str
    jpeg: bytes
    strip: bool = False  # many panels side by side


@dataclass(frozen=True, slots=True)
class CloserLook:
    wanted: Wanted
    pictures: tuple[Picture, ...]


def wanted_of(image: LabelledImage, why: str) -> Wanted:
    """The least sure tag of a labelled image."""
    best = np.flatnonzero(image.best)
    least = best[image.found.scores[best].argmin()]
    tag = image.found.names[image.found.classes[least]]
    return Wanted(TaggedImage(image.id, image.path, image.tags), tag, f"{why}, doubt {image.doubt:.2f}")


def watched_of(looks: Iterable[Look]) -> list[Wanted]:
    """The images that a run watched, each with its first tag."""
    tags: dict[str, list[Look]] = {}
    for look in looks:
        tags.setdefault(look.id, []).append(look)
    return [
        Wanted(
            TaggedImage(id, Path(of_image[0].file), tuple(dict.fromkeys(look.tag for look in of_image))),
            of_image[0].tag,
            "watched while learning",
        )
        for id, of_image in tags.items()
    ]


def named(asked: Sequence[str], files: Mapping[str, Path]) -> list[str]:
    """Ids of the images that were asked for, by id or by the name of the file. `files` are all that there are."""
    ids = []
    for name in asked:
        alike = [id for id, path in files.items() if name in (path.name, path.stem)]
        if name not in files and len(alike) != 1:
            several = f" Several files have this name: {', '.join(alike[:5])}." if alike else ""
            raise UsageError(
                f"--look-at {name}: no labelled or watched image has this id.{several or did_you_mean(name, files)}"
            )
        ids.append(name if name in files else alike[0])
    return list(dict.fromkeys(ids))


def looking_as(run: RunFacts, labels: Labels | None, ready_made: ReadyMade | None, device: str) -> Looking:
    """The run's detector, looking at images as it did for the labels."""
    made = labels.settings if labels else {}
    ways = {name: made[name] for name in ("branch", "views", "nms", "vote", "agree") if name in made}
    boxes = settings_for_file(ProposalSettings("file"), ready_made) if ready_made else None
    return Looking(load(run.path, DetectSettings(**ways), device), boxes)


def wanted_looks(
    watched: Sequence[Look], labels: Labels | None, glance: Glance | None, count: int, asked: Sequence[str] = ()
) -> list[Wanted]:
    """What to look at closely: the images asked for, or some from doubtful to sure and some that were watched."""
    by_watching = {one.image.id: one for one in watched_of(watched)}
    files = {**{id: one.image.path for id, one in by_watching.items()}, **(glance.files if glance else {})}
    ids = named(asked, files)
    places = spread_over(glance.with_boxes, count) if glance and not ids else []
    found: dict[str, Wanted] = {}
    for place, image in enumerate(labels or ()):
        if image.best.any() and (place in places or image.id in ids):
            why = "asked for" if ids else _rank(places.index(place), len(places))
            found[image.id] = wanted_of(image, why)
    if ids:
        empty = next((id for id in ids if id not in found and id not in by_watching), None)
        if empty is not None:
            raise UsageError(f"--look-at {empty}: it has no tag that was learned, so there is nothing to look for")
        return [found.get(id) or by_watching[id] for id in ids]
    others = [one for id, one in by_watching.items() if id not in found]
    return [*found.values(), *others[: ALSO_WATCHED if count else 0]]


def _rank(number: int, count: int) -> str:
    return "the most doubtful" if number == 0 else "the least doubtful" if number == count - 1 else "in between"


def closer_looks(
    wanted: Sequence[Wanted],
    watched: Sequence[Look],
    looking: Looking | None,
    truth: Truth | None,
    here: Mapping[str, Path],
    proposals_file: ReadyMade | None = None,
    workers: int = 1,
) -> tuple[list[CloserLook], list[str]]:
    """Pictures of each, and what is wrong with images that cannot be looked at. Without a detector, only what was watched."""
    room = min(OF_LOOK, ROOM // max(len(wanted), 1)) * 3 // 4  # of JPEGs, which are longer as text
    images = [replace(one.image, path=here.get(one.image.id, one.image.path)) for one in wanted]
    done = [Done(image.id) for image in images]
    if looking is not None:
        done = make_proposals(images, looking.proposals, workers, proposals_file)
    looks, wrong = [], []
    with Steps("closer looks", len(wanted)) as steps:
        for one, image, proposals in zip(wanted, images, done, strict=True):
            try:
                pixels = read_image(image.path)
            except ImageError as error:
                wrong.append(f"Not looked at: {error}.")
                steps.advance()
                continue
            objects = true_boxes_of(truth, image.id, one.tag)
            pictures = []
            if looking and proposals.key and proposals.boxes and one.tag in looking.detector.classes:
                pictures += _believed(looking, image, proposals.key, one.tag, pixels, objects, room)
            pictures += _moved(watched, image.id, one.tag, pixels, objects, room)
            if pictures:
                looks.append(CloserLook(one, tuple(pictures)))
            steps.advance()
    return looks, wrong


def _believed(
    looking: Looking,
    image: TaggedImage,
    key: str,
    tag: str,
    pixels: NDArray[np.uint8],
    objects: Boxes | None,
    room: int,
) -> list[Picture]:
    """What the detector believes now."""
    detector = looking.detector
    scores, found = detector.judged(*looking.outputs(key, image.path))
    of_tag = scores[:, detector.classes.index(tag)]  # (N,)
    best = ranked(found.boxes, of_tag)[:PROPOSALS]
    true = "" if objects is None else "; true objects yellow"
    drawn = [
        Picture(
            f"The {len(best)} proposals of the highest score of {len(found):,}, the best one white{true}",
            drawing(draw_proposals(pixels, found.boxes[best], objects), room // 8),
        )
    ]
    if detector.config.settings.cliques:
        (look,) = looks_at(looking, replace(image, tags=(tag,)), key, 0)
        cliques = [np.array(clique) for clique in look.cliques]
        words = f"{len(cliques)} cliques of proposals in colours, the discovered one thick"
        drawn.append(Picture(words, drawing(draw_cliques(pixels, cliques), room // 8)))
    words = f"Score map: at each place the sum of the scores of the proposals that cover it (branch {detector.branch})"
    drawn.append(Picture(words, drawing(draw_score_map(pixels, found.boxes, of_tag), room // 8)))
    return drawn


def _moved(
    looks: Sequence[Look], id: str, tag: str, pixels: NDArray[np.uint8], objects: Boxes | None, room: int
) -> list[Picture]:
    """How it came to believe it, where the run watched."""
    shown = chosen_epochs([look for look in looks if (look.id, look.tag) == (id, tag)])
    if not shown:
        return []
    return [
        Picture(
            "How the box moved: the learned box white, likely proposals blue",
            drawing(evolution_strip(pixels, shown, objects), room * 3 // 10),
            strip=True,
        ),
        Picture(
            "Cliques, epoch by epoch: the discovered one on top and thick",
            drawing(clique_strip(pixels, shown), room * 3 // 10),
            strip=True,
        ),
    ]


def looks_body(looks: Sequence[CloserLook]) -> str:
    """The looks as HTML: pictures beside each other, and below them the strips."""
    parts = []
    for look in looks:
        image = look.wanted.image
        small: list[str] = []
        strips: list[str] = []
        for picture in look.pictures:
            alt = escape(f"{look.wanted.tag} in {image.id}: {picture.caption}")
            figure = (
                f'<figure><img src="{data_uri(picture.jpeg)}" alt="{alt}" loading="lazy" decoding="async">'
                f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
            )
            (strips if picture.strip else small).append(figure)
        rows = "".join(f'<div class="scroll strip" tabindex="0">{strip}</div>' for strip in strips)
        parts.append(
            f'<article class="look"><h3>{escape(look.wanted.tag)} <span>in {escape(image.id)}, '
            f'{escape(look.wanted.why)}</span></h3><div class="pictures">{"".join(small)}</div>{rows}</article>'
        )
    return "\n".join(parts)
