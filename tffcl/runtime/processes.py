"""What the system tells of processes. It is asked in /proc, as Linux has it; elsewhere it tells of none."""

from __future__ import annotations

import os
import pathlib
from typing import Optional


def stat(pid: int) -> list[str]:
    """Fields of a process from its state on (state, parent, ...; see proc(5)); nothing where it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # a name may hold anything


def parents() -> dict[int, int]:
    """The parent of every process."""
    pids = [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")]
    return {pid: int(fields[1]) for pid, fields in zip(pids, map(stat, pids)) if fields}


def seconds_of(fields: list[str]) -> float:
    """CPU seconds of a process so far, all cores together, from its fields."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> Optional[float]:
    """CPU seconds of a process so far; None if it has ended."""
    fields = stat(pid)
    return None if not fields or fields[0] in "ZX" else seconds_of(fields)


def resident_bytes(pid: int) -> int:
    """Bytes of a process that are in memory; 0 once it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
