"""Commands that the README and the docs tell: each is one that the program takes."""

from __future__ import annotations

import pathlib
import re
import shlex

import pytest

from tffcl import cli
from tffcl.flags import parse_run

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def commands(page):
    """The lines of blocks of shell that start with `tffcl`, without comments, and without what is left open (...)."""
    blocks = re.findall(r"```(?:bash|sh)?\n(.*?)```", page.read_text(), re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").split("\n")]
    lines = [line.rpartition(" | ")[2] if line.startswith("echo ") else line for line in lines]
    found = [shlex.split(line.partition(" > ")[0], comments=True) for line in lines if line.startswith("tffcl ")]
    return [words[1:] for words in found if "..." not in words]


TOLD = [
    pytest.param(words, id=" ".join(words))
    for words in dict.fromkeys(tuple(w) for page in PAGES for w in commands(page))
]


@pytest.mark.parametrize("words", TOLD)
def test_a_command_of_the_docs_is_taken(run, monkeypatch, tmp_path, words):
    monkeypatch.chdir(ROOT)
    if words[0] == "run":
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "train.csv").write_text("text,label\na,b\n")
        (tmp_path / "questions.csv").write_text("question,topic\na,b\n")
        places = {
            "questions.csv": tmp_path / "questions.csv",
            "mine/": tmp_path / "mine",
            "flowers.csv": ROOT / "docs" / "examples" / "flowers.csv",
        }
        flags = [str(places.get(word, word)) for word in words[1:] if word != "--print-config"]
        for place, flag in enumerate(flags):
            if flag == "--config":
                text = parse_run([flags[0], "--data", "iris"]).to_toml()
                flags[place + 1] = str(tmp_path / "options.toml")
                (tmp_path / "options.toml").write_text(text)
        parse_run(flags)
    elif words[0] == "reproduce":
        from tffcl.papers import fil_ver, tables

        given = []
        monkeypatch.setattr(tables, "reproduce", lambda *args: given.append(args))
        monkeypatch.setattr(fil_ver, "reproduce_leak", lambda *args: given.append(args))
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        if "leak" not in words:
            _, rows, _, flags, *_ = given[0]
            for row in rows:
                parse_run([*row.flags, *flags])
    else:
        command = cli.tffcl.commands[words[0]]
        assert words[0] in (
            "list", "report", "worker", "export", "predict", "evaluate", "continue", "benchmark", "verify", "sweep",
            "frontier", "streams",
        )  # fmt: skip
        command.make_context(words[0], list(words[1:]))  # its flags are taken


def test_there_are_commands_to_test():
    assert len(TOLD) > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    for name in re.findall(r"`([a-z_]+/[a-z_/]*\.py)`", page.read_text()):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "tffcl", ROOT / "docs")), name
