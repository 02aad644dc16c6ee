"""Wall and CPU time of this process together with the workers that it started."""

from __future__ import annotations

import dataclasses
import os
import time

from tffcl.runtime import processes

_LOOK_AGAIN_SECONDS = 10.0  # going through all processes takes tens of milliseconds, longer than a small round
_children: tuple[float, list[int]] = (float("-inf"), [])


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
    """CPU seconds of the living children of this process; 0 where the system tells of none."""
    global _children
    own = os.getpid()
    if time.monotonic() - _children[0] > _LOOK_AGAIN_SECONDS:
        found = [pid for pid, parent in processes.parents().items() if parent == own]
        _children = (time.monotonic(), found)
    told = map(processes.stat, _children[1])
    return sum(processes.seconds_of(fields) for fields in told if fields and int(fields[1]) == own)
