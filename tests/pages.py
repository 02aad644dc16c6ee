"""Every tutorial and page of commands as printed, from top to bottom: `uv run pytest -n0 tests/pages.py`.

Each page has an empty folder with docs/ and, where it speaks of a table of the reader's own, such a table. Its shell
and its Python run in order, and where a page shows what is printed, the same lines come, whatever their numbers. It
takes about half an hour; `pytest` by itself runs the Python of the pages, and takes the flags of their commands.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FENCES = re.compile(r"^```(bash|sh|python|py|text)\n(.*?)^```", re.S | re.M)
# What takes hours, other machines or published data; `tests/test_docs.py` takes their flags.
ELSEWHERE = re.compile(
    r"tffcl reproduce|DIR\b|trec6|pip install|uv run pytest|\.\.\.|machine\$n|runs/a |worker-a|activate"
)
# Pages whose Python is a part, or is run by tests/examples/test_own_parts.py.
FRAGMENTS = ("docs/papers.md", "docs/own_parts.md")
PAGES = {
    "README.md": "questions.csv",
    "docs/index.md": "",
    "docs/papers.md": "",
    "docs/benchmark.md": "",
    "docs/from-run-to-use.md": "questions.csv",
    "docs/how-to.md": "",
    "docs/own_parts.md": "flowers.csv",
    **{str(page.relative_to(ROOT)): "" for page in sorted((ROOT / "docs" / "tutorials").glob("*.md"))},
}


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of a page's blocks; shell without what is run elsewhere."""
    found = []
    for language, text in FENCES.findall((ROOT / page).read_text()):
        if language in ("bash", "sh"):
            lines = text.replace("\\\n", " ").replace("pip install uv && ", "").split("\n")
            lines = [line for line in lines if not ELSEWHERE.search(line)]
            found.append(("bash", "\n".join(lines).replace("uv run ", "python ")))
        else:
            found.append((language, text))
    return found


def masked(text: str) -> set[str]:
    """Lines with their numbers, the spaces and rules between columns, and the words of a lost connection taken out.

    How often a run tells what is left depends on the machine: without these lines.
    """
    text = re.sub(r"UNAVAILABLE: [^)\n]*", "UNAVAILABLE", text)
    lines = (re.sub(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", "N", line) for line in text.splitlines())
    return {re.sub(r"[\s-]+", " ", line).strip() for line in lines if "s left" not in line} - {""}


def questions(folder: pathlib.Path) -> None:
    """A reader's own tables: all questions, those of later, and some without labels."""
    from tffcl import datasets

    sample = datasets.load("sample")
    rows = [(text, sample.label_names[label]) for text, label in zip(sample.train_texts, sample.train_labels)]
    for name, some in (("questions.csv", rows), ("new.csv", rows[1::2]), ("rows.csv", rows[:5])):
        with open(folder / name, "w", newline="") as file:
            csv.writer(file).writerows([("question", "topic"), *some])


def flowers(folder: pathlib.Path) -> None:
    """A reader's table of numbers."""
    from sklearn.datasets import load_iris

    iris = load_iris()
    rows = [(width, height, iris.target_names[kind]) for (height, width, *_), kind in zip(iris.data, iris.target)]
    with open(folder / "flowers.csv", "w", newline="") as file:
        csv.writer(file).writerows([("width", "height", "species"), *rows])


TABLES = {"questions.csv": questions, "flowers.csv": flowers}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    for name in ("docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


def test_each_page_with_commands_is_run_here_or_said_to_be_run_elsewhere():
    elsewhere = {"results", "CONTRIBUTING", "packages", "runs", "runtime", "contract"}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        shell = any(language == "bash" for language, _ in blocks(str(page.relative_to(ROOT))))
        assert not shell or str(page.relative_to(ROOT)) in PAGES or page.stem in elsewhere


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_printed(page, tmp_path):
    if PAGES[page]:
        TABLES[PAGES[page]](tmp_path)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
    }
    names: dict = {"__name__": "__main__"}
    printed, shown, began = "", [], time.monotonic()
    for language, text in blocks(page):
        if language == "bash" and text.strip():
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", text],
                env=environment, capture_output=True, text=True, timeout=1500,
            )  # fmt: skip
            assert done.returncode == 0, (text, done.stderr[-2000:])
            printed += done.stdout + done.stderr
        elif language in ("python", "py") and page not in FRAGMENTS:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(text, page, "exec"), names)
            printed += said.getvalue()
        elif language == "text":
            shown.append(text)
    came = masked(printed) | {line for path in tmp_path.glob("*.csv") for line in masked(path.read_text())}
    for text in shown:
        missing = masked(text) - came
        assert not missing, (page, missing)
    print(f"{page}: {time.monotonic() - began:.0f} s")
