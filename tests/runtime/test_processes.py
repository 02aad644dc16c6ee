"""What the system tells of processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from tffcl.runtime import processes


def test_this_process():
    ticks, before = (2 / os.sysconf("SC_CLK_TCK"), time.process_time())  # of the user's time and of the system's
    found = processes.cpu_seconds(os.getpid())
    assert before - ticks <= found <= time.process_time() + ticks
    found = processes.resident_bytes(os.getpid())
    assert 2**20 < found <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 2**24
    assert processes.parents()[os.getpid()] == os.getppid()


def test_one_that_ends():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert processes.parents()[child.pid] == os.getpid()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it waits for this one to ask how it ended
    assert processes.stat(child.pid)[0] == "Z"
    assert processes.cpu_seconds(child.pid) is None
    child.wait()
    assert (processes.stat(child.pid), processes.cpu_seconds(child.pid)) == ([], None)
    assert processes.resident_bytes(child.pid) == 0
