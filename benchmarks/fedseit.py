"""What FedSeIT costs, as ratios measured side by side in one process, and its reference run.

    uv run benchmarks/fedseit.py                # the ratios, on documents that are drawn here
    uv run benchmarks/fedseit.py --reference    # TREC6 on the 3 x 10 schedule: accuracy and CPU seconds

Every ratio is the median over interleaved pairs (A B A B ...), so that a machine whose speed drifts does not
decide it. A federated round is timed against `trainer()` of the same client work, called for one client after
another in a bare `tf.function` loop with the same tensors: equal work, without TFF.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from pairs import ratio, show  # noqa: E402

from tffcl import runtime  # noqa: E402
from tffcl.algorithms import build_fedseit  # noqa: E402
from tffcl.client_works import DecomposedWork, Decomposition, LocalTraining  # noqa: E402
from tffcl.models import AlignedTextCNN, TextCNNConfig  # noqa: E402
from tffcl.program import project  # noqa: E402
from tffcl.templates import ContinualProcess  # noqa: E402


def documents(
    count: int, held_out: int, dimension: int, seed: int, length: int = 10, words: int = 1200
) -> tuple[OrderedDict, OrderedDict, OrderedDict]:
    """Word vectors and documents of about `length` words (TREC: 10, R8: 100) with four labels; some are held out."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.poisson(length - 1, count + held_out) + 1, 3, None).astype(np.int32)
    tokens = rng.integers(2, words, lengths.sum()).astype(np.int32)
    vectors = rng.normal(0, 0.4, (words, dimension)).astype(np.float32)
    vectors[:2] = 0
    label = rng.integers(0, 4, count + held_out).astype(np.int32)
    whole = OrderedDict(start=np.cumsum(lengths, dtype=np.int32) - lengths, length=lengths, label=label)
    parts = (OrderedDict((n, v[part]) for n, v in whole.items()) for part in (slice(count), slice(count, None)))
    return OrderedDict(vectors=vectors, tokens=tokens), *parts


@dataclasses.dataclass
class Client:
    """A client work, a client's state in it at some task, and prepared data: all as tensors."""

    work: DecomposedWork
    shared: tf.Tensor
    state: dict
    data: dict


