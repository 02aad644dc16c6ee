"""The small world of the client works' tests, for algorithms."""

from __future__ import annotations

import pathlib
import types

import pytest
from loading import module_at


@pytest.fixture(scope="session")
def small() -> types.ModuleType:
    """The module client_works/small.py; loaded by path, since tests are no package."""
    return module_at(pathlib.Path(__file__).parents[1] / "client_works" / "small.py")
