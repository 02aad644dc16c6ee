"""The pages on parts of one's own: their files, commands and Python run as they are printed."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import shlex
import shutil

import command_line
import numpy as np
import pytest

from tffcl.reports import summary

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own_parts.md").read_text()
METHOD_PAGE = (ROOT / "docs" / "tutorials" / "own-method.md").read_text()
FIRST_TRY = re.findall(r"^tffcl (run .*)$", METHOD_PAGE, re.M)[0]  # the others are the same at full length
COMMANDS = [FIRST_TRY, *re.findall(r"^tffcl (run .*)$", PAGE, re.M)]
OWN_FLAGS = {
    "--head-epochs", "--penalty", "--path", "--width", "--units", "--least", "--scenario", "--selection", "--network",
}  # fmt: skip
BLOCKS = re.findall(r"```python\n(.*?)```", METHOD_PAGE + PAGE, re.S)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """A folder with the examples and a table of three kinds of flowers that are easy to tell apart."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    rng = np.random.default_rng(1)
    rows = [
        f"{2 * (kind == 0) + noise[0]:.3f},{2 * (kind == 1) + noise[1]:.3f},{name}"
        for kind, name in enumerate(("iris", "lily", "rose"))
        for noise in rng.normal(0, 0.3, size=(90, 2))
    ]
    (folder / "flowers.csv").write_text("\n".join(["width,height,species", *rng.permutation(rows)]) + "\n")
    return folder


def test_the_pages_show_the_files_as_they_are():
    shown = {block.partition("\n")[0][2:]: block.partition("\n")[2] for block in BLOCKS if block.startswith("# docs")}
    files = {f"docs/examples/{path.name}": path.read_text() for path in (ROOT / "docs" / "examples").glob("*.py")}
    assert shown == files
    assert len(files["docs/examples/fedrep_ewc.py"].splitlines()) <= 40


def test_each_part_is_one_file_that_imports_none_of_the_others():
    for path in (ROOT / "docs" / "examples").glob("*.py"):
        imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert all(node.module.split(".")[0] in ("tffcl",) for node in imported)


@pytest.fixture(name="ran", scope="module")
def _ran(folder, run):
    """Runs a command of the page, once, as it is printed but in this process and with larger steps: (words, end)."""

    def call(command):
        words = [*shlex.split(command), "--runtime", "in-process", "--learning-rate", "0.02"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(summary, "write_plots", lambda *_: [])
            return tuple(words), run(*words, cwd=folder)

    return command_line.once(call, lambda command: command)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.rpartition("runs/")[2])
def test_the_commands_run_and_report_as_printed(command, folder, ran):
    words, done = ran(command)
    assert done.returncode == 0, done.stderr
    directory = folder / words[words.index("--output-dir") + 1]
    config, results = (json.loads((directory / name).read_text()) for name in ("config.json", "results.json"))
    flags = dict(zip(words[2::2], words[3::2]))
    recorded = {name: config[name.strip("-").replace("-", "_")] for name in flags if name in OWN_FLAGS}
    assert recorded == {name: type(recorded[name])(text) for name, text in flags.items() if name in OWN_FLAGS}
    assert recorded
    assert f"{100 * results['task_averaged_test_accuracy']:.1f}" in done.stdout
    assert results["task_averaged_test_accuracy"] > 0.6  # of two labels


@pytest.mark.slow
def test_a_run_with_a_method_of_ones_own_is_resumed_with_the_same_options_alone(folder, ran, run, no_plots):
    """With the same flags there is nothing left to do, and the tables are the same; with others it is refused."""
    words, done = ran(FIRST_TRY)
    again = run(*words, "--resume", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert re.sub(r"\d+ s since", "", again.stdout) == re.sub(r"\d+ s since", "", done.stdout)
    others = ["11" if before == "--penalty" else word for before, word in zip(("", *words), words)]
    command_line.wrong(run(*others, "--resume", cwd=folder), "penalty")


@pytest.mark.slow
def test_a_worker_needs_nothing_of_the_user_s_code(folder, run, no_plots):
    words = shlex.split(FIRST_TRY)
    words[words.index("--output-dir") + 1] = "runs/worker"
    done = run(*words, "--runtime", "local", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_python_of_the_page_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (code,) = (block for block in BLOCKS if "experiment.run()" in block)
    exec(code, {})
    assert 0.6 < float(re.search(r"accuracy ([0-9.]+)", capsys.readouterr().out)[1]) <= 1
    for name, method in (("clouds", "ewc"), ("frames", "local")):
        config = json.loads((folder / "runs" / name / "config.json").read_text())
        assert (config["method"], config["dataset"], config["labels_per_task"]) == (method, "clouds", 2)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("docs/examples/gone.py:build --data digits", ["gone.py: no such file"]),
        ("docs/examples/fedrep_ewc.py:gone --data digits", ["fedrep_ewc.py has no 'gone'"]),
        ("docs/examples/small_network.py:build --data digits", ["is a function", "@tffcl.method()"]),
        ("fedavg --data docs/examples/flowers.py:walk", ["flowers.py", "walk"]),
        ("fedavg --data docs/examples/flowers.py:load --path gone.csv", ["flowers.py:load", "gone.csv"]),
        ("fedavg --data docs/examples/flowers.py:load --width 2", ["--width"]),
        ("fedavg --data iris --scenario docs/examples/flowers.py:load", ["scenario: ", "flowers.py:load"]),
        ("fedweit --data iris --selection docs/examples/flowers.py:load", ["selection: ", "flowers.py:load"]),
        ("fedavg --data iris --network docs/examples/flowers.py:load", ["network: ", "flowers.py:load"]),
    ],
)
def test_what_is_wrong_with_a_part_is_said_in_a_line(words, parts, folder, run):
    command_line.wrong(run("run", *words.split(), "--runtime", "in-process", cwd=folder), *parts)
