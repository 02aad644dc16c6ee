"""Two calls in turn (A B A B ...), so that a machine whose speed drifts does not decide on their ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Times = tuple[float, float, float]


def ratio(
    first: Callable[[], object],
    second: Callable[[], object],
    pairs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Median seconds of both and the median of the pairs' ratios, after one uncounted call each."""

    def timed(call: Callable[[], object]) -> float:
        start = clock()
        call()
        return clock() - start

    first(), second()
    times = [(timed(first), timed(second)) for _ in range(pairs)]
    return (*(statistics.median(column) for column in zip(*times)), statistics.median(a / b for a, b in times))


def show(what: str, times: Times, target: str, width: int = 62) -> None:
    """One line of a report."""
    print(f"{what:<{width}} {times[0] * 1e3:8.1f} ms {times[1] * 1e3:8.1f} ms {times[2]:6.2f}x  {target}", flush=True)
