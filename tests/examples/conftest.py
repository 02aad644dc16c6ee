"""What the tests of the examples share."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from loading import module_at
from serving import PATIENCE

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which a module's example runs: empty at first."""
    return tmp_path_factory.mktemp("example")


@pytest.fixture(scope="module")
def run_example(request, folder):
    """Runs the example that the test's module names, in a process of its own."""

    def run(*args):
        command = [sys.executable, str(EXAMPLES / request.module.EXAMPLE), *args]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)

    return run


@pytest.fixture(scope="module")
def example(request):
    """The example that the test's module names, as a module here: what it builds is in reach, and `main` runs it."""
    return module_at(EXAMPLES / request.module.EXAMPLE)
