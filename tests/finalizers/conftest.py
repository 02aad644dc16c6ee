"""The small world of rehearsal, for finalizers."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

_NAME = "rehearsing"  # tests are no package
_PATH = pathlib.Path(__file__).parents[1] / "client_works" / f"{_NAME}.py"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, _PATH)
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
