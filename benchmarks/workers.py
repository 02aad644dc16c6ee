"""How much faster rounds are with two workers than with one, one thread each, side by side on this machine.

    uv run benchmarks/workers.py

The workers' threads are what is compared, so the machine needs a free core for each. Every ratio is the median over
interleaved pairs (A B A B ...); the load average before and after stands beside it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import fedseit
import pairs
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.algorithms import build_fedseit


def within(context: tff.framework.SyncExecutionContext, call: Callable[[], None]) -> Callable[[], None]:
    """The call, in a context."""

    def run() -> None:
        with tff.framework.get_context_stack().install(context):
            call()

    return run


def main() -> None:
    """Parses the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs for each ratio (default 7)")
    parser.add_argument("--clients", type=int, default=8, help="clients of a round (default 8)")
    options = parser.parse_args()
    print(f"{'':<62} {'one':>11} {'two':>11} {'ratio':>7}  target")
    with runtime.local(num_threads=1) as one, runtime.local(num_threads=1, num_workers=2) as two:
        for epochs, target in ((30, ">= 1.70"), (10, ""), (1, "")):
            work = fedseit.work_of(100, 2, epochs)
            process = build_fedseit(work.network.config, num_foreign=2, training=work.training)
            clients = [fedseit.client(work, seed, 0, 2) for seed in range(options.clients)]
            with tff.framework.get_context_stack().install(one.context):
                call = fedseit.federated_round(process, clients)
            times = pairs.ratio(within(one.context, call), within(two.context, call), options.pairs)
            pairs.show(f"a round of {options.clients} clients x {epochs} epochs", times, target)
            print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
