"""Real objects scored as if they had been detected: every measure must say that nothing could be better."""

import numpy as np
import pytest
from measure_scenes import of_truth

from melm.data import Source, read_tags
from melm.measure.average_precision import RULES, average_precision
from melm.measure.classification import classification
from melm.measure.coco import coco_measures
from melm.measure.corloc import corloc
from melm.measure.error_analysis import analyse_errors
from melm.measure.pointing import pointing
from melm.measure.truth import read_truth


@pytest.mark.slow
def test_the_objects_of_voc2007(voc2007):
    source = Source(voc2007, split="val")
    truth, tagged = read_truth(source), read_tags(source)
    detections = of_truth(truth)
    for rule in RULES:
        assert average_precision(truth, detections, rule).mean == 1
    result = corloc(truth, detections, {image.id: image.tags for image in tagged})
    assert result.mean == 1 and result.without_box == () and sum(result.images().values()) == tagged.tags().sum()
    assert pointing(truth, detections).mean == 1
    assert analyse_errors(truth, detections).missed.sum() == 0
    assert analyse_errors(truth, detections, as_many_as_objects=True).missed.sum() == 0
    figures = classification(tagged.tags().astype(float), tagged.tags(), tagged.classes, tagged.known()).figures()
    assert set(figures.values()) == {1}
    figures = coco_measures(truth, detections).figures()
    assert [figures[name] for name in ("AP", "AP50", "AP75")] == pytest.approx(np.ones(3))
