"""Addresses of workers: what gRPC would read in a way of its own is refused, wherever an address comes in."""

from __future__ import annotations

import pytest

from tffcl import runtime
from tffcl.commands import worker
from tffcl.commands.fedseit_options import FedSeITOptions
from tffcl.errors import InputError
from tffcl.runtime import health

WRONG = [
    "", "localhost", "localhost:", ":99999", ":9000", "localhost:x", "localhost:0", "localhost:70000",
    "localhost:9000:1", "::1:9000", "[::1]", "dns:///localhost:9000", "unix:/tmp/socket", "http://localhost:9000",
    "local host:9000", "localhost:9\u0660", "localhost:+9000",
]  # fmt: skip


def of_the_runtime(address):
    runtime.remote([address])


def of_a_check(address):
    worker.check(address)


def of_a_run(address):
    FedSeITOptions.parse(["--runtime", "remote", "--workers", f"localhost:9000,{address}"])


@pytest.mark.parametrize("taken", [of_the_runtime, of_a_check, of_a_run])
@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_is_one_clear_line(address, taken):
    with pytest.raises(InputError, match="expected host:port") as caught:
        taken(address)
    assert f"found {address!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["localhost:1", "worker-a.example:65535", "10.213.1.2:9000", "[::1]:9000", "[fe80::1%eth0]:9"]
)
def test_what_is_an_address(address):
    assert health.check_addresses([address]) == [address]


@pytest.mark.parametrize(
    ("addresses", "message"),
    [([], "a list of host:port"), ("localhost:1", "a list of host:port"), (["a:1", "a:1"], "each worker once")],
)
def test_lists_that_are_none(addresses, message):
    with pytest.raises(InputError, match=message):
        runtime.remote(addresses)
