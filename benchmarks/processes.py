"""Memory of this process and of all that it started, as the system tells it (Linux)."""

from __future__ import annotations

import contextlib
import threading

import psutil


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
        own, others = psutil.Process(), 0
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                others += process.memory_info().rss
        return own.memory_info().rss, others

    def take_peak(self) -> tuple[int, int, int]:
        """`peak`, which begins anew; what stands there now counts, however short the time since the last one was."""
        self._look()
        taken, self.peak = self.peak, (0, 0, 0)
        return taken

    def _watch(self, seconds: float) -> None:
        while not self._end.wait(seconds):
            self._look()

    def _look(self) -> None:
        own, others = self.now()
        self.peak = tuple(map(max, self.peak, (own, others, own + others)))
        self.highest = max(self.highest, own + others)

    def close(self) -> None:
        """Ends the thread."""
        self._end.set()
