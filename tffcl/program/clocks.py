"""Wall and CPU time of this process together with the workers that it started."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time


@dataclasses.dataclass(frozen=True)
class Spent:
    """Seconds spent.

    Attributes:
      wall: by the clock on the wall.
      cpu: by this process and its children, all cores together.
    """

    wall: float
    cpu: float

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(self.wall - earlier.wall, self.cpu - earlier.cpu)


def now() -> Spent:
    """A reading, to be subtracted from a later one."""
    times = os.times()
    ended_children = times.children_user + times.children_system
    return Spent(time.perf_counter(), times.user + times.system + ended_children + _children_seconds())


def _children_seconds() -> float:
    """CPU seconds of the living children of this process; 0 where there is no /proc to read them from."""
    ticks, parent = 0, str(os.getpid())
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; after it: state, parent, ..., utime, stime.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if fields[1] == parent:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
