"""Memory of this process and of all that it started, as the system tells it (Linux)."""

from __future__ import annotations

import os
import pathlib
import threading

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Bytes of a process that are in memory; 0 once it has ended."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    found, parents = [], {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if len(fields) > 1:
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


class Memory:
    """Watches memory in a thread of its own.

    Attributes:
      peak: most bytes so far of this process, of all its descendants together, and of both together; since the last
        `take_peak`.
    """

    def __init__(self, seconds: float = 0.2) -> None:
        self.peak = (0, 0, 0)
        self.highest = 0
        self._end = threading.Event()
        threading.Thread(target=self._watch, args=(seconds,), daemon=True).start()

    def now(self) -> tuple[int, int]:
        """Bytes of this process, and of its descendants together."""
        return resident(os.getpid()), sum(map(resident, descendants(os.getpid())))

    def take_peak(self) -> tuple[int, int, int]:
        """`peak`, which begins anew."""
        taken, self.peak = self.peak, (0, 0, 0)
        return taken

    def _watch(self, seconds: float) -> None:
        while not self._end.wait(seconds):
            own, others = self.now()
            self.peak = tuple(map(max, self.peak, (own, others, own + others)))
            self.highest = max(self.highest, own + others)

    def close(self) -> None:
        """Ends the thread."""
        self._end.set()
