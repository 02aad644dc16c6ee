"""The small world of the client works' tests, for algorithms."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types

import pytest


@pytest.fixture(scope="session")
def small() -> types.ModuleType:
    """The module client_works/small.py; loaded by path, since tests are no package."""
    path = pathlib.Path(__file__).parents[1] / "client_works" / "small.py"
    spec = importlib.util.spec_from_file_location("tffcl_tests_small_for_algorithms", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_NAME = "rehearsing"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        _NAME, pathlib.Path(__file__).parents[1] / "client_works" / f"{_NAME}.py"
    )
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
