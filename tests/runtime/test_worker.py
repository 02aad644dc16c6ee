"""The worker process: it starts, tells how it ended, and is gone after every kind of exit; addresses (no TFF here)."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import psutil
import pytest
from serving import PATIENCE, children, is_gone_soon, is_running

from tffcl import errors, flags
from tffcl.runtime import serve
from tffcl.runtime import worker as worker_lib

# A worker ends with its process whatever it is. This one listens in no time, where TFF's takes a second.
_PROGRAM = f"""#!{sys.executable} -IS
import socket, sys
port = int(sys.argv[1].partition("=")[2])
dual = socket.has_dualstack_ipv6()
family = socket.AF_INET6 if dual else socket.AF_INET
listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual, reuse_port=True)
while True:
    listener.accept()[0].close()
"""

_START = """
import os, pathlib, signal, sys, threading, time
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.worker import Worker
worker_lib.find_worker_binary = lambda: pathlib.Path(sys.argv[1])
worker = Worker()
print(worker.pid, flush=True)
"""


@pytest.fixture(name="start_script", scope="module")
def _start_script(tmp_path_factory):
    """A process that has started a worker and then does something, and the worker's pid."""
    program = tmp_path_factory.mktemp("program") / "worker_binary"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    return functools.partial(_start, program)


