"""The program `tffcl`: quick where nothing is to be done, one clear line where the input is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command_line import wrong
from serving import PATIENCE

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
from tffcl.flags import exit_with
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
        ("report", ["RUN"]),
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
    wrong(run("report", tmp_path), f"{tmp_path}: its files are not as a run writes them", "num_tasks")
