"""Fills the tables of docs/results.md and docs/experiments.md from the logs beside the recipes: `python tools/results_tables.py`.

A table stands between `<!-- NAME KIND -->` and `<!-- end -->`: NAME is a recipe with a log, KIND `figures`, `against` or `parts`.
`tests/test_results_page.py` holds the pages to the logs.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / name for name in ("results.md", "experiments.md")]
MARK = re.compile(r"(<!-- (\S+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURES = {"CorLoc": "CorLoc", "mAP VOC07": "mAP", "image mAP07": "image mAP"}
# what the paper prints for the same variant: mAP in percent on VOC 2007 test with VGG-F or VGG16, and on val for tau
PAPER = {
    "base": "31.5",
    "base+clique": "33.9",
    "D": "33.6",
    "L": "36.0",
    "D+RL": "34.1",
    "L+RL": "38.4",
    "D+ARL": "37.4 (VGG16)",
    "L1+ARL": "46.4 (VGG16)",
    "L2+ARL": "47.3 (VGG16)",
    "tau 0.1": "32.6",
    "tau 0.3": "34.3",
    "tau 0.5": "34.4",
    "MELM": "35.3 (tau 0.7)",
    "tau 0.9": "33.5",
    "tau 1": "34.4",
}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def spread(values: list[float]) -> str:
    """Mean over the seeds and how far they lie apart, percent; a single seed as it is."""
    if len(values) == 1:
        return f"{100 * values[0]:.1f}"
    mean, apart = 100 * statistics.fmean(values), 100 * (max(values) - min(values))
    return f"{mean:.1f} ± {apart / 2:.1f}"


def figures(log: dict[str, Any]) -> str:
    names = list(dict.fromkeys(run["method"] for run in log["measured"][0]["runs"]))
    paper = any(name in PAPER and name != "MELM" for name in names)
    head = ["", *(f"{short}, {m['split']}" for m in log["measured"] for short in FIGURES.values())]
    rows = []
    for name in names:
        row = [name]
        for measured in log["measured"]:
            of_run = [run["summary"] for run in measured["runs"] if run["method"] == name]
            row += [spread([summary[figure] for summary in of_run]) for figure in FIGURES]
        rows.append([*row, PAPER.get(name, "")] if paper else row)
    return markdown([*head, "paper, mAP"] if paper else head, rows)


def against(log: dict[str, Any]) -> str:
    """The first run less each other one, by the paired bootstrap, seed by seed."""
    rows = []
    for measured in log["measured"]:
        for comparison in measured["comparisons"]:
            row = [f"{comparison['first']} less {comparison['second']}, {measured['split']}"]
            for name in ("CorLoc", "mAP VOC07"):
                of = comparison["measures"][name]
                low, high = of["interval_95"]  # the log's differences are second less first
                row.append(
                    f"{-100 * of['difference']:+.1f} ({-100 * high:+.1f} to {-100 * low:+.1f}), p {of['p_value']:.3f}"
                )
            rows.append(row)
    return markdown(["", "CorLoc", "mAP"], rows)


def parts(log: dict[str, Any]) -> str:
    rows = [[part, f"{t['seconds'] / 60:.1f} min", f"{t['made']:,}"] for part, t in log["parts"].items()]
    total = sum(t["seconds"] for t in log["parts"].values())
    rows.append(["together", f"{total / 60:.1f} min", ""])
    about = f"\n{log['machine']}; most memory {log['memory_mb']:,} MB; commit {log['commit']}.\n"
    return markdown(["part", "time", "images"], rows) + about


def filled(page: str) -> str:
    def fill(match: re.Match[str]) -> str:
        log = json.loads((ROOT / "recipes" / f"{match[2]}.json").read_text())
        return match[1] + {"figures": figures, "against": against, "parts": parts}[match[3]](log) + match[4]

    return MARK.sub(fill, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
