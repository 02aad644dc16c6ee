"""The command line in this process, for tests of every command."""

from __future__ import annotations

import contextlib
import io
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click
import numpy as np
import pytest

from tffcl.commands import exit_with


class Done(NamedTuple):
    """How a call of the program ended."""

    returncode: int
    stdout: str
    stderr: str


def runs() -> Iterator[Callable[..., Done]]:
    """Gives what runs the command line, or another command, in the folder `cwd`; TFFCL_DATA_DIR is not set."""
    from tffcl.cli import tffcl

    logger = logging.getLogger("tffcl")
    before = logger.handlers[:], logger.propagate

    def call(*args: object, cwd: object = ".", command: click.Command = tffcl) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("TFFCL_DATA_DIR", raising=False)
            patch.chdir(cwd)
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.raises(SystemExit) as ended,
            ):
                exit_with(command, args=[str(arg) for arg in args])
        return Done(ended.value.code, out.getvalue(), err.getvalue())

    yield call
    logger.handlers[:], logger.propagate = before


def wrong(done: Done, *parts: str) -> None:
    """Exit code 2, and one line on stderr that holds all of `parts`."""
    lines = done.stderr.strip().split("\n")
    assert done.returncode == 2, done
    assert lines[-1].startswith("tffcl: error: "), done.stderr
    assert "Traceback" not in done.stderr
    assert sum("error" in line for line in lines) == 1
    for part in parts:
        assert part in lines[-1]


def once(function: Callable) -> Callable:
    """Calls the function the first time only, and gives its result whatever the arguments are later."""
    results: list = []

    def call(*args: object) -> object:
        results.extend([] if results else [function(*args)])
        return results[0]

    return call


def small_vectors(folder: pathlib.Path) -> pathlib.Path:
    """A file of word vectors of eight dimensions for the sample that ships: runs with it take seconds."""
    from tffcl import datasets

    texts = datasets.load("sample")
    words = sorted({word for text in texts.train_texts for word in datasets.tokenise(text)})
    rows = np.random.default_rng(1).normal(size=(len(words), 8)).round(3)
    path = folder / "small.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows)))
    return path
