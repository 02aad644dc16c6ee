"""The leak table, cell by cell."""

import pytest

from tffcl import reports
from tffcl.errors import InputError

ROWS = [
    {"sharing": "raw", "beta": None, "times": 1, "top1": 1.0, "r2": 1.0},
    {"sharing": "sampled", "beta": 1e-4, "times": 6, "top1": 0.9988, "r2": -0.004},
]


def test_cells_as_markdown_and_text():
    assert reports.leak_table(ROWS, markdown=True).splitlines() == [
        "| sharing |   beta | sent | top-1 % |   R2 |",
        "|:--------|-------:|-----:|--------:|-----:|",
        "| raw     |      - |   1x |   100.0 | 1.00 |",
        "| sampled | 0.0001 |   6x |    99.9 | 0.00 |",
    ]
    assert reports.leak_table(ROWS).splitlines()[2].split() == ["raw", "-", "1x", "100.0", "1.00"]


def test_columns_that_some_row_has():
    more = {**ROWS[1], "epsilon": 9.99726, "candidates": 3000, "top5": 1, "mean_rank": 1.25}
    header, _, raw, sampled = reports.leak_table([ROWS[0], more], markdown=True).splitlines()
    header, raw, sampled = ([cell.strip() for cell in line.strip("|").split("|")] for line in (header, raw, sampled))
    assert dict(zip(header, sampled)) == {
        "sharing": "sampled",
        "beta": "0.0001",
        "epsilon": "10",
        "sent": "6x",
        "candidates": "3,000",
        "top-1 %": "99.9",
        "top-5 %": "100.0",
        "mean rank": "1.2",
        "R2": "0.00",
    }
    assert dict(zip(header, raw))["candidates"] == "-"


def test_rows_that_lack_something():
    with pytest.raises(InputError, match="at least one row"):
        reports.leak_table([])
    with pytest.raises(InputError, match="row 2 of the leak table has no times, top1"):
        reports.leak_table([ROWS[0], {"sharing": "raw", "r2": 0.5}])
