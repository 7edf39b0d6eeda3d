"""The devkits' rules once more, in plain loops over inclusive one-based corners: what the package's measures are held to."""

from fractions import Fraction


def inclusive(box):
    """(x1, y1, x2, y2) of the first and last pixel, counted from 1."""
    return int(box[0]) + 1, int(box[1]) + 1, int(box[2]), int(box[3])


def size(box):
    return box[2] - box[0] + 1, box[3] - box[1] + 1


def overlap(a, b):
    """Exact."""
    common = max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])
    width, height = size(common)
    if width <= 0 or height <= 0:
        return Fraction(0)
    return Fraction(width * height, size(a)[0] * size(a)[1] + size(b)[0] * size(b)[1] - width * height)


def ranking(truth, detections, name):
    """(image id, corners) of a class, by score, then image, then coordinates."""
    rows = []
    for place, id in enumerate(truth.images):
        if id in detections:
            these = detections[id]
            for box, score, own in zip(these.boxes.tolist(), these.scores.tolist(), these.class_names(), strict=True):
                if own == name:
                    rows.append((-score, place, box, id))
    return [(id, inclusive(box)) for _, _, box, id in sorted(rows)]


def objects_of(truth, name):
    """image id -> list of [corners, is ignored, is taken], and how many count."""
    number, result, count = truth.classes.index(name), {}, 0
    for id, true in truth.images.items():
        result[id] = []
        for box, own, difficult, crowd in zip(true.boxes, true.classes, true.difficult, true.crowd, strict=True):
            if own == number:
                result[id].append([inclusive(box), difficult or crowd, False])
                count += not (difficult or crowd)
    return result, count


def voc_verdicts(truth, detections, name):
    """1 right, 0 wrong, None neither."""
    objects, _ = objects_of(truth, name)
    verdicts = []
    for id, box in ranking(truth, detections, name):
        best, most = None, Fraction(-1)
        for candidate in objects[id]:
            if overlap(box, candidate[0]) > most:
                best, most = candidate, overlap(box, candidate[0])
        if most < Fraction(1, 2):
            verdicts.append(0)
        elif best[1]:
            verdicts.append(None)
        else:
            verdicts.append(int(not best[2]))
            best[2] = True
    return verdicts


def ilsvrc_verdicts(truth, detections, name):
    objects, _ = objects_of(truth, name)
    verdicts = []
    for id, box in ranking(truth, detections, name):
        reached = []
        for candidate in objects[id]:
            width, height = size(candidate[0])
            threshold = min(Fraction(1, 2), Fraction(width * height, (width + 10) * (height + 10)))
            if not candidate[2] and overlap(box, candidate[0]) >= threshold:
                reached.append((overlap(box, candidate[0]), candidate))
        if not reached:
            verdicts.append(0)
            continue
        _, taken = max(reached, key=lambda pair: pair[0])
        verdicts.append(None if taken[1] else 1)
        taken[2] = not taken[1]
    return verdicts


def curve(verdicts, count):
    """[(recall, precision)], exact."""
    right, points = 0, []
    for seen, verdict in enumerate((v for v in verdicts if v is not None), 1):
        right += verdict
        points.append((Fraction(right, count), Fraction(right, seen)))
    return points


def eleven_point_ap(verdicts, count):
    points = curve(verdicts, count)
    best = [max((p for r, p in points if r >= Fraction(t, 10)), default=Fraction(0)) for t in range(11)]
    return float(sum(best) / 11)


def area_ap(verdicts, count):
    points = [(Fraction(0), Fraction(0)), *curve(verdicts, count), (Fraction(1), Fraction(0))]
    recalls, precisions = [r for r, _ in points], [p for _, p in points]
    for i in reversed(range(len(points) - 1)):
        precisions[i] = max(precisions[i], precisions[i + 1])
    return float(sum((recalls[i] - recalls[i - 1]) * precisions[i] for i in range(1, len(points))))


def average_precisions(truth, detections, rule):
    """Class name -> AP, None for a class without objects that count."""
    verdicts_of = ilsvrc_verdicts if rule == "ilsvrc13" else voc_verdicts
    ap_of = eleven_point_ap if rule == "voc07" else area_ap
    result = {}
    for name in truth.classes:
        count = objects_of(truth, name)[1]
        result[name] = ap_of(verdicts_of(truth, detections, name), count) if count else None
    return result
