"""The files of a leaderboard: what stands in the page, and that it runs nothing but its own sorting."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re

import pytest

from tffcl.reports import leaderboard


def row(name, average, curve, paper="A & B, 2020", task_at_test="unknown"):
    return {
        "name": name, "method": "fedavg", "flags": ["--data", "digits", "--x", "<1>"], "own_flags": ["--x", "<1>"],
        "paper": paper, "chosen": "", "task_at_test": task_at_test,
        "seeds": ["1", "2"], "seal": "0123456789abcdef", "curves": {"1": curve, "2": curve},
        "made_with": {"1": {"code": "c0de1"}, "2": {"code": "c0de2"}},
        "values": {"A_T %": {"1": 50.0, "2": 52.0}},
        "mean": {"A_T %": 51.0, "MB up": 0.25, **({} if average is None else {"average A_t %": average})},
        "half_width": {"A_T %": 12.7, "MB up": 0.0, **({} if average is None else {"average A_t %": 1.25})},
        "difference": {} if name == "finetune" or average is None else {"average A_t %": [4.5, 0.5]},
    }  # fmt: skip


BOARD = {
    "format": 1, "suite": "digits", "quick": True, "about": "of <tests>", "flags": ["--data", "digits"], "streams": {},
    "tffcl": "0", "code": "c", "python": "3", "packages": {"numpy": "1"}, "against": "finetune", "target": 0.6,
    "measures": ["A_T %", "average A_t %", "forgotten %", "MB up"],
    "rows": [row("finetune", 60.0, [0.9, 0.5]), row("<lwf>", 64.5, [0.95, 0.6]), row("joint", None, [0.9]),
             row("fedweit", 90.0, [0.9, 0.9], task_at_test="known")],
}  # fmt: skip


class Page(html.parser.HTMLParser):
    """Cells of all tables, and the addresses that anything would be loaded from."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.sources, self.tags, self._cell = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.sources += [given[name] for name in ("src", "href") if name in given]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append([given.get("data-value"), ""])
            self._cell = self.rows[-1][-1]

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell[1] += data


def test_the_page_has_every_row_with_its_interval_the_best_first_and_values_to_sort_by():
    page = Page(leaderboard.page(BOARD))
    heads, *rows = page.rows[:5]
    columns = ["method", "task at test", "A_T %", "average A_t %", "MB up", "over finetune"]
    assert [text for _, text in heads] == columns
    assert [[text for _, text in cells[:6]] for cells in rows[:3]] == [
        ["<lwf>", "unknown", "51.0 ± 12.7", "64.5 ± 1.2", "0.25 ± 0.00", "+4.5 ± 0.5"],
        ["finetune", "unknown", "51.0 ± 12.7", "60.0 ± 1.2", "0.25 ± 0.00", "-"],
        ["joint", "unknown", "51.0 ± 12.7", "-", "0.25 ± 0.00", "-"],
    ]
    assert [text for _, text in rows[3][:4]] == [
        "fedweit",
        "known",
        "51.0 ± 12.7",
        "90.0 ± 1.2",
    ]  # told: no place above
    assert [cells[3][0] for cells in rows] == ["64.5", "60.0", "", "90.0"]


def test_the_page_loads_nothing_and_its_policy_names_the_one_script_in_it():
    text = leaderboard.page(BOARD)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in Page(text).sources)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in text
    assert "c0de1, c0de2" in text
    assert "<tests>" not in text
    assert "<1>" not in text


def test_curves_and_costs_are_pictures():
    assert Page(leaderboard.page(BOARD)).tags.count("img") == 2  # curves; against MB up, the only cost measured
    without = {**BOARD, "rows": [{**one, "curves": {"1": None}} for one in BOARD["rows"]]}
    assert Page(leaderboard.page(without)).tags.count("img") == 1


@pytest.mark.parametrize("ending", ["json", "csv", "md", "html"])
def test_all_forms_are_written(tmp_path, ending):
    paths = leaderboard.write(BOARD, tmp_path, "| a |")
    assert [path.name for path in paths] == [f"leaderboard.{each}" for each in ("json", "csv", "md", "html")]
    text = (tmp_path / f"leaderboard.{ending}").read_text()
    wanted = {
        "json": "finetune",
        "csv": "digits,finetune,1,A_T %,50.0,unknown\n",
        "md": "# digits (quick)\n\nof <tests>\n\n| a |\n",
        "html": "<!DOCTYPE html>",
    }
    assert wanted[ending] in text
    if ending == "json":
        assert json.loads(text) == BOARD
