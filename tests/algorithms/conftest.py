"""The small world of the client works' tests, for algorithms."""

from __future__ import annotations

import importlib.util
import pathlib
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