def client(
    work: DecomposedWork, seed: int, past_tasks: int, foreign: int, count: int = 320, length: int = 10
) -> Client:
    """A client that has learned `past_tasks` tasks (in name only) and begins the next."""
    layout = work.network.kernels
    shared = work.initialize_shared()
    state = work.initialize_client(shared, work.initialize_plan(), tf.constant([seed, 1]))
    rows = tf.random.stateless_normal([foreign, layout.size], [seed, 2]) * 0.01
    state = work.begin_task(state, shared, rows)
    dimension = work.network.config.embedding_size
    tensors = tf.nest.map_structure(tf.constant, documents(count, count // 8, dimension, seed, length))
    train, validation = (work.network.prepare(rows, tensors[0], part) for part in tensors[1:])
    data = {"context": dict(tensors[0]), "train": dict(train), "validation": dict(validation)}
    for _ in range(past_tasks):
        state, _ = work.end_task(state, shared, data)
        state = work.begin_task(state, shared, rows)
    return Client(work, shared, state, data)


def bare_round(clients: Sequence[Client]) -> Callable[[], None]:
    """One round of all clients in turn, without TFF."""
    run = clients[0].work.trainer()

    def call() -> None:
        for one in clients:
            reads = {name: one.state[name] for name in one.work.train_reads}
            changed, *_ = run(reads, one.shared, one.data, tf.constant(0))
            changed["base"].numpy()

    return call


def federated_round(process: ContinualProcess, clients: Sequence[Client]) -> Callable[[], None]:
    """The same round as a TFF computation in the context that is installed."""
    server = process.initialize()
    reads = process.next.type_signature.parameter[1]
    states = [project(tf.nest.map_structure(lambda t: t.numpy(), one.state), reads) for one in clients]
    data = [tf.nest.map_structure(lambda t: t.numpy(), one.data) for one in clients]
    for one in data:
        for name in ("train", "validation"):
            kinds = clients[0].work.prepared_type
            one[name] = OrderedDict((entry, one[name][entry]) for entry in kinds)
    data = [OrderedDict((name, one[name]) for name in ("context", "train", "validation")) for one in data]

    def call() -> None:
        process.next(server, states, data)

    return call


def work_of(
    dimension: int, foreign: int, epochs: int, form: str = "closed_form", projection: str = "each"
) -> DecomposedWork:
    """FedSeIT's client work with the paper's sizes."""
    network = AlignedTextCNN(TextCNNConfig(dimension, foreign_projection=projection), max(foreign, 1))
    training = LocalTraining(num_epochs=epochs, patience=0)
    return DecomposedWork(network, training, Decomposition(retention_form=form))


def ratios(pairs: int) -> None:
    """Prints how the cost of an epoch grows with foreign adaptives and with past tasks."""
    for dimension, length in ((300, 10), (300, 100), (100, 10), (100, 100)):
        many = bare_round([client(work_of(dimension, 20, 2), 1, 0, 20, length=length)])
        none = bare_round([client(work_of(dimension, 0, 2), 1, 0, 0, length=length)])
        what = f"an epoch with K=20 foreign adaptives / K=0, D={dimension}, {length} words"
        show(what, ratio(many, none, pairs), "<= 1.25")
    for form in ("closed_form", "gradient"):
        work = work_of(100, 2, 2, form)
        late, early = (bare_round([client(work, 1, past, 2)]) for past in (9, 0))
        show(f"an epoch at task 10 / task 1, {form}", ratio(late, early, pairs), "<= 1.50")


def round_ratios(pairs: int, where: str) -> None:
    """Prints what a federated round costs more than the same work without TFF."""
    with runtime.in_process() if where == "in-process" else runtime.local():
        for epochs, number, target in ((10, 3, "<= 1.15"), (1, 3, "< 1.42"), (1, 10, "< 1.17")):
            work = work_of(100, 2, epochs)
            process = build_fedseit(work.network.config, num_foreign=2, training=work.training)
            clients = [client(work, seed, 0, 2) for seed in range(number)]
            times = ratio(federated_round(process, clients), bare_round(clients), pairs)
            show(f"a federated round / bare loop, {number} clients x {epochs} epochs", times, target)


def reference() -> None:
    """TREC6, 3 rounds x 10 epochs, learning rate 1e-4, one seed, by the command that a user types."""
    import json
    import pathlib
    import subprocess
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedweit", "fedseit"):
            output = pathlib.Path(folder) / method
            flags = ["--method", method, "--dataset", "trec6", "--num-rounds", "3", "--num-epochs", "10"]
            command = [sys.executable, "-m", "tffcl.cli", "run", "fedseit", *flags, "--output-dir", str(output)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            results = json.loads((output / "results.json").read_text())
            accuracy = 100 * results["task_averaged_test_accuracy"]
            print(f"{method}: TTA {accuracy:.1f} %, seconds {results['seconds']}", flush=True)


def main() -> None:
    """Parses the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", action="store_true", help="run TREC6 instead (data: TFFCL_DATA_DIR)")
    parser.add_argument(
        "--runtime",
        choices=["local", "in-process"],
        default="local",
        help="where the federated rounds run (default local)",
    )
    parser.add_argument("--rounds-only", action="store_true", help="only the ratios of federated rounds")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs for each ratio (default 7)")
    options = parser.parse_args()
    if options.reference:
        reference()
        return
    print(f"{'':<62} {'first':>11} {'second':>11} {'ratio':>7}  target")
    if not options.rounds_only:
        ratios(options.pairs)
    round_ratios(options.pairs, options.runtime)


if __name__ == "__main__":
    main()
