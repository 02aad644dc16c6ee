"""The small world that tests of client works share."""

from __future__ import annotations

import importlib.util
import pathlib
import types

import pytest


@pytest.fixture(scope="session")
def small() -> types.ModuleType:
    """The module small.py beside this file; loaded by path, since tests are no package."""
    path = pathlib.Path(__file__).with_name("small.py")
    spec = importlib.util.spec_from_file_location("tffcl_tests_small", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
