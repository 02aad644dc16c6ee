"""The tiny client work and data that the driver's tests share."""

from __future__ import annotations

import importlib.util
import pathlib
import types

import pytest


@pytest.fixture(scope="session")
def tiny() -> types.ModuleType:
    """The module tiny.py beside this file; loaded by path, since tests are no package."""
    path = pathlib.Path(__file__).with_name("tiny.py")
    spec = importlib.util.spec_from_file_location("tffcl_tests_tiny", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def process(tiny, tff_context):
    return tiny.build_process()
