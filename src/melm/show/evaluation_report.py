"""The words and tables of `melm evaluate`: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from melm.measure.compare import Spread
from melm.measure.error_analysis import KINDS
from melm.measure.evaluation import Comparison, Evaluation, plain
from melm.show.tables import table

AS_IS = ("loc. accuracy", "loc. variance")  # not percent, as the paper's curves are not
IN_TABLES = ("CorLoc", "AP voc07")  # measures of which the paper prints every class


@dataclass(frozen=True)
class Report:
    """What was measured, on what."""

    title: str
    evaluations: Sequence[Evaluation]
    seeds: dict[str, dict[str, Spread]]
    comparisons: Sequence[Comparison]

    def text(self) -> str:
        parts = [self.title]
        if len(self.evaluations) == 1:
            parts += [self._classes(self.evaluations[0]), self._figures(self.evaluations[0])]
            parts.append(self._errors(self.evaluations[0]))
        else:
            parts.append(table(*self._summary()))
            parts += [
                f"{measure}, %\n" + table(["", *names], rows)
                for measure in IN_TABLES
                for names, rows in [self._by_class(measure)]
            ]
            parts.append(self._against())
        return "\n\n".join(part for part in (*parts, "\n".join(self.notes())) if part)

    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        lines = []
        for evaluation in self.evaluations:
            subject, name = evaluation.subject, evaluation.name
            if subject.learned_from is False:
                lines.append(f"{name}: not the very images and tags it learned from, which CorLoc is meant for")
            never = [c.name for c in evaluation.precision["voc07"].classes if c.objects and not c.detections]
            if never and len(never) < len(evaluation.corloc.classes):
                listed = ", ".join(never[:10]) + (f" and {len(never) - 10} more" if len(never) > 10 else "")
                lines.append(f"{name}: never found, and 0 in every mean: {listed}")
        scored = {evaluation.subject.image_scores is None for evaluation in self.evaluations}
        if len(scored) == 2:
            lines.append("image mAP07: a run's scores are sums of p(y, h), a file's its best detections")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Every figure, as JSON has it."""
        seeds = {group: {name: vars(s) for name, s in spreads.items()} for group, spreads in self.seeds.items()}
        return {
            "evaluations": [evaluation.as_dict() for evaluation in self.evaluations],
            "seeds": plain(seeds),
            "comparisons": [comparison.as_dict() for comparison in self.comparisons],
            "notes": self.notes(),
        }

    def markdown(self) -> str:
        tables = [_markdown(*self._summary())]
        for measure in IN_TABLES:
            names, rows = self._by_class(measure)
            tables.append(f"{measure}, %\n\n" + _markdown(["", *names], rows))
        lines = [f"- {line}" for line in (*self._against().splitlines()[1:], *self.notes())]
        return "\n\n".join([self.title, *tables, *self._against().splitlines()[:1], "\n".join(lines)]).strip()

    def latex(self) -> str:
        tables = [_latex(*self._summary(), caption=self.title)]
        for measure in IN_TABLES:
            names, rows = self._by_class(measure)
            tables.append(_latex(["", *names], rows, caption=f"{measure} (%)"))
        said = [f"% {line}" for line in (*self._against().splitlines(), *self.notes())]
        return "\n\n".join(["% needs the package booktabs", *tables, *(["\n".join(said)] if said else [])])

    def csv(self) -> str:
        """One line a run and class, and one for its mean: what a spreadsheet or pandas reads."""
        file = io.StringIO()
        rows = csv.writer(file, lineterminator="\n")
        measures = list(self.evaluations[0].per_class())
        kinds = [f"best box {kind}" for kind in KINDS]
        rows.writerow(["run", "class", *measures, *kinds])
        for evaluation in self.evaluations:
            values, of_kind = evaluation.per_class(), evaluation.best_boxes
            for k, name in enumerate(evaluation.corloc.classes):
                figures = [_digits(values[measure][name]) for measure in measures]
                rows.writerow([evaluation.name, name, *figures, *of_kind.counts[k].tolist()])
            means = [_mean(values[measure]) for measure in measures]
            rows.writerow([evaluation.name, "mean", *map(_digits, means), *[""] * len(kinds)])
        return file.getvalue().rstrip("\n")

    def _summary(self) -> tuple[list[str], list[list[str]]]:
        """A row a run, then a row for every set of seeds."""
        figures = list(dict.fromkeys(name for evaluation in self.evaluations for name in evaluation.summary()))
        rows = [
            [evaluation.name, *(_shown(name, evaluation.summary().get(name, math.nan)) for name in figures)]
            for evaluation in self.evaluations
        ]
        for group, spreads in self.seeds.items():
            cells = [
                f"{_shown(name, spreads[name].mean)} ± {_shown(name, spreads[name].std)}" if name in spreads else "-"
                for name in figures
            ]
            rows.append([group, *cells])
        return ["run", *figures], rows

    def _by_class(self, measure: str) -> tuple[list[str], list[list[str]]]:
        """A row a run, a column a class and the mean: as the paper prints it."""
        rows = []
        for evaluation in self.evaluations:
            values = evaluation.per_class()[measure]
            rows.append([evaluation.name, *(_percent(value) for value in values.values()), _percent(_mean(values))])
        return [*self.evaluations[0].corloc.classes, "mean"], rows

    def _against(self) -> str:
        """The paired bootstrap, in a sentence for every pair and measure."""
        lines = []
        for comparison in self.comparisons:
            for measure, result in comparison.measures.items():
                low, high = result.interval()
                verdict = "" if low > 0 or high < 0 else " (could be chance)"
                lines.append(
                    f"{measure}: {comparison.second} less {comparison.first} is {100 * result.difference:+.1f}, "
                    f"95% of draws in {100 * low:+.1f} to {100 * high:+.1f}, p = {result.p_value:.3f}{verdict}"
                )
        if not lines:
            return ""
        draws = len(next(iter(self.comparisons[0].measures.values())).of_first)
        return "\n".join([f"Paired bootstrap over images, {draws:,} draws, in points:", *lines])

    def _classes(self, evaluation: Evaluation) -> str:
        values, images = evaluation.per_class(), evaluation.corloc.images()
        objects = {c.name: c.objects for c in evaluation.precision["voc07"].classes}
        rows = [
            [name, f"{images[name]:,}", f"{objects[name]:,}", *(_percent(values[measure][name]) for measure in values)]
            for name in evaluation.corloc.classes
        ]
        total = [f"{sum(images.values()):,}", f"{sum(objects.values()):,}"]
        rows.append(["mean", *total, *(_percent(_mean(values[measure])) for measure in values)])
        return table(["class", "images", "objects", *values], rows)

    def _figures(self, evaluation: Evaluation) -> str:
        coco, images = evaluation.coco.figures(), evaluation.classification.figures()
        lines = [
            f"CorLoc {_percent(evaluation.corloc.mean)}",
            "VOC 2007 mAP {}, VOC 2010 and 2012 {}, ILSVRC 2013 {}".format(
                *(_percent(evaluation.precision[rule].mean) for rule in ("voc07", "voc12", "ilsvrc13"))
            ),
            "COCO  " + ", ".join(f"{name} {_percent(value)}" for name, value in coco.items()),
            f"pointing mAP {_percent(evaluation.pointing.mean)}, "
            f"the centre of the best box, {evaluation.pointing.tolerance:g} pixels of tolerance",
            "images  "
            + ", ".join(f"{name} {_percent(value)}" for name, value in images.items())
            + f", at scores of at least {evaluation.classification.threshold:g}",
        ]
        randomness = evaluation.subject.randomness
        if randomness is not None:
            lines.append(f"localization accuracy {randomness.accuracy:.3f}, variance {randomness.variance:.3f}")
        return "\n".join(lines)

    def _errors(self, evaluation: Evaluation) -> str:
        """What the best box of each tag is, and what the best detections of each class are."""
        parts = []
        for words, analysis in (
            ("The best box of each tag, %", evaluation.best_boxes),
            ("As many detections of each class as it has objects, %", evaluation.top_boxes),
        ):
            kinds = KINDS[:-1]
            rows = []
            for row in analysis.rows():
                counts = [int(str(row[kind])) for kind in kinds]
                shares = [_percent(count / sum(counts) if sum(counts) else math.nan) for count in counts]
                missed = [f"{row['missed']:,} of {row['objects']:,}"] if analysis is evaluation.top_boxes else []
                rows.append([str(row["class"]), *shares, *missed])
            shares = [_percent(share) for share in analysis.shares().values()]
            total = [f"{analysis.missed.sum():,} of {analysis.objects.sum():,}"] if missed else []
            rows.append(["all", *shares, *total])
            parts.append(f"{words}\n" + table(["class", *kinds, *["objects missed"] * len(total)], rows))
        return "\n\n".join(parts)


def _mean(values: dict[str, float]) -> float:
    there = [value for value in values.values() if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def _shown(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" if name in AS_IS else _percent(value)


def _digits(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(header), "|---" + "|---:" * (len(header) - 1) + "|", *map(line, rows)])


LATEX = {
    "\\": r"\textbackslash{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
} | {c: f"\\{c}" for c in "&%$#_{}"}


def _latex(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(escaped, cells)) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{escaped(caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            line(header),
            r"\midrule",
            *map(line, rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def escaped(text: str) -> str:
    """Text as LaTeX sets it."""
    return "".join(LATEX.get(character, character) for character in text)
