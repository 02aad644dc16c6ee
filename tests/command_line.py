"""The command line in this process, for tests of every command."""

from __future__ import annotations

import contextlib
import io
import logging
import pathlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tffcl.flags import exit_with


class Done(NamedTuple):
    """How a call of the program ended."""

    returncode: int
    stdout: str
    stderr: str


def runs() -> Iterator[Callable[..., Done]]:
    """Gives what runs the command line, or a program of `tffcl.script`, in `cwd`; TFFCL_DATA_DIR is not set."""
    from tffcl.cli import tffcl

    def main(args: list[str]) -> None:
        exit_with(tffcl, args=args)

    logger = logging.getLogger("tffcl")
    before = logger.handlers[:], logger.propagate

    def call(*args: object, cwd: object = ".", program: Callable[[list[str]], None] | None = None) -> Done:
        out, err = io.StringIO(), io.StringIO()
        logger.handlers.clear()  # those of an earlier call write to its stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("TFFCL_DATA_DIR", raising=False)
            patch.chdir(cwd)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
                (program or main)([str(arg) for arg in args])
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


def once(function: Callable, told_apart: Callable[..., Hashable] = lambda *_, **__: None) -> Callable:
    """Calls the function the first time only, or once for each value that `told_apart` gives for the arguments."""
    results: dict[Hashable, object] = {}

    def call(*args: object, **options: object) -> object:
        key = told_apart(*args, **options)
        if key not in results:
            results[key] = function(*args, **options)
        return results[key]

    return call


# Options of which no process knows.
_OF_A_RUN_ALONE = (
    "embeddings", "num_clients", "num_rounds", "evaluate_every", "partition", "alpha", "train_classes", "task_at_test",
    "output_dir", "client_dir", "resume", "keep", "track", "quiet", "verbose", "runtime", "threads_per_client",
    "workers",
)  # fmt: skip


def what_is_built(method: Any, plan: Any) -> str:
    """What a process depends on: sizes that data give, places for others' knowledge, noise, and options.

    And whether its parts alone are asked for (`compose.in_parts`).
    """
    from tffcl.templates import compose

    options = {name: value for name, value in plan.experiment.values.items() if name not in _OF_A_RUN_ALONE}
    sizes = plan.input_shape, plan.num_classes, plan.transfer.num_foreign(plan.data.num_clients)
    return repr((method.name, options, sizes, plan.privacy, compose._in_parts.get()))


def what_rehearses(model: Any, **options: object) -> str:
    """What a process of FIL-VER depends on: its model to the bit, options, and whether parts alone are asked for."""
    from tffcl.templates import compose

    encoders = [each and (each.encoder, each.values.tobytes()) for each in (model.encoder, model.memory_encoder)]
    first = None if model.initial is None else np.asarray(model.initial).tobytes()
    described = encoders, model.classifier, first, model.label_mask, model.growing
    return repr((described, sorted(options.items()), compose._in_parts.get()))


def processes() -> list[tuple[object, str, Callable]]:
    """Owner, name and replacement of what composes processes, such that what equal plans ask for is composed once.

    Composing a process and compiling its computations takes most of a short run's time. Those of FIL-VER train an
    encoder and note it on their plan each time; what is built on equal encoders is one.
    """
    from tffcl.algorithms import fil_ver
    from tffcl.algorithms.incremental import AFCL
    from tffcl.algorithms.method import Method
    from tffcl.experiment import plan

    inferring: dict[int, tuple] = {}  # with the process itself, so that no other has its id

    def with_task_inference(process: Any, add: Callable = plan.with_task_inference) -> Any:
        if id(process) not in inferring:
            inferring[id(process)] = process, add(process)
        return inferring[id(process)][1]

    return [
        *((kind, "process", once(kind.process, what_is_built)) for kind in (Method, type(AFCL))),
        (fil_ver, "build_fil_ver", once(fil_ver.build_fil_ver, what_rehearses)),
        (plan, "with_task_inference", with_task_inference),
    ]


@contextlib.contextmanager
def built_once(of: list[tuple[object, str, Callable]] | None = None) -> Iterator[None]:
    """Inside, methods compose a process once for all equal plans (`processes`)."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, composing in of or processes():
            patch.setattr(owner, name, composing)
        yield


def small_vectors(folder: pathlib.Path) -> pathlib.Path:
    """A file of word vectors of eight dimensions for the sample that ships: runs with it take seconds."""
    from tffcl import datasets

    texts = datasets.load("sample")
    words = sorted({word for text in texts.train_texts for word in datasets.tokenise(text)})
    rows = np.random.default_rng(1).normal(size=(len(words), 8)).round(3)
    path = folder / "small.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows)))
    return path
