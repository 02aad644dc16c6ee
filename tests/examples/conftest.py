"""What the tests of the examples share."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(request, tmp_path):
    """Runs the example that the test's module names, in an empty folder."""

    def run(*args):
        command = [sys.executable, str(EXAMPLES / request.module.EXAMPLE), *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)

    return run
