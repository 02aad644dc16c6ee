"""The tiny client work and data that the driver's tests share."""

from __future__ import annotations

import pathlib
import types

import pytest
from loading import module_at


@pytest.fixture(scope="session")
def tiny() -> types.ModuleType:
    """The module tiny.py beside this file; loaded by path, since tests are no package."""
    return module_at(pathlib.Path(__file__).with_name("tiny.py"))


@pytest.fixture(scope="session")
def process(tiny, tff_context):
    return tiny.build_process()
