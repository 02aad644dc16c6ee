"""What is sent against what it gives away, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tffcl.errors import InputError
from tffcl.reports.tables import NO_DATA, render


def leak_table(rows: Sequence[Mapping[str, Any]], *, markdown: bool = False) -> str:
    """A row for each way of sharing: how often what is sent is linked to its source, and how much of it is rebuilt.

    A column that no row has a value for is left out.

    Args:
      rows: each with
        sharing: what is sent, as text;
        beta: of the encoder's pre-training (eq. 9), None where it has none;
        epsilon: of the noise on what is sent, None where there is none;
        times: how often the same example is sent;
        candidates: among how many the source was looked for;
        top1, top5: shares 0 .. 1, and mean_rank, as `tffcl.metrics.LinkResult` has them;
        r2: as `tffcl.metrics.reconstruction_r2` gives it.
        All but sharing, times and top1 may be missing.
      markdown: a Markdown table instead of aligned text.

    >>> print(leak_table([{"sharing": "sampled", "beta": 1e-3, "times": 6, "top1": 0.981, "r2": 0.4}]))
    sharing   beta  sent  top-1 %    R2
    -------  -----  ----  -------  ----
    sampled  0.001    6x     98.1  0.40

    Raises:
      InputError: no rows, or one that lacks sharing, times or top1.
    """
    if not rows:
        raise InputError("leak_table needs at least one row, got none")
    for number, row in enumerate(rows, start=1):
        missing = [name for name in ("sharing", "times", "top1") if row.get(name) is None]
        if missing:
            raise InputError(f"row {number} of the leak table has no {', '.join(missing)}")
    columns = {
        "sharing": [str(row["sharing"]) for row in rows],
        "beta": [_cell(row, "beta", "{:g}") for row in rows],
        "epsilon": [_cell(row, "epsilon", "{:.3g}") for row in rows],
        "sent": [_cell(row, "times", "{}x") for row in rows],
        "candidates": [_cell(row, "candidates", "{:,}") for row in rows],
        "top-1 %": [_cell(row, "top1", "{:.1f}", 100) for row in rows],
        "top-5 %": [_cell(row, "top5", "{:.1f}", 100) for row in rows],
        "mean rank": [_cell(row, "mean_rank", "{:.1f}") for row in rows],
        "R2": [_cell(row, "r2", "{:.2f}") for row in rows],
    }
    kept = {name: cells for name, cells in columns.items() if any(cell != NO_DATA for cell in cells)}
    return render(list(kept), [list(cells) for cells in zip(*kept.values())], markdown=markdown)


def _cell(row: Mapping[str, Any], name: str, form: str, scale: int = 1) -> str:
    value = row.get(name)
    text = NO_DATA if value is None else form.format(scale * value)
    return "0.00" if text == "-0.00" else text
