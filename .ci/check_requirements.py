"""Checks that requirements.txt carries hashes, no addresses, and versions that pyproject.toml allows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FORBIDDEN = re.compile(r"://|--(extra-)?index-url|--find-links|--trusted-host| @ ")


def main() -> int:
    text = Path(sys.argv[1]).read_text()
    problems = [f"address or index option: {line}" for line in text.splitlines() if _FORBIDDEN.search(line)]
    entries = [entry for entry in re.split(r"\n(?=[a-zA-Z])", text) if re.match(r"[a-zA-Z]", entry)]
    problems += [f"no hash: {entry.split()[0]}" for entry in entries if "--hash=sha256:" not in entry]
    pins: dict[str, list[str]] = {}
    for entry in entries:
        name, version = entry.split()[0].split("==")
        pins.setdefault(name, []).append(version)
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    wanted = settings["project"]["dependencies"] + settings["tool"]["uv"]["override-dependencies"]
    for requirement in map(Requirement, wanted):
        versions = pins.get(requirement.name, [])
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            problems.append(f"{requirement} is asked for, {versions or 'nothing'} is pinned")
    if "pyarrow" in pins:
        problems.append("pyarrow is pinned: nothing here needs it")
    print("\n".join(problems) or f"{len(entries)} pins are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
