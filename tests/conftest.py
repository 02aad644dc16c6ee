"""Fixtures that every test may use."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tffcl.runtime import quiet

if TYPE_CHECKING:
    from tffcl import runtime

quiet.quiet_logs()  # before any test module imports TensorFlow


@pytest.fixture(scope="module")
def run() -> Iterator[Callable]:
    """Runs the command line in this process: see `command_line.runs`."""
    import command_line

    yield from command_line.runs()


@pytest.fixture(scope="session")
def tff_context() -> Iterator[runtime.LocalRuntime]:
    """One local worker, and its context installed, for all tests that run TFF computations."""
    from tffcl import runtime

    with runtime.local() as local_runtime:
        yield local_runtime


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """Real data sets: TFFCL_DATA_DIR, or `../shared/data` beside the repository; else the test is skipped."""
    given = os.environ.get("TFFCL_DATA_DIR")
    folder = pathlib.Path(given) if given else pathlib.Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is missing (TFFCL_DATA_DIR names another place)")
    return folder
