"""What a round of a method on one growing head costs, as ratios measured side by side in one process.

    uv run benchmarks/rounds.py

A round of FedAvg is timed against a bare loop: `trainer()` of the same client work, called for one client after another
with the same tensors, without TFF. Rounds of EWC and LwF are timed against FedAvg's, on the same data, in the second
task, where there is something to keep. Every ratio is the median over interleaved pairs (A B A B ...), so that a
machine whose speed drifts does not decide it.

What arithmetic says of a training step, in passes through the network (backward costs two forward ones): FedAvg 3; EWC
3 and a few operations on each weight, which is little beside the passes of a convolution and more beside those of a
dense layer with few examples in a step; LwF 3, and 1 in the first of a round's epochs, for the last task's model scores
every example once a round.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_federated as tff  # noqa: E402
from pairs import ratio, show  # noqa: E402

import tffcl  # noqa: E402
from tffcl import datasets, runtime  # noqa: E402

CLIENTS, ROWS, CLASSES = 3, 1200, 4  # rows of a class

NETWORKS = {"mlp": {"network": "mlp", "hidden": (256,)}, "cnn": {"network": "cnn"}}
METHODS = ("ewc", "lwf")
ONE_HEAD = {
    "scenario": "class-incremental", "labels_per_task": 2, "batch_size": 64, "learning_rate": 1e-3,
    "train_classes": "seen",
}  # fmt: skip


class Recorder:
    """A computation that remembers its last arguments."""

    def __init__(self, computation: Any):
        self.computation, self.last = computation, ()

    def __call__(self, *args: Any) -> Any:
        self.last = args
        return self.computation(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.computation, name)


def images(size: int, rows: int = ROWS) -> datasets.ImageDataset:
    """Noise, with a spot for each class; `rows` of a class."""
    rng = np.random.default_rng(0)
    labels = np.arange(rows * CLASSES, dtype=np.int32) % CLASSES
    pixels = rng.integers(0, 128, (len(labels), size, size)).astype(np.uint8)
    for label in range(CLASSES):
        pixels[labels == label, label * 5 : label * 5 + 4, :4] = 255
    names = tuple(f"class {label}" for label in range(CLASSES))
    return datasets.ImageDataset("noise", pixels, labels, pixels[:40], labels[:40], names, 255)


def round_of(
    method: str, context: Any, epochs: int, rows: int = ROWS, **options: Any
) -> tuple[Callable[[], None], Callable[[], None], list[int]]:
    """The last round of the second task, again and again: in TFF, and as a bare loop over the clients; their rows."""
    found: list[Any] = []
    plan = tffcl.Experiment(
        method, data=images(28, rows), num_clients=CLIENTS, num_tasks=2, num_rounds=1, num_epochs=epochs, patience=0,
        evaluate_every="task", quiet=True, keep="none", **options,
    ).plan()  # fmt: skip
    plan.open_runtime = lambda: tff.framework.get_context_stack().install(context)

    def build(plan: Any) -> Any:
        process = plan.method.process(plan)
        found.append(dataclasses.replace(process, next=Recorder(process.next)))
        return found[0]

    plan.run(build)
    process = found[0]
    server, states, data = process.next.last
    run, shared = process.work.trainer(), tf.constant(server["shared"])
    tensors = [tf.nest.map_structure(tf.constant, (dict(one), dict(of))) for one, of in zip(states, data)]

    def federated() -> None:
        process.next.computation(server, states, data)

    def bare() -> None:
        for state, prepared in tensors:
            tf.nest.map_structure(lambda tensor: tensor.numpy(), run(state, shared, prepared, tf.constant(0)))

    return federated, bare, [len(next(iter(each["train"].values()))) for each in data]


def main() -> None:
    """Parses the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs for each ratio (default 9)")
    parser.add_argument("--epochs", type=int, default=5, help="in a round (default 5, as in the suite digits)")
    args = parser.parse_args()
    pairs, epochs = args.pairs, args.epochs
    print(f"{'':<40} {'first':>11} {'second':>11} {'ratio':>7}  target")
    with runtime.in_process() as entered:
        for network in NETWORKS:
            options = {**ONE_HEAD, **NETWORKS[network]}
            plain, bare, _ = round_of("fedavg", entered.context, epochs, **options)
            show(f"{network}: fedavg's round / bare loop", ratio(plain, bare, pairs), "<= 1.15", 40)
            for method in METHODS:
                federated, own, _ = round_of(method, entered.context, epochs, **options)
                show(f"{network}: {method}'s round / fedavg's", ratio(federated, plain, pairs), "<= 1.15", 40)
                show(f"{network}: {method}'s bare loop / fedavg's", ratio(own, bare, pairs), "<= 1.15", 40)


if __name__ == "__main__":
    main()
