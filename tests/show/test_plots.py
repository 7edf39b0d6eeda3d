"""Plots: the lines, numbers and words that are in the figures, and files of each kind."""

import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from melm.detect.detections import Detections
from melm.errors import MelmError, UsageError
from melm.measure.average_precision import AveragePrecision, ClassPrecision, ap_of_ranking
from melm.measure.error_analysis import KINDS, analyse_errors
from melm.measure.truth import TrueBoxes, Truth
from melm.show.curves import save_figure
from melm.show.fonts import font_for
from melm.show.plots import (
    ERRORS,
    RUNS,
    confusion_figure,
    curve,
    errors_figure,
    learning_figure,
    plot_confusion,
    plot_errors,
    plot_learning,
    plot_precision_recall,
    precision_recall_figure,
)

ARROW = "⤿"  # DejaVu Sans lacks it; other fonts that matplotlib brings along have it
PRIVATE = "\U000f1234"  # no font has it


@pytest.fixture(autouse=True)
def no_warning():
    """A character without a glyph, a layout that fails, a division by zero: matplotlib and numpy only warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def history(epochs=4, local=True, measured=True):
    return [
        {
            "epoch": i,
            "mean": {
                "global_entropy": 2 / (i + 1),
                "local_entropy": 0.01 * (i + 1) * local,
                "gradient_discovery": 10 / (i + 1),
                "gradient_localization": 0.5 * local,
                "loss": 3.0,
            },
            "measured": {"localization_accuracy": 0.3 + i / 10, "localization_variance": 0.05, "corloc": 0.4}
            if measured
            else None,
        }
        for i in range(epochs)
    ]


def ranking(name, objects, right):
    right = np.array(right, bool)
    found = np.cumsum(right)
    return ClassPrecision(
        name,
        ap_of_ranking(right, objects, False),
        objects,
        len(right),
        0,
        np.linspace(1, 0, len(right)),
        right,
        found / np.arange(1, len(right) + 1),
        found / objects if objects else np.full(len(right), np.nan),
    )


def result(*classes):
    return AveragePrecision("voc12", 0.5, classes)


def analysis(names=("cat", "dog", "cow")):
    """Two cats and a dog: a cat found twice, the other cat called a dog, the dog missed; and a cow on nothing."""
    none = np.zeros(3, bool)
    boxes = np.array([[0, 0, 100, 100], [200, 0, 300, 100], [400, 0, 500, 100]], float)
    truth = Truth(tuple(names), {"a": TrueBoxes("a", boxes, np.array([0, 0, 1]), none, none)})
    found = np.array([[0, 0, 100, 100], [0, 0, 100, 90], [200, 0, 300, 100], [0, 300, 50, 400]], np.float32)
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    return analyse_errors(truth, {"a": Detections(found, scores, np.array([0, 0, 1, 2]), tuple(names), 500, 500)})


def words(figure):
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text()]


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def test_learning_shows_every_part_of_every_run():
    figure = learning_figure({"MELM": history(), "WSDDN": history(local=False)})
    entropy, gradient, accuracy, variance = panels(figure).values()
    (local,) = [axes for axes in figure.axes if not axes.get_title()]
    assert [len(axes.lines) for axes in (entropy, local, gradient, accuracy, variance)] == [2, 1, 3, 2, 2]
    assert entropy.lines[0].get_xdata().tolist() == [1, 2, 3, 4]  # epochs done
    assert entropy.lines[0].get_ydata() == pytest.approx([2, 1, 2 / 3, 0.5])
    assert local.lines[0].get_ydata() == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert accuracy.lines[1].get_ydata() == pytest.approx([0.3, 0.4, 0.5, 0.6])
    assert [line.get_color() for line in gradient.lines] == [RUNS[0], RUNS[0], RUNS[1]]
    assert [line.get_linestyle() for line in gradient.lines] == ["-", "--", "-"]
    assert local.lines[0].get_linestyle() == "--"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["MELM", "WSDDN"]
    assert "discovery" in words(figure) and not any("not measured" in word for word in words(figure))


def test_a_method_without_branches_has_no_axis_for_them():
    figure = learning_figure({"WSDDN": history(local=False)})
    local = figure.axes[-1]
    assert not local.axison and not local.lines
    assert "localization" not in words(figure)
    assert panels(figure)["(a) entropy"].get_ylabel() == "global entropy"


@pytest.mark.parametrize("absent", [None, "absent", float("nan")])
def test_what_was_not_measured_is_said(absent):
    records = history(measured=False)
    for record in records:
        if absent == "absent":
            del record["measured"]
        elif absent is not None:
            record["measured"] = {"localization_accuracy": absent, "localization_variance": absent}
    figure = learning_figure({"run": records})
    assert words(figure).count("not measured\n(melm train --measure)") == 2
    for axes in list(panels(figure).values())[2:]:
        assert not axes.lines and axes.texts[0].get_color() == "0.5"


def test_epochs_between_measurements_are_bridged():
    records = history(5)
    records[1]["measured"] = records[3]["measured"] = None
    accuracy = panels(learning_figure({"run": records}))["(c) localization accuracy"]
    assert accuracy.lines[0].get_xdata().tolist() == [1, 3, 5]


def test_an_epoch_that_was_done_again_counts_once():
    again = history(3)[2] | {"mean": {"global_entropy": 9.0}}
    entropy = panels(learning_figure({"run": [*history(3), again]}))["(a) entropy"]
    assert entropy.lines[0].get_ydata() == pytest.approx([2, 1, 9])


@pytest.mark.parametrize("histories", [{}, {"run": []}, {"run": history(1)}, {"run": history(300)}])
def test_learning_of_any_length(tmp_path, histories):
    plot_learning(histories, tmp_path / "learning.png")
    with Image.open(tmp_path / "learning.png") as image:
        assert image.size == (1300, 910)
    ticks = learning_figure(histories).axes[0].get_xticks()
    assert (ticks == np.round(ticks)).all() or not histories


def test_names_of_runs_stand_as_they_are():
    runs = ["_hidden", "$x_1$", "{}", "a\nb", PRIVATE, "a run whose name has no end " * 3]
    figure = learning_figure({name: history() for name in runs})
    figure.draw_without_rendering()
    texts = figure.legends[0].get_texts()
    assert [text.get_text() for text in texts[:5]] == ["_hidden", "$x_1$", "{}", "a b", "#4"]
    assert len(texts[5].get_text()) <= 24 and "…" in texts[5].get_text()
    assert not any(text.get_parse_math() for text in texts)


def test_many_runs_have_a_colour_each():
    figure = learning_figure({str(i): history(2) for i in range(25)})
    colours = {to_rgb(line.get_color()) for line in panels(figure)["(a) entropy"].lines}
    assert len(colours) == 25


def test_a_panel_for_each_class_with_objects():
    melm = result(ranking("cat", 2, [1, 0, 1]), ranking("dog", 0, [0, 0]), ranking("cow", 4, [0, 1]))
    wsddn = result(ranking("cat", 2, [0, 1]), ranking("dog", 0, []), ranking("cow", 4, []))
    figure = precision_recall_figure({"MELM": melm, "WSDDN": wsddn})
    assert list(panels(figure)) == ["cat\nAP 0.83 / 0.25", "cow\nAP 0.12 / 0.00"]
    cat, cow = panels(figure).values()
    assert cat.lines[0].get_xdata() == pytest.approx([0, 0.5, 0.5, 1])
    assert cat.lines[0].get_ydata() == pytest.approx([1, 1, 0.5, 2 / 3])
    assert [line.get_color() for line in cat.lines] == list(RUNS[:2])
    assert len(cow.lines[1].get_xdata()) == 0
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [f"MELM (mAP {melm.mean:.3f}, voc12)", f"WSDDN (mAP {wsddn.mean:.3f}, voc12)"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_any_number_of_panels(tmp_path, count):
    classes = [ranking(f"class {i}", 3, [1, 0, 1]) for i in range(count)]
    plot_precision_recall({"run": result(*classes)}, tmp_path / "curves.png")
    figure = precision_recall_figure({"run": result(*classes)})
    assert len(panels(figure)) == count and len(figure.legends) == 1
    assert sum(axes.axison for axes in figure.axes) == count


def test_of_very_many_classes_those_with_most_objects_are_drawn():
    classes = [ranking(f"class {i}", 1 + (i * 37) % 90, [1]) for i in range(90)]
    figure = precision_recall_figure({"run": result(*classes)})
    expected = [c.name for c in classes if c.objects > 10]
    assert [title.split("\n")[0] for title in panels(figure)] == expected
    assert "the 80 of 90 classes" in figure.get_suptitle()


def test_four_runs_share_a_title():
    runs = {str(i): result(ranking("cat", 4, [1] * (i + 1))) for i in range(4)}
    assert list(panels(precision_recall_figure(runs))) == ["cat\nAP 0.25 to 1.00"]


def test_nothing_to_draw():
    for results in ({}, {"run": result(ranking("cat", 0, [0, 0]))}):
        with pytest.raises(MelmError, match="no class has an object"):
            precision_recall_figure(results)


@pytest.mark.parametrize("objects", [50, 3000, 90_000])
def test_a_long_curve_is_thinned_and_keeps_its_shape(objects):
    random = np.random.default_rng(objects)
    right = random.uniform(size=100_000) < np.linspace(0.9, 0.01, 100_000)
    right &= np.cumsum(right) <= objects
    one = ranking("cat", objects, right)
    recall, precision = curve(one)
    assert len(recall) <= 2002 and (np.diff(recall) >= 0).all()
    assert (recall[-1], precision[-1]) == (one.recall[-1], one.precision[-1])
    whole, thin = np.floor(one.recall * 250), np.floor(recall * 250)  # what is seen in a column of pixels
    for column in np.unique(whole):
        seen, drawn = one.precision[whole == column], precision[thin == column]
        assert (drawn.min(), drawn.max()) == pytest.approx((seen.min(), seen.max())) or column == 0
    area = np.trapezoid(precision[1:], recall[1:])
    assert area == pytest.approx(np.trapezoid(one.precision, one.recall), abs=0.01)


def test_a_short_curve_is_whole():
    one = ranking("cat", 3, [1, 0, 0, 1])
    assert curve(one)[0].tolist() == [0, *one.recall] and curve(one)[1].tolist() == [1, *one.precision]
    assert [len(values) for values in curve(ranking("cat", 3, []))] == [0, 0]


def test_confusion_has_shares_of_rows():
    figure = confusion_figure(analysis().confusion(), ["cat", "dog", "cow"])
    axes = figure.axes[0]
    shares = axes.images[0].get_array()
    assert shares[0].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    assert shares[1].tolist() == [0, 0, 0, 1]  # the missed dog
    assert shares[2].tolist() == [0, 0, 0, 0]  # no cow at all
    assert shares[3].tolist() == pytest.approx([0.5, 0, 0.5, 0])
    assert [t.get_text() for t in axes.get_yticklabels()] == ["cat", "dog", "cow", "on no object"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["cat", "dog", "cow", "missed"]
    numbers = {t.get_position(): t.get_text() for t in axes.texts}
    assert numbers == {(0, 0): "33", (1, 0): "33", (3, 0): "33", (3, 1): "100", (0, 3): "50", (2, 3): "50"}


def test_a_share_that_is_nearly_nothing_is_not_called_nothing():
    figure = confusion_figure(np.array([[999, 1], [0, 0]]), ["cat"])
    assert [t.get_text() for t in figure.axes[0].texts] == ["100", "<1"]


@pytest.mark.parametrize(
    ("count", "numbers", "labels"), [(0, 0, 1), (1, 2, 2), (25, 26, 26), (26, 0, 27), (300, 0, 101)]
)
def test_confusion_of_few_and_many_classes(tmp_path, count, numbers, labels):
    names = [f"class {i}" for i in range(count)]
    table = np.eye(count + 1, dtype=np.intp)
    plot_confusion(table, names, tmp_path / "confusion.png")
    axes = confusion_figure(table, names).axes[0]
    assert len(axes.texts) == numbers or count == 0
    assert len(axes.get_yticklabels()) == labels
    assert axes.get_yticklabels()[-1].get_text() == "on no object"


def test_a_table_of_other_classes_is_refused():
    with pytest.raises(ValueError, match="expected"):
        confusion_figure(np.zeros((3, 3), int), ["cat"])


def test_names_are_written_in_a_font_that_has_them():
    names = ["cat", f"a {ARROW}", PRIVATE, "$a_1$ {}"]
    axes = confusion_figure(np.eye(5, dtype=np.intp), names).axes[0]
    axes.figure.draw_without_rendering()  # which warns of a missing glyph
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [t.get_text() for t in labels[:4]] == ["cat", f"a {ARROW}", "#2", "$a_1$ {}"]
        assert labels[0].get_fontname() == "DejaVu Sans" != labels[1].get_fontname()
        assert not labels[3].get_parse_math()


def test_chinese_names_are_written_or_numbered():
    labels = confusion_figure(np.eye(2, dtype=np.intp), ["猫"]).axes[0].get_yticklabels()
    assert labels[0].get_text() == ("#0" if font_for("猫", 10) is None else "猫")


def test_bars_of_errors():
    figure = errors_figure(analysis())
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["all", "cat", "dog", "cow"]
    bars = dict(zip(KINDS, axes.containers, strict=False))
    width = {kind: [bar.get_width() for bar in container] for kind, container in bars.items()}
    assert list(width) == list(KINDS[:-1])  # what is ignored counts nowhere
    assert width["correct"] == [0.25, 0.5, 0, 0] and width["duplicate"] == [0.25, 0.5, 0, 0]
    assert width["wrong class"] == [0.25, 0, 1, 0] and width["background"] == [0.25, 0, 0, 1]
    for kind, colour in zip(bars, ERRORS, strict=True):
        assert to_rgb(bars[kind][0].get_facecolor()) == pytest.approx(to_rgb(colour))
    assert bars["duplicate"][1].get_x() == 0.5  # after the correct ones
    written = words(figure)
    for cell in ("detections", "4", "2", "objects missed", "2 of 3", "1 of 2", "1 of 1", "0 of 0"):
        assert cell in written
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # all on top


def test_errors_without_a_detection():
    none = analyse_errors(Truth(("cat",), {"a": TrueBoxes("a", *true_box())}), {})
    assert "1 of 1" in words(errors_figure(none))


def true_box():
    return np.array([[0.0, 0, 9, 9]]), np.array([0]), np.zeros(1, bool), np.zeros(1, bool)


def test_of_very_many_classes_those_with_most_detections_have_bars():
    names = tuple(f"class {i}" for i in range(250))
    truth = Truth(names, {"a": TrueBoxes("a", *true_box())})
    classes = np.repeat(np.arange(250), np.arange(250) % 50)
    boxes = np.tile(np.array([50, 50, 60, 60], np.float32), (len(classes), 1))
    found = Detections(boxes, np.full(len(classes), 0.5, np.float32), classes, names, 100, 100)
    figure = errors_figure(analyse_errors(truth, {"a": found}))
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels == ["all", *(name for i, name in enumerate(names) if i % 50 >= 10)]
    assert "200 of 250 classes" in figure.axes[0].get_title()


def test_nothing_is_cut_at_the_edges(tmp_path):
    names = [f"a class with a long name {i}" for i in range(9)]
    results = {f"a run with a long name {i}": result(*(ranking(n, 3, [1, 0, 1]) for n in names)) for i in range(3)}
    for figure in (
        learning_figure({name: history() for name in results}),
        precision_recall_figure(results),
        precision_recall_figure({"a run with a long name": result(ranking(names[0], 3, [1]))}),
        confusion_figure(np.eye(10, dtype=np.intp), names),
        confusion_figure(np.eye(82, dtype=np.intp), 9 * names),
        errors_figure(analysis(tuple(names))),
    ):
        save_figure(figure, tmp_path / "figure.png")
        with Image.open(tmp_path / "figure.png") as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.min() < 50  # something is drawn, and all around it is white
        assert min(edge.min() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])) == 255


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<?xml")])
def test_a_file_of_each_kind(tmp_path, ending, start):
    path = tmp_path / f"errors{ending}"
    plot_errors(analysis(("cat", ARROW, "cow")), path)
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_places_where_no_figure_can_be_written(tmp_path):
    figure = learning_figure({})
    with pytest.raises(UsageError, match=r"x\.gif: a name that ends in \.png, \.pdf or \.svg"):
        save_figure(figure, tmp_path / "x.gif")
    with pytest.raises(MelmError, match=r"x\.png: cannot be written \(No such file or directory\)"):
        save_figure(figure, tmp_path / "none" / "x.png")
