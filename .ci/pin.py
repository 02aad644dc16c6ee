# /// script
# requires-python = ">=3.9"
# dependencies = ["packaging", "tomli; python_version < '3.11'"]
# ///
"""Pins every package: in requirements.txt for pip, and as constraints in pyproject.toml, by which uv resolves.

    uv run .ci/pin.py            # all of them, as new as the dependencies allow
    uv run .ci/pin.py NAME ...   # these; others only where they ask for it

Constraints pin what is installed for development and for any extra, too; requirements.txt is a plain installation.
What builds tffcl, and packages that come as source, is pinned beside them, and renewed with all. It runs apart from the
project's own environment. Run the tests, and `.ci/audit.py`, afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_requirements import HEADER, PYTHONS, Pin, locked, pinned, project_of, settings_of

ROOT = Path(__file__).resolve().parents[1]
# What pyproject.toml says of the interpreter, in the marker of each line.
_OBVIOUS = ("implementation_name == 'cpython'", "platform_python_implementation == 'CPython'")
_COMPILE = ("pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate", "--no-emit-index-url")
_EXPORT = ("export", "--quiet", "--frozen", "--no-emit-project", "--no-dev", "--no-header", "--no-annotate")


def main(renewed: list[str]) -> int:
    text = (ROOT / "pyproject.toml").read_text()
    by_hand = [one for one in settings_of(text)["constraint-dependencies"] if "==" not in one]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(_with_list(text, "constraint-dependencies", by_hand))
        if renewed:
            _uv("lock", "--quiet", cwd=ROOT)
            shutil.copy(ROOT / "uv.lock", folder)
        _uv("lock", "--quiet", *(f"--upgrade-package={name}" for name in renewed), cwd=folder)
        pins = locked(Path(folder, "uv.lock").read_text())
        exported = _uv(*_EXPORT, cwd=folder)
    for obvious in _OBVIOUS:
        exported = exported.replace(f"{obvious} and ", "")
    text = _with_list(text, "constraint-dependencies", by_hand + _as_constraints(pins))
    if not renewed:
        text = _with_list(text, "build-constraint-dependencies", _as_constraints(_build_pins(text)))
    _replace(ROOT / "pyproject.toml", text)
    _replace(ROOT / "requirements.txt", HEADER + exported)
    _uv("lock", "--quiet", cwd=ROOT)
    return 0


def _build_pins(text: str) -> set[Pin]:
    """What builds tffcl and packages that come as source, resolved apart from what is installed."""
    needed = [*project_of(text)["build-system"]["requires"], "setuptools<81", "wheel"]
    with tempfile.TemporaryDirectory() as folder:
        found = _uv(*_COMPILE, "--python-version", PYTHONS[0], "-", cwd=folder, stdin="\n".join(needed))
    return pinned(found.splitlines())


def _as_constraints(pins: set[Pin]) -> list[str]:
    """A line for each version, with the versions of Python that it is for unless it is for all."""
    lines = []
    for name, version in sorted({pin[:2] for pin in pins}):
        pythons = [one for one in PYTHONS if (name, version, one) in pins]
        when = " or ".join(f"python_version == '{one}'" for one in pythons)
        lines.append(f"{name}=={version}" + ("" if len(pythons) == len(PYTHONS) else f" ; {when}"))
    return lines


def _with_list(text: str, key: str, values: list[str]) -> str:
    """pyproject.toml with other values in one of uv's lists, each on a line."""
    lines = "".join(f'  "{value}",\n' for value in values)
    changed, count = re.subn(rf"^{key} = \[.*?\]$", f"{key} = [\n{lines}]", text, flags=re.M | re.S)
    if count != 1:
        sys.exit(f"pyproject.toml: expected {key} once, found it {count} times")
    return changed


def _replace(path: Path, text: str) -> None:
    path.with_name(f"{path.name}.new").write_text(text)
    path.with_name(f"{path.name}.new").replace(path)


def _uv(*args: str, cwd: object, stdin: str = "") -> str:
    command = [os.environ.get("UV", "uv"), *args]
    done = subprocess.run(command, cwd=str(cwd), input=stdin, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")  # uv has said why
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
