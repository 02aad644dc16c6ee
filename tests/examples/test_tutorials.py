"""The Python of the README and the tutorials runs as it is printed; `tests/test_docs.py` holds their commands."""

from __future__ import annotations

import pathlib
import re

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = [FOLDER.parents[1] / "README.md", *FOLDER.glob("*.md")]
BLOCKS = {path.stem: re.findall(r"```python\n(.*?)```", path.read_text(), re.S) for path in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_the_python_of_a_page_prints_what_it_counts(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in BLOCKS[page]:
        exec(compile(block, page, "exec"), names)
    printed = capsys.readouterr().out
    numbers = [float(number) for number in re.findall(r"(-?\d+\.?\d*)", printed)]
    assert any(number > 0 for number in numbers)
    if page == "README":
        assert re.search(r"\[b'[a-z]+'\]", printed.splitlines()[-1])  # the name of a label


def test_files_that_a_tutorial_shows_are_what_stands_there():
    shown = BLOCKS["own-model"][0]
    there = (FOLDER.parent / "examples" / "small_network.py").read_text()
    without = re.sub(r'\n +""".*?"""', "", there.partition('"""\n\n')[2], flags=re.S)
    assert shown == without
