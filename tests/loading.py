"""Modules by their path: tests are no package, and neither are examples and benchmarks."""

from __future__ import annotations

import importlib.util
import pathlib
import types


def module_at(path: pathlib.Path) -> types.ModuleType:
    """The file's module, loaded anew at each call and registered nowhere."""
    spec = importlib.util.spec_from_file_location(f"tffcl_tests_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
