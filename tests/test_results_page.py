"""The pages of results say what the logs beside the recipes say."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))


def test_the_tables_are_those_of_the_logs():
    import results_tables

    pages = [path.read_text() for path in results_tables.PAGES]
    assert [results_tables.filled(page) for page in pages] == pages, "run: python tools/results_tables.py"
    kept = {path.stem for path in (ROOT / "recipes").glob("*.json")}
    named = {match[2] for page in pages for match in results_tables.MARK.finditer(page)}
    assert kept == named, "a log without a table, or a table without a log"
