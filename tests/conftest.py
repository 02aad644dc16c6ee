"""Fixtures that every test may use."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

# Before `quiet` takes note of what is usual: tests trace all the time, and what they trace has few cycles.
gc.set_threshold(100_000, 50, 50)

import repeatable  # noqa: E402, F401

from tffcl.runtime import quiet  # noqa: E402

if TYPE_CHECKING:
    from tffcl import runtime

quiet.quiet_logs()  # before any test module imports TensorFlow

# An example takes as long as the machine takes for it.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Modules are compiled once where PYTHONDONTWRITEBYTECODE is set, too, and kept beside pytest's other files.

    Many tests start a program of their own; TensorFlow Federated takes each of them 15 s rather than 6 to import
    when nothing is kept. The environment reaches those programs, and the processes that share the tests.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE") or not hasattr(config, "cache"):
        return
    with contextlib.suppress(OSError):  # a checkout that cannot be written to: slower, but as right
        folder = str(config.cache.mkdir("bytecode"))
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = folder
        sys.dont_write_bytecode = False
        del os.environ["PYTHONDONTWRITEBYTECODE"]


def pytest_collection_finish() -> None:
    """What imports have left is looked through no more."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests go first: at the end no process is left alone with one while others wait."""
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="module")
def run() -> Iterator[Callable]:
    """Runs the command line in this process: see `command_line.runs`."""
    import command_line

    yield from command_line.runs()


@pytest.fixture(scope="module")
def processes() -> list[tuple[object, str, Callable]]:
    """Of the file's tests: see `command_line.processes`."""
    import command_line

    return command_line.processes()


@pytest.fixture
def built_once(processes: list[tuple[object, str, Callable]]) -> Iterator[None]:
    """Equal plans of the file's tests get one process."""
    import command_line

    with command_line.built_once(processes):
        yield


@pytest.fixture(scope="session", autouse=True)
def _disk() -> Iterator[None]:
    """Nobody waits for the disk: a run has its files flushed a hundred times, and what tests write need not last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses what is no open file, too
        yield


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of commands draw nothing: for tests to which their pictures are not the matter."""
    from tffcl.reports import summary

    monkeypatch.setattr(summary, "write_plots", lambda *_: [])


@pytest.fixture
def open_mask() -> Iterator[None]:
    """The most generous mask of permissions that a user can have."""
    before = os.umask(0)
    yield
    os.umask(before)


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
