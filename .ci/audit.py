"""Looks up known advisories for every pinned package: for a schedule, once a week, and after `.ci/pin.py`.

    uv run .ci/audit.py                        # exit code 1: there are some
    uv run .ci/audit.py --ignore-vuln ID ...   # but for these, which were judged

pip-audit passes over packages that it cannot look up. Where that is all of them no database is in reach: exit code 2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TOOL = "pip-audit==2.10.1"
DATABASES: dict[str, tuple[str, ...]] = {"the index's own advisories": (), "OSV": ("--vulnerability-service", "osv")}
_EXPORT = ("export", "--quiet", "--all-extras", "--all-groups", "--no-emit-project", "--no-header", "--no-annotate")


def main(args: list[str]) -> int:
    uv = os.environ.get("UV", "uv")
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "requirements.txt")
        subprocess.run([uv, *_EXPORT, "--output-file", str(pins)], stdout=subprocess.DEVNULL, check=True)
        for database, flags in DATABASES.items():
            command = [uv, "tool", "run", "--quiet", TOOL, "--disable-pip", "--progress-spinner", "off", "-f", "json"]
            done = subprocess.run(
                [*command, *flags, "-r", str(pins), *args], capture_output=True, text=True, check=False
            )
            looked_up, passed_over = _split(done.stdout)
            if looked_up:
                return _report(database, looked_up, passed_over)
            print(f"{database}: nothing could be looked up: {_reason(done.stderr, passed_over)}", file=sys.stderr)
    return 2


def _split(output: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The packages of pip-audit's report that were looked up, and those that it passed over."""
    packages = json.loads(output)["dependencies"] if output.startswith("{") else []
    return [one for one in packages if "vulns" in one], [one for one in packages if "skip_reason" in one]


def _reason(stderr: str, passed_over: list[dict[str, Any]]) -> str:
    return passed_over[0]["skip_reason"] if passed_over else (stderr.strip().splitlines() or ["no output"])[-1]


def _report(database: str, looked_up: list[dict[str, Any]], passed_over: list[dict[str, Any]]) -> int:
    found = [(one, advisory) for one in looked_up for advisory in one["vulns"]]
    for one, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "no version"
        print(f"{one['name']} {one['version']}: {advisory['id']}, fixed in {fixed}")
    for one in passed_over:
        print(f"{one['name']}: not looked up: {one['skip_reason']}")
    print(f"{len(found)} advisories for {len(looked_up)} packages, from {database}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
