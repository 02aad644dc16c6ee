"""Wall and CPU time of this process together with the workers that it started."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time

_LOOK_AGAIN_SECONDS = (
    10.0  # going through all processes takes tens of milliseconds, longer than a small round
)
_children: tuple[float, list[pathlib.Path]] = (float("-inf"), [])


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
    global _children
    if time.monotonic() - _children[0] > _LOOK_AGAIN_SECONDS:
        found = [path for path in pathlib.Path("/proc").glob("[0-9]*/stat") if _is_child(_fields(path))]
        _children = (time.monotonic(), found)
    ticks = sum(
        int(fields[11]) + int(fields[12]) for fields in map(_fields, _children[1]) if _is_child(fields)
    )
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(path: pathlib.Path) -> list[str]:
    """state, parent, ..., utime, stime, ... of a process; nothing where it has ended."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()  # a name may hold anything
    except OSError:
        return []


def _is_child(fields: list[str]) -> bool:
    return len(fields) > 12 and fields[1] == str(os.getpid())
