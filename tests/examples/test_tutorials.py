"""The Python of the README and the tutorials runs as it is printed; `tests/test_docs.py` holds their commands."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys

import pytest
from serving import PATIENCE

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = [FOLDER.parents[1] / "README.md", *FOLDER.glob("*.md")]
BLOCKS = {path.stem: re.findall(r"```python\n(.*?)```", path.read_text(), re.S) for path in PAGES}


SHELL = {path.stem: "".join(re.findall(r"```bash\n(.*?)```", path.read_text(), re.S)) for path in PAGES}
READ_RUNS = ("densities",)  # pages whose Python reads what their commands have left


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks and page != "workers"])
def test_the_python_of_a_page_prints_what_it_counts(page, tmp_path, monkeypatch, capsys, run, no_plots):
    (tmp_path / "docs").symlink_to(FOLDER.parent)
    monkeypatch.chdir(tmp_path)
    for line in re.findall(r"^tffcl (run .*)$", SHELL[page], re.M) if page in READ_RUNS else ():
        done = run(*shlex.split(line), "--num-rounds", "1", "--num-epochs", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
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


@pytest.mark.slow
def test_the_page_on_workers_runs_as_printed_but_for_its_ports(tmp_path):
    """With shorter tasks: a worker is killed, the run goes on, and the history says so."""
    ports = {}
    for port in ("9001", "9002"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports[port] = str(free.getsockname()[1])
    shell = re.sub("900[12]", lambda found: ports[found[0]], SHELL["workers"])
    shell = shell.replace("--num-rounds 5", "--num-rounds 2")
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "-c", f"trap 'kill -9 $(cat worker-?.pid) 2>/dev/null || true' EXIT\nset -e\n{shell}"]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    log = tmp_path / "run.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    assert f"lost the worker at 127.0.0.1:{ports['9002']}" in done.stdout
    assert "ended: the worker is gone" in done.stdout
    told = subprocess.run(
        [sys.executable, "-c", *BLOCKS["workers"]], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert re.fullmatch(rf"in task \d lost 127.0.0.1:{ports['9002']} .+\n", told.stdout), told
