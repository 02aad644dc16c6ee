"""A hook of mkdocs: what is made when the site is built: pages of the sources, the options and the registry; notebooks.

`uv run --group docs mkdocs build` builds it into site/, strictly: a dead link ends it. `mkdocs serve` shows it while
one writes. TensorFlow is not imported.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "tffcl"
ALL_OPTIONS = "--help-all"
API = """# Reference

The public names of every module, with shapes, dtypes, units, errors and sources. The parts of a method (client work,
transfer, aggregator, finalizer) are described by [the contract](../contract.md); the map of the modules is
[architecture](../architecture.md). The [command line](cli.md), [methods and data](parts.md) and the files of a
[run directory](../runs.md) have pages of their own.

| module | what is in it |
|---|---|
"""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that no one writes."""
    pages = {**api_pages(), "reference/cli.md": cli_page(), "reference/parts.md": parts_page()}
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        pages[f"reference/{name.lower()}"] = re.sub(r"\]\(docs/", "](../", text)  # seen from reference/
    pages.update({_notebook_of(path): notebook((ROOT / "docs" / path).read_text()) for path in _tutorials(config)})
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Under the title of a tutorial stands a link to its notebook."""
    if page.file.src_uri not in _tutorials(config):
        return markdown
    name = _notebook_of(page.file.src_uri).rpartition("/")[2]
    link = f'[Open as a notebook]({name}){{ .md-button download="{name}" }}'
    return re.sub(r"(?m)\A(# .*)$", rf"\1\n\n{link}", markdown.lstrip(), count=1)


def _tutorials(config: Any) -> list[str]:
    return next(entry["Tutorials"] for entry in config.nav if "Tutorials" in entry)


def _notebook_of(page: str) -> str:
    return page.replace(".md", ".ipynb")


def notebook(page: str) -> str:
    """A tutorial as a Jupyter notebook: its Python and its commands are cells, what they print stands below them."""
    import jupytext
    import nbformat
    from nbformat import v4

    page = re.sub(r"<!--.*?-->\n", "", page).replace("```py\n", "```python\n")
    page = re.sub(r"\[([^\]]+)\]\((?:\.\./)*([^):#]+)[^):]*\)", r"\1 (docs/\2)", page)  # no page stands beside it
    kernel = v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    read = jupytext.reads(f"{jupytext.writes(kernel, 'md')}\n{page}", "md")
    cells: list[Any] = []
    for cell in read.cells:
        printed = re.match(r"```text\n(.*?)```\n*", cell.source, re.S) if cells else None
        if cell.cell_type == "markdown" and printed and cells[-1].cell_type == "code":
            cells[-1].outputs = [v4.new_output("stream", name="stdout", text=printed[1])]
            cell.source = cell.source[printed.end() :]
        if cell.source:
            cells.append(cell)
    made = v4.new_notebook(cells=cells, metadata=kernel.metadata)
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"  # the same in every build
    nbformat.validate(made)
    return nbformat.writes(made) + "\n"


class Examples(griffe.Extension):
    """Examples in docstrings are code, lines from `>>>` to the next empty one; where one is shown is a link."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Puts fences around them, and makes links."""
        if obj.docstring is not None:
            text = re.sub(r"(?m)^( *)(>>> (?:.+\n?)+)", r"\1```pycon\n\1\2\n\1```\n", obj.docstring.value)
            text = re.sub(r"Shown in docs/(\S+\.md)\.", r"Shown in [docs/\1](../../\1).", text)
            obj.docstring.value = re.sub(r"Shown with `(\w+)`\.", _beside, text)


def _beside(found: re.Match[str]) -> str:
    stubs = sorted(SOURCES.glob("*/__init__.pyi"))
    every = [name for stub in stubs for name in public_names(stub.parent, f"tffcl.{stub.parent.name}")]
    every += public_names(SOURCES, "tffcl")
    name = next(name for name in every if name.rpartition(".")[2] == found[1])
    return f"Shown with [`{found[1]}`][{name}]."


def api_pages() -> dict[str, str]:
    """A page for each room, one for each public module, one for what stands in `tffcl` itself, and an index."""
    paths = {}
    for stub in sorted(SOURCES.glob("*/__init__.pyi")):
        room = f"tffcl.{stub.parent.name}"
        paths[room] = public_names(stub.parent, room)
    for name in ("errors", "testing"):
        paths[f"tffcl.{name}"] = [f"tffcl.{name}"]
    elsewhere = {name for names in paths.values() for name in names}
    paths["tffcl"] = [name for name in public_names(SOURCES, "tffcl") if name not in elsewhere]
    pages, index = {}, API
    for module, names in sorted(paths.items()):
        about = _about(module)
        page = "\n\n".join([f"# {module}", about, *(f"::: {name}" for name in names)])
        pages[f"reference/api/{module.rpartition('.')[2]}.md"] = f"{page}\n"
        index += f"| [{module}](api/{module.rpartition('.')[2]}.md) | {about} |\n"
    return {**pages, "reference/index.md": index}


def public_names(folder: Path, package: str) -> list[str]:
    """The public names of a package as its stub lists them, each with the module that it comes from."""
    imports = [
        node for node in ast.parse((folder / "__init__.pyi").read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    return [f"{package}.{node.module}.{name.name}" for node in imports if node.module for name in node.names]


def _about(module: str) -> str:
    path = SOURCES.joinpath(*module.split(".")[1:])
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text())) or "").split("\n")[0]


def cli_page() -> str:
    """Every command's help, as a terminal of 100 columns shows it."""
    from tffcl.cli import tffcl

    commands = [(), *((name,) for name in tffcl.commands)]
    commands += [(name, each) for name, group in tffcl.commands.items() for each in getattr(group, "commands", ())]
    commands += [("run", method, ALL_OPTIONS) for method in ("fedseit", "confedmade", "fil-ver")]
    parts = ["# Command line", "Every command with its options, and the defaults that suit its usual data."]
    for command in commands:
        words = " ".join(("tffcl", *(each for each in command if each != ALL_OPTIONS)))
        parts.append(f"## {words}{', all options' if ALL_OPTIONS in command else ''}")
        parts.append(f"```text\n{_help(command)}\n```")
    return "\n\n".join(parts) + "\n"


def _help(command: tuple[str, ...]) -> str:
    from click.testing import CliRunner

    from tffcl.cli import tffcl

    asked = command if ALL_OPTIONS in command else (*command, "--help")
    shown = CliRunner().invoke(tffcl, asked, prog_name="tffcl", terminal_width=100)
    if shown.exit_code:
        raise RuntimeError(f"tffcl {' '.join(asked)} ends with {shown.exit_code}: {shown.output}")
    return shown.output.rstrip()


def parts_page() -> str:
    """What `tffcl list` prints: methods with the data that each takes and their papers, and data sets."""
    from tffcl.algorithms import registry
    from tffcl.experiment import loading

    lines = ["# Methods, data and papers", "", "| method | what it is | takes | paper |", "|---|---|---|---|"]
    for name in registry.METHODS.names:
        method = registry.find_method(name)
        takes = ", ".join(kind for kind in loading.KINDS if kind in method.kinds)
        lines.append(f"| `{name}` | {method.about} | {takes} | {method.paper} |")
    lines += ["", "## Data", "", "| kind | names of `--data` |", "|---|---|"]
    for kind in loading.KINDS:
        names = ", ".join(f"`{each}`" for each, found in loading.NAMES.items() if found == kind)
        lines.append(f"| {kind} | {names} |")
    return "\n".join(lines) + "\n"
