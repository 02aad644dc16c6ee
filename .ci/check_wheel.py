"""Checks that the wheel installed in the folder given is what gets imported, and that it is whole."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path


def main() -> int:
    installed = Path(sys.argv[1]).resolve()
    import tffcl

    found = Path(tffcl.__file__).resolve()
    if installed not in found.parents:
        print(f"imported {found}, not the wheel under {installed}")
        return 1
    modules = [module.name for module in pkgutil.walk_packages(tffcl.__path__, "tffcl.")]
    for name in modules:
        importlib.import_module(name)
    if (found.parent / "datasets").is_dir() and not any((found.parent / "datasets" / "sample").glob("*")):
        print("the wheel lacks tffcl/datasets/sample")
        return 1
    if not (found.parent / "py.typed").exists() or any(installed.glob("tests*")):
        print("the wheel lacks tffcl/py.typed, or carries tests")
        return 1
    print(f"{len(modules)} modules import outside the repository")
    return 0


if __name__ == "__main__":
    sys.exit(main())
