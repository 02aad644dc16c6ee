"""The small world that tests of client works share."""

from __future__ import annotations

import pathlib
import types

import pytest
from loading import module_at


@pytest.fixture(scope="session")
def small() -> types.ModuleType:
    """The module small.py beside this file; loaded by path, since tests are no package."""
    return module_at(pathlib.Path(__file__).with_name("small.py"))
