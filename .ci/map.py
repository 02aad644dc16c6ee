"""The map in docs/architecture.md: rooms, what they are for, and which imports which.

uv run python .ci/map.py            # draws it anew
uv run python .ci/map.py --check    # whether it is still true
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import grimp
import tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- map: drawn by .ci/map.py -->\n", "<!-- end of map -->\n"


def rooms() -> list[str]:
    """All rooms from the command line down, as the import contract orders them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["importlinter"]["contracts"][0]["layers"]


def purpose(room: str) -> str:
    path = ROOT / "tffcl" / room / "__init__.py"
    path = path if path.exists() else ROOT / "tffcl" / f"{room}.py"
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].rstrip(".")


def imports(names: list[str]) -> dict[str, set[str]]:
    """Room -> rooms that it imports when it is loaded or used, but those that it reaches through another."""
    graph = grimp.build_graph("tffcl", exclude_type_checking_imports=True)
    direct: dict[str, set[str]] = {name: set() for name in names}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            ends = [each.split(".")[1] for each in (module, imported) if "." in each]
            if len(set(ends)) == 2 and set(ends) <= set(names):
                direct[ends[0]].add(ends[1])
    reach: dict[str, set[str]] = {}
    for name in reversed(names):  # what a room imports stands below it
        reach[name] = direct[name].union(*(reach[each] for each in direct[name]))
    return {
        name: {each for each in direct[name] if not any(each in reach[other] for other in direct[name])}
        for name in names
    }


def drawn() -> str:
    names = rooms()
    edges = [
        f"  {name} --> {each}" for name, found in imports(names).items() for each in sorted(found, key=names.index)
    ]
    rows = [f"| `{name}` | {purpose(name)} |" for name in names]
    return "\n".join(["```mermaid", "flowchart TD", *edges, "```", "", "| room | |", "|---|---|", *rows, ""])


def main(args: list[str]) -> int:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page = f"{before}{BEGIN}{drawn()}{END}{after}"
    if "--check" in args:
        if page != PAGE.read_text():
            print("docs/architecture.md: the map is no longer true; draw it anew with `uv run python .ci/map.py`")
            return 1
        return 0
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
