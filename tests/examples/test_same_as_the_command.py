"""An example takes the flags of its command, and heeds every one of them."""

from __future__ import annotations

import pathlib
import types

import pytest
from loading import module_at

from tffcl import algorithms, program
from tffcl.errors import RunError

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
NOISED = ("--dp-base-clip", "0.5", "--dp-base-noise", "4", "--client-dir", "clients", "--num-clients", "2",
          "--num-tasks", "2", "--clients-per-round", "1")  # fmt: skip


def _module(name):
    return module_at(EXAMPLES / f"{name}.py")


@pytest.mark.parametrize(
    ("name", "command", "builder", "args"),
    [
        ("fedseit_trec", "fedseit", "build_fedseit", ("--dataset", "sample", "--embeddings", "own")),
        ("confedmade_mnist", "confedmade", "build_confedmade", ("--dataset", "digits")),
    ],
)
def test_both_hand_the_same_to_the_library(run, monkeypatch, tmp_path, name, command, builder, args):
    given = []

    def build(*args, **options):
        given.append(options)
        return "a process"

    def run_program(*args, **options):
        given.append(options)
        raise RunError("far enough")

    monkeypatch.setattr(algorithms, builder, build)
    monkeypatch.setattr(program, "run_program", run_program)
    args = (*args, *NOISED, "--runtime", "in-process")
    for done in (run("run", command, *args, cwd=tmp_path), run(*args, cwd=tmp_path, command=_module(name).main)):
        assert "far enough" in done.stderr
    built, ran, built_by_example, ran_by_example = given
    assert ran["privacy"] is not None
    assert ran["client_files"] is not None
    assert "aggregator" in built
    for one, other in ((built, built_by_example), (ran, ran_by_example)):
        for options in (one, other):  # made anew by each, and without a way to compare them
            options.pop("aggregator", None)
        assert {k: v for k, v in one.items() if k != "output_dir"} == {
            k: v for k, v in other.items() if k != "output_dir"
        }


def test_the_process_of_fil_ver_is_that_of_the_command(monkeypatch):
    from tffcl.commands import FilVerOptions, fil_ver

    given = []
    for place in (algorithms, algorithms.fil_ver):
        monkeypatch.setattr(place, "build_fil_ver", lambda model, **options: given.append(options))
    args = ("--dataset", "digits", "--dp-clip", "10", "--dp-noise-multiplier", "2",
            "--proximal", "0.5", *NOISED)  # fmt: skip
    options = FilVerOptions.parse(list(args)).complete("digits")
    _module("fil_ver_emnist").build_fil_ver(options, None)
    fil_ver.build_process(options, None, types.SimpleNamespace(model=None))
    assert all(one.pop("aggregator") is not None for one in given)
    example, command = ({k: v for k, v in one.items() if v is not None} for one in given)
    assert example == command
