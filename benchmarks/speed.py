"""What a client's epoch and the start of a run cost, each beside its target.

    uv run benchmarks/speed.py

CPU seconds are those of this process in rounds of three clients, divided by clients and epochs. Beside them stand those
of the matrix products alone, forward and backward, measured in turn with the rounds. What a round costs beside plain
TensorFlow, FedJAX and Flower: benchmarks/peers/run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import fedseit
import rounds
import tensorflow as tf
from pairs import ratio, show

from tffcl import runtime
from tffcl.algorithms import build_fedseit

EPOCHS, BATCH = 2, 64
WIDTH = 66  # of the first column


def products(shapes: Sequence[tuple[int, int, int]], steps: int) -> Callable[[], object]:
    """`[n, a] x [a, b]` for each shape (n, a, b), and the products of the gradients of both, so many times."""
    inputs = [tf.random.stateless_normal([n, a], [1, a]) for n, a, _ in shapes]
    weights = [tf.random.stateless_normal([a, b], [2, b]) for _, a, b in shapes]

    @tf.function
    def run() -> tf.Tensor:
        total = tf.constant(0.0)
        for _ in tf.range(steps):
            for x, w in zip(inputs, weights):
                y = tf.matmul(x + 1e-9 * total, w)  # of the last step: no step can be left out
                of_x, of_w = tf.matmul(y, w, transpose_b=True), tf.matmul(x, y, transpose_a=True)
                total += 1e-9 * (of_x[0, 0] + of_w[0, 0])
        return total

    return lambda: run().numpy()


def confedmade(pairs: int) -> None:
    """ConFedMADE of 784 inputs and 400 hidden units, in its second task."""
    with runtime.in_process() as entered:
        federated, _, rows = rounds.round_of("confedmade", entered.context, EPOCHS, rows=1900, hidden=(400,))
        steps = sum(-(-count // BATCH) for count in rows)  # of an epoch of all clients
        alone = products([(BATCH, 784, 400), (BATCH, 400, 784)], EPOCHS * steps)
        times = ratio(federated, alone, pairs, time.process_time)
    each = [seconds / len(rows) / EPOCHS for seconds in times[:2]]
    what = f"ConFedMADE [400], {statistics.mean(rows):.0f} pictures: CPU a client-epoch / products"
    show(what, (*each, times[2]), "<= 120 ms", WIDTH)


def fed_seit(pairs: int) -> None:
    """FedSeIT on documents of ten words, 320 a client, with two foreign adaptives; and what twenty cost."""
    with runtime.in_process():
        work = fedseit.work_of(100, 2, EPOCHS)
        process = build_fedseit(work.network.config, num_foreign=2, training=work.training)
        clients = [fedseit.client(work, seed, 0, 2) for seed in range(3)]
        windows = [(BATCH * (10 - width + 1), width * 100, 128) for width in (3, 4, 5)]
        alone = products(windows, 5 * EPOCHS * len(clients))
        times = ratio(fedseit.federated_round(process, clients), alone, pairs, time.process_time)
    each = [seconds / len(clients) / EPOCHS for seconds in times[:2]]
    show("FedSeIT, D=100, 320 x 10 words: CPU a client-epoch / products", (*each, times[2]), "<= 50 ms", WIDTH)
    for projection, target in (("each", ""), ("mean", "<= 1.25")):
        many, none = (
            fedseit.bare_round([fedseit.client(fedseit.work_of(100, k, 2, projection=projection), 1, 0, k)])
            for k in (20, 0)
        )
        times = ratio(many, none, pairs, time.process_time)
        show(f"FedSeIT, --foreign-projection {projection}, K=20 / K=0: CPU a round", times, target, WIDTH)


def start(repeats: int) -> None:
    """Seconds until the first line, and until the first round of the sample has ended.

    Bytecode is cached, by a start that is not counted, whatever the environment says of it: without, imports alone take
    ten seconds and more.
    """
    command = [sys.executable, "-m", "tffcl.cli", "run", "fedseit", "--data", "sample", "--verbose", "--num-tasks", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    firsts, ends = [], []
    with tempfile.TemporaryDirectory() as folder:
        environment["PYTHONPYCACHEPREFIX"] = folder
        for number in range(repeats + 1):
            path = pathlib.Path(folder) / f"run-{number}"
            begin, first, end = time.perf_counter(), 0.0, 0.0
            running = subprocess.Popen(
                [*command, "--output-dir", str(path)], env=environment, text=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )  # fmt: skip
            for line in running.stderr or ():
                first = first or time.perf_counter() - begin
                if line.startswith("round 1 of "):
                    end = time.perf_counter() - begin
            if running.wait() != 0:
                raise SystemExit(f"{' '.join(command)} ended with {running.returncode}")
            firsts.append(first), ends.append(end)
    for what, found, target in (("first line", firsts, "<= 1"), ("first round has ended", ends, "<= 12")):
        times = ", ".join(f"{seconds:.1f}" for seconds in found[1:])
        print(f"{'sample: seconds until the ' + what:<{WIDTH}} {times}  target {target}", flush=True)


def main() -> None:
    """Parses the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs for each ratio (default 9)")
    parser.add_argument("--starts", type=int, default=3, help="starts that are counted (default 3)")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':<{WIDTH}} {'first':>11} {'second':>11} {'ratio':>7}  target")
    confedmade(options.pairs)
    fed_seit(options.pairs)
    start(options.starts)


if __name__ == "__main__":
    main()
