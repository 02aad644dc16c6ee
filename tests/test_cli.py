"""The program `tffcl`: quick where nothing is to be done, one clear line where the input is wrong."""

from __future__ import annotations

import logging
import subprocess
import sys

import click
import pytest
from command_line import wrong
from serving import PATIENCE

from tffcl import console
from tffcl.algorithms import registry

HEAVY = ("tensorflow", "tensorflow_federated", "numpy", "matplotlib", "pandas", "gensim", "grpc", "sklearn")


def test_help_lists_and_errors_import_nothing_heavy():
    """In a process of its own, one call after the other: what one imports, the next would be blamed for as well."""
    lines = [
        ["--help"], ["--version"], ["list"], ["run"], ["run", "--help"], ["run", "fedseit", "--help"],
        ["run", "confedmade", "--help-all"], ["run", "fil-ver", "--method", "ebr-1x", "--print-config"],
        ["reproduce", "confedmade", "--help"], ["reproduce", "fil-ver", "--help"], ["report", "--help"],
        ["worker", "--help"], ["run", "fil-ver", "--hidden", "0"], ["run", "fedseit", "--num-clients", "1"], ["worker"],
    ]  # fmt: skip
    code = f"""
import sys
from tffcl.cli import tffcl
from tffcl.console import exit_with
for line in {lines!r}:
    try:
        exit_with(tffcl, args=line)
    except SystemExit as ended:
        heavy = [name for name in {HEAVY!r} if name in sys.modules]
        print("ended", " ".join(line), ended.code, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    ended = [line for line in done.stdout.split("\n") if line.startswith("ended ")]
    assert len(ended) == len(lines), done.stderr
    assert [line for line in ended if not line.endswith(("0 []", "2 []"))] == []
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [(), ("run",), ("reproduce",)])
def test_without_a_command_the_help_is_shown_as_it_stands(run, args):
    done = run(*args)
    shown = done.stdout + done.stderr
    assert "Usage: " in shown
    assert "\n\nCommands:\n" in shown or "\n\nMethods:\n" in shown
    assert "error" not in shown


def test_help_of_run_names_every_method_and_its_paper(run):
    shown = " ".join(run("run", "--help").stdout.split())
    for name in registry.METHODS.names:
        method = registry.find_method(name)
        assert f"{name} " in shown
        assert method.about[:30] in shown
        assert method.paper in shown


def test_list_shows_which_method_takes_which_kind_of_data(run):
    done = run("list")
    lines = {line.split()[0]: line.split()[1:5] for line in done.stdout.split("\n\n")[0].split("\n")}
    assert lines["method"] == ["text", "image", "vector", "binary"]
    assert lines["fedseit"] == ["x", "-", "-", "-"]
    assert lines["confedmade"] == ["-", "-", "-", "x"]
    assert lines["fil-ver"] == ["x", "x", "x", "-"]
    for name in ("local", "fedavg", "fedprox", "ewc", "fedcurv", "replay", "offline", "fedweit"):
        assert lines[name] == ["x"] * 4, name
    for words in ("trec6", "fashion-mnist", "iris", "networks: textcnn, made, cnn, mlp", "previous, all, sampled, sit"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("nothing", ["nothing"]),
        ("report", ["RUN_DIR"]),
        ("worker", ["--port", "--check"]),
        ("worker --port 70000", ["--port", "70000"]),
        ("worker --port 0 --threads 0", ["--threads"]),
        ("reproduce fedseit --seed one", ["--seed", "one"]),
        ("reproduce confedmade --table 5", ["--table", "5"]),
        ("reproduce fil-ver --jobs 0", ["--jobs", "0"]),
        ("reproduce fil-ver --table rotation", ["--table", "rotations"]),
    ],
)
def test_wrong_flags(run, line, parts):
    wrong(run(*line.split()), *parts)


def test_report_of_no_run(run, tmp_path):
    wrong(run("report", tmp_path / "nothing"), "nothing: no such run directory")
    wrong(run("report", tmp_path), "expected a run directory")
    wrong(run("report", tmp_path / ("n" * 300)), "no such run directory")
    (tmp_path / "config.json").write_text("{}")
    wrong(run("report", tmp_path), "results.json", "resume the run to finish it")


def ended(command):
    with pytest.raises(SystemExit) as exit_info:
        console.exit_with(command, "program", [])
    return exit_info.value.code


@pytest.mark.parametrize(
    ("happens", "code", "words"),
    [
        (click.Abort(), 130, "program: interrupted; --resume with the same flags and --output-dir goes on"),
        (KeyboardInterrupt(), 130, "program: interrupted"),
        (click.UsageError("a\n  b"), 2, "program: error: a b"),
        (console.TffclError("what\nwhere"), 2, "program: error: what where"),
        (console.OptionError("num_rounds", "expected 3"), 2, "program: error: --num-rounds: expected 3"),
    ],
)
def test_how_programs_end(capsys, happens, code, words):
    @click.command()
    def command():
        raise happens

    assert ended(command) == code
    assert words in capsys.readouterr().err


def test_an_error_of_the_code_itself_keeps_its_trace():
    @click.command()
    def command():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        console.exit_with(command, "program", [])


def test_what_is_logged_goes_to_stderr_and_warnings_say_who_warns(capsys, monkeypatch):
    logger = logging.getLogger("tffcl")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)

    @click.command()
    def command():
        logging.getLogger("tffcl.some.module").info("data: a")
        logging.getLogger("tffcl.some.module").warning("odd")

    assert ended(command) == 0
    assert capsys.readouterr().err == "data: a\nprogram: WARNING: odd\n"
