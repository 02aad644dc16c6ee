"""Programs in a process of their own, in which neither this library nor TensorFlow Federated can be imported."""

from __future__ import annotations

import subprocess
import sys

from serving import PATIENCE

_BEFORE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tffcl", "tensorflow_federated"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Blocked())
"""
_AFTER = """
for name in ("tffcl", "tensorflow_federated"):
    assert name not in sys.modules
"""


def run_bare(script, folder, *args):
    """Runs a script in a folder; its assertions are the test's."""
    command = [sys.executable, "-c", _BEFORE + script + _AFTER, *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