def _start(program: pathlib.Path, ending: str) -> tuple[subprocess.Popen, int]:
    script = _START + textwrap.dedent(ending)
    process = subprocess.Popen(
        [sys.executable, "-c", script, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


ENDINGS = {
    "return": "",
    "close": "worker.close(); worker.close()",
    "context manager": "with worker: pass",
    "exception": "raise ValueError",
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(4)",
    "abort": "os.abort()",
    "kills itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "threads left over": "threading.Thread(target=time.sleep, args=(0.3,)).start()",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_worker_is_gone_after_the_process_ends(start_script, ending):
    process, worker_pid = start_script(ending)
    process.communicate(timeout=PATIENCE)  # returns only when nobody holds the pipes any more, the worker included
    assert is_gone_soon(worker_pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_worker_is_gone_after_a_signal(start_script, number):
    # Background jobs and nohup leave signals ignored, and children inherit that.
    process, worker_pid = start_script(
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_DFL)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    assert process.stdout.readline() == "ready\n"
    assert is_running(worker_pid)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert is_gone_soon(worker_pid)


def test_worker_outlives_the_thread_that_asked_for_it(start_script):
    ending = """
    def start():
        global second
        second = Worker()
    thread = threading.Thread(target=start)
    thread.start(); thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass  # the kernel's thread ends a little later than Python's
    assert second._ready() and second._process.poll() is None
    """
    process, _ = start_script(ending)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr


def test_worker_outlives_a_forked_child(start_script):
    ending = """
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    assert worker._ready() and worker._process.poll() is None
    """
    process, worker_pid = start_script(ending)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert is_gone_soon(worker_pid)


def test_two_workers_have_two_ports_and_close_ends_each():
    with worker_lib.Worker() as first, worker_lib.Worker() as second:
        assert first.port != second.port
        socket.create_connection(("localhost", second.port)).close()
        pids = first.pid, second.pid
    assert not any(map(is_running, pids))


def test_starting_from_many_threads():
    workers: list[worker_lib.Worker] = []
    threads = [threading.Thread(target=lambda: workers.append(worker_lib.Worker())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({worker.port for worker in workers}) == 3
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.parametrize("kind", [worker_lib.Worker, worker_lib.ContainedWorker])
def test_describe_says_how_the_worker_ended(kind):
    with kind() as worker:
        assert f"(pid {worker.pid}) does not answer" in worker.describe()
        os.kill(worker.pid, signal.SIGKILL)
        assert is_gone_soon(worker.pid)
        assert "SIGKILL (out of memory?)" in worker.describe()
        assert "\n" not in worker.describe()


def test_a_contained_worker_listens_at_one_address_and_nowhere_else():
    with worker_lib.ContainedWorker() as worker:
        assert worker.address == f"127.0.0.1:{worker.port}"
        assert worker_lib.probe(worker.address, PATIENCE) is None
        assert os.readlink(f"/proc/{worker.pid}/ns/net") != os.readlink("/proc/self/ns/net")
        own = {each.laddr for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        assert {each for each in own if each.port == worker.port} == {("127.0.0.1", worker.port)}
        assert worker.pid not in {each.pid for each in psutil.net_connections("tcp")}
    assert not is_running(worker.pid)


@pytest.mark.parametrize("ending", ["return", "kills itself"])
def test_a_contained_worker_is_gone_after_the_process_ends(ending):
    script = "from tffcl.runtime import worker as worker_lib\nworker = worker_lib.ContainedWorker()\n"
    script += f"import os, signal\nprint(worker.pid, worker._process.pid, flush=True)\n{ENDINGS[ending]}"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert all(is_gone_soon(int(pid)) for pid in done.stdout.split())


def test_where_nothing_contains_a_worker_one_line_says_so(monkeypatch, caplog):
    def refuse(*args, **options):
        raise worker_lib.NotContained("no namespace here")

    monkeypatch.setattr(worker_lib, "_contains", True)
    monkeypatch.setattr(worker_lib, "ContainedWorker", refuse)
    with caplog.at_level("INFO", "tffcl"), worker_lib.start() as first, worker_lib.start() as second:
        assert type(first) is type(second) is worker_lib.Worker
    assert caplog.text.count("no namespace here") == 1


def test_a_system_without_namespaces_is_told_apart_from_a_worker_that_fails(monkeypatch, capfd):
    for error, code in ((worker_lib.NotContained, worker_lib.NOT_CONTAINED), (errors.RunError, 1)):
        monkeypatch.setattr(serve, "serve", functools.partial(_raise, error("no room")))
        with pytest.raises(SystemExit) as ended:
            serve.main()
        assert ended.value.code == code
    assert capfd.readouterr().err == "no room\n" * 2


def _raise(error, *args):
    raise error


def _with_program(monkeypatch, tmp_path, text):
    program = tmp_path / "worker_binary"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setattr(worker_lib, "find_worker_binary", lambda: program)


def test_a_worker_that_ends_at_once_is_one_clear_line(monkeypatch, tmp_path):
    _with_program(monkeypatch, tmp_path, "echo first; echo cannot bind the port; exit 7")
    with pytest.raises(errors.RunError, match=r"^cannot start a run: .*exit code 7: cannot bind the port$"):
        worker_lib.Worker()


def test_a_worker_that_never_answers_is_given_up_and_ended(monkeypatch, tmp_path):
    before = children()
    _with_program(monkeypatch, tmp_path, "exec sleep 1000")
    with pytest.raises(errors.RunError, match="did not answer within 0.5 s"):
        worker_lib.Worker(start_timeout=0.5)
    assert children() <= before


def test_environment_of_a_worker(monkeypatch):
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "0")
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert worker_lib.worker_environment()["TF_NUM_INTRAOP_THREADS"] == "1"
    environment = worker_lib.worker_environment(num_threads=2)
    assert environment["TF_DETERMINISTIC_OPS"] == "0"  # the user's word
    assert environment["MALLOC_ARENA_MAX"] == "1"
    assert environment["TF_NUM_INTRAOP_THREADS"] == "2"


def test_a_worker_needs_at_least_one_thread():
    with pytest.raises(errors.InputError, match="num_threads must be a whole number, 1 or more; got 0"):
        worker_lib.worker_environment(num_threads=0)


def test_nothing_imports_tensorflow_before_logs_can_be_quiet():
    script = "import sys, tffcl.runtime; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


def test_the_missing_worker_of_a_broken_installation(monkeypatch):
    monkeypatch.setattr(worker_lib.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.RunError, match="not installed"):
        worker_lib.find_worker_binary()


# -- addresses -------------------------------------------------------------------------------------------------

WRONG_ADDRESSES = [
    "", "localhost", "localhost:", ":99999", ":9000", "localhost:x", "localhost:0", "localhost:70000",
    "localhost:9000:1", "::1:9000", "[::1]", "dns:///localhost:9000", "unix:/tmp/socket", "http://localhost:9000",
    "local host:9000", "localhost:9\u0660", "localhost:+9000",
]  # fmt: skip

TAKES_ADDRESSES = {
    "a list": lambda address: worker_lib.check_addresses(["localhost:9000", address]),
    "tffcl worker --check": serve.check,
    "--workers": lambda address: flags.parse_run(
        ["fedseit", "--data", "sample", "--runtime", "remote", "--workers", f"localhost:9000,{address}"]
    ),
}


@pytest.mark.parametrize("take", TAKES_ADDRESSES.values(), ids=TAKES_ADDRESSES)
@pytest.mark.parametrize("address", WRONG_ADDRESSES)
def test_what_grpc_would_read_in_a_way_of_its_own_is_refused_wherever_it_comes_in(address, take):
    with pytest.raises(errors.InputError, match="expected host:port") as caught:
        take(address)
    assert f"found {address!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["localhost:1", "worker-a.example:65535", "10.213.1.2:9000", "[::1]:9000", "[fe80::1%eth0]:9"]
)
def test_what_is_an_address(address):
    assert worker_lib.check_addresses([address]) == [address]


@pytest.mark.parametrize(
    ("addresses", "message"),
    [([], "a list of host:port"), ("localhost:1", "a list of host:port"), (["a:1", "a:1"], "each worker once")],
)
def test_lists_of_addresses_that_are_none(addresses, message):
    with pytest.raises(errors.InputError, match=message):
        worker_lib.check_addresses(addresses)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--runtime", "remote"], "--workers"),
        (["--workers", "a:1"], "--runtime remote"),
        (["--on-lost-worker", "leave-out"], "--runtime remote"),
        (["--call-timeout", "3"], "--runtime remote"),
        (["--runtime", "remote", "--workers", "a:1", "--client-dir", "here"], "absolute path"),
    ],
)
def test_flags_of_workers_that_do_not_go_together(args, message):
    with pytest.raises(errors.InputError, match=message):
        flags.parse_run(["fedseit", "--data", "sample", *args])
