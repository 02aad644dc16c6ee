"""Checks that requirements.txt and the constraints of pyproject.toml pin one set of packages, and that uv resolved it.

requirements.txt carries hashes and no addresses, and pins what a plain installation needs. The constraints pin that and
what development and extras add, version by version what uv.lock has. `.ci/pin.py` makes both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HEADER = """\
# Every package that tffcl needs, pinned and hashed, for: pip install --no-deps -r requirements.txt
# Made by: uv run .ci/pin.py, together with the constraints in pyproject.toml
# `--no-deps` because tensorflow-federated 0.87.0 asks for a jaxlib that is no longer published; 0.4.13 does the same work.
# Keep out: pyarrow from 21 on (it breaks the import of tensorflow-federated), setuptools from 81 on (TensorBoard needs pkg_resources).
"""  # noqa: E501
PYTHONS = ("3.9", "3.10", "3.11")
_FORBIDDEN = re.compile(r"://|--(extra-)?index-url|--find-links|--trusted-host| @ ")
Pin = tuple[str, str, str]  # name, version, the version of Python that it is for


def project_of(text: str) -> dict[str, Any]:
    """The content of pyproject.toml."""
    return tomllib.loads(text)


def settings_of(text: str) -> dict[str, Any]:
    """Settings of uv in pyproject.toml."""
    return project_of(text)["tool"]["uv"]


def locked(text: str) -> set[Pin]:
    """What uv.lock has of packages other than this project."""
    return {
        (one["name"], one["version"], python)
        for one in tomllib.loads(text)["package"]
        if "editable" not in one["source"]
        for python in _pythons(" or ".join(one.get("resolution-markers", [])))
    }


def pinned(requirements: list[str]) -> set[Pin]:
    """The exact versions among requirements."""
    return {
        (canonicalize_name(one.name), str(one.specifier)[2:], python)
        for one in map(Requirement, requirements)
        if str(one.specifier).startswith("==")
        for python in _pythons(str(one.marker or ""))
    }


def _pythons(marker: str) -> list[str]:
    """The versions of Python for which a marker holds on the platform that is supported."""
    where = {
        "platform_machine": "x86_64",
        "sys_platform": "linux",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return [
        one
        for one in PYTHONS
        if not marker or Marker(marker).evaluate({**where, "python_version": one, "python_full_version": f"{one}.9"})
    ]


def main() -> int:
    text = Path("requirements.txt").read_text()
    problems = [f"address or index option: {line}" for line in text.splitlines() if _FORBIDDEN.search(line)]
    entries = [entry for entry in re.split(r"\n(?=[a-zA-Z])", text) if re.match(r"[a-zA-Z]", entry)]
    problems += [f"no hash: {entry.split()[0]}" for entry in entries if "--hash=sha256:" not in entry]
    plain = pinned([entry.partition(" \\")[0] for entry in entries])

    if not Path("uv.lock").exists():
        sys.exit("no uv.lock: `uv lock` makes it")
    project = Path("pyproject.toml").read_text()
    uv = settings_of(project)
    constraints, lock = pinned(uv["constraint-dependencies"]), locked(Path("uv.lock").read_text())
    problems += [f"address: {one}" for one in uv["constraint-dependencies"] if _FORBIDDEN.search(one)]
    for words, pins in (
        ("pinned in requirements.txt, not among the constraints", plain - constraints),
        ("pinned by a constraint, not resolved", constraints - lock),
        ("resolved, not among the constraints", lock - constraints),
    ):
        problems += [f"{name}=={version} for Python {python}: {words}" for name, version, python in sorted(pins)]

    versions: dict[str, set[str]] = {}
    for name, version, _ in plain:
        versions.setdefault(name, set()).add(version)
    wanted = project_of(project)["project"]["dependencies"] + uv["override-dependencies"]
    for requirement in map(Requirement, wanted):
        found = versions.get(canonicalize_name(requirement.name))
        if not found or not all(requirement.specifier.contains(version) for version in found):
            problems.append(f"{requirement} is asked for, {found or 'nothing'} is pinned")
    if "pyarrow" in versions:
        problems.append("pyarrow is pinned: nothing here needs it")
    print("\n".join(problems) or f"{len(plain)} pins for {len(PYTHONS)} Pythons, of {len(lock)} resolved, are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
