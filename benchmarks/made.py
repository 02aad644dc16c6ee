"""How good a density MADE is when it is trained in one place, in nats, and what an epoch costs.

    uv run benchmarks/made.py --dataset adult --data-dir ../shared/data
    uv run benchmarks/made.py --dataset connect4 --agnostic connectivity --data-dir ../shared/data
    uv run benchmarks/made.py --dataset mnist --hidden 400 --num-masks 1 --learning-rate 1e-3 --data-dir ../shared/data
    uv run benchmarks/made.py --dataset mnist --hidden 400 --num-masks 1 --against-eager 600 --data-dir ../shared/data

Trained on `train` but for a tenth of its rows, which decide on the learning rate, on which weights are kept, and on
when to stop; what is scored is the whole of `valid` (of the test images for image sets), once, at the end. The
Jacobian of every pattern that is averaged is checked before anything is scored.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tffcl import datasets, errors  # noqa: E402
from tffcl.client_works import FusedAdam  # noqa: E402
from tffcl.models import MADE, MADEConfig, MADENetwork  # noqa: E402
from tffcl.models.made import largest_leak_of_patterns  # noqa: E402

IMAGES = ("digits", "mnist", "fashion-mnist")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How training goes: names as the flags."""

    batch_size: int
    learning_rate: float
    patience: int
    decays: int
    max_epochs: int
    seed: int


class Outcome(NamedTuple):
    """What training gives: the density, the best held-out NLL, epochs, and CPU seconds an epoch."""

    made: MADE
    held_out: float
    epochs: int
    seconds: float


class Trainer:
    """Weights, Adam's moments, and one compiled epoch over them."""

    def __init__(self, network: MADENetwork, rows: np.ndarray, schedule: Schedule):
        self._network, self._schedule = network, schedule
        self._rows = tf.constant(rows)
        key = tf.constant([schedule.seed, 0])
        self.plan = network.initial_plan(key)
        kernels = network.initial_kernels(key)
        self._context = {"observed": tf.ones([network.config.input_size])}
        local = network.start(network.initial_local(key), self._context, {"x": self._rows})
        self.variables = [tf.Variable(kernels), tf.Variable(local)]
        self._adam = FusedAdam()
        self._slots = self._adam.allocate(self.variables)
        self._state = self._adam.begin(self._slots, self.variables)

    def epoch(self, number: int, learning_rate: float) -> None:
        """One pass over the rows in a new order."""
        key = tf.constant([self._schedule.seed, 1 + number])
        self._state = self._epoch(key, tf.constant(learning_rate), self._state)

    @tf.function(autograph=False)
    def _epoch(self, key: tf.Tensor, learning_rate: tf.Tensor, state: tuple) -> tuple:
        fold = tf.random.experimental.stateless_fold_in
        order = tf.random.experimental.stateless_shuffle(tf.range(len(self._rows)), key)
        size = self._schedule.batch_size
        connected = self._connectivity()

        def one_step(step: tf.Tensor, state: tuple) -> tuple:
            batch = tf.gather(self._rows, order[step * size : (step + 1) * size])
            patterns = self._network.num_patterns
            pattern = tf.random.stateless_uniform([], fold(key, step), 0, patterns, tf.int32)
            with tf.GradientTape() as tape:
                loss = self._loss(batch, connected(pattern))
            gradients = tape.gradient(loss, self.variables)
            return step + 1, self._adam.step(self._slots, state, self.variables, gradients, learning_rate)

        return tf.while_loop(lambda step, _: step < self._steps, one_step, (tf.constant(0), state))[1]

    def eager_epoch(self, learning_rate: float) -> None:
        """What `epoch` replaces: the same arithmetic batch by batch from Python, with Keras's Adam."""
        optimizer, size = tf.keras.optimizers.Adam(learning_rate), self._schedule.batch_size
        order = np.random.default_rng(0).permutation(len(self._rows))
        connected = self._connectivity()
        for start in range(0, len(order), size):
            batch = tf.gather(self._rows, order[start : start + size])
            with tf.GradientTape() as tape:
                loss = self._loss(batch, connected(start // size % self._network.num_patterns))
            optimizer.apply_gradients(zip(tape.gradient(loss, self.variables), self.variables))

    @tf.function(autograph=False)
    def products_epoch(self) -> tf.Tensor:
        """The matrix products of an epoch and nothing else: what no loop over the same network can do without."""
        size, total = self._schedule.batch_size, tf.constant(0.0)
        sides = self._network.config.masks.parts
        batches = [
            [tf.random.stateless_uniform([size, width], [place, width]) for width in shape]
            for place, (_, shape) in enumerate(sides)
        ]

        def one_step(step: tf.Tensor, total: tf.Tensor) -> tuple:
            kernels = self._network.kernels.split(self.variables[0].read_value())
            for (name, _), (entering, leaving) in zip(sides, batches):
                total += tf.matmul(entering, kernels[name])[0, 0]
                total += tf.matmul(entering, leaving, transpose_a=True)[0, 0]
                if name not in ("hidden_0", "direct"):  # nobody asks for the gradient of the data
                    total += tf.matmul(leaving, kernels[name], transpose_b=True)[0, 0]
            return step + 1, total

        return tf.while_loop(lambda step, _: step < self._steps, one_step, (tf.constant(0), total))[1]

    @property
    def _steps(self) -> int:
        return -(-len(self._rows) // self._schedule.batch_size)

    def _connectivity(self) -> Callable[[tf.Tensor | int], tf.Tensor]:
        """From a pattern's number to M; made once where there is one pattern."""
        if self._network.num_patterns > 1:
            return functools.partial(self._network.connectivity, self.plan)
        only = self._network.connectivity(self.plan, 0)
        return lambda _: only

    def _loss(self, batch: tf.Tensor, connectivity: tf.Tensor) -> tf.Tensor:
        kernels, local = self.variables
        masked = kernels * connectivity
        return tf.reduce_mean(self._network.losses(masked, local, None, self._context, {"x": batch}, None))


def train(network: MADENetwork, rows: np.ndarray, held_out: np.ndarray, schedule: Schedule) -> Outcome:
    """Trains until the held-out rows say that it is enough; keeps the weights that they found best.

    After `patience` epochs without a better held-out NLL training goes back to the best weights and divides the
    learning rate by 3; after `decays` divisions it ends.
    """
    trainer = Trainer(network, rows, schedule)
    made = MADE.from_task(network, *trainer.variables, trainer.plan)
    score = scorer(made)
    best, kept, waited, decays = math.inf, [], 0, 0
    rate, seconds, epoch = schedule.learning_rate, 0.0, 0
    while epoch < schedule.max_epochs and decays <= schedule.decays:
        start = time.process_time()
        trainer.epoch(epoch, rate)
        seconds += time.process_time() - start if epoch else 0.0  # the first one is compiled
        epoch += 1
        found = score(held_out)
        waited += 1
        if found < best:
            best, kept, waited = found, [variable.numpy() for variable in trainer.variables], 0
        if waited >= schedule.patience:
            decays, waited, rate = decays + 1, 0, rate / 3
            for variable, value in zip(trainer.variables, kept):
                variable.assign(value)
    for variable, value in zip(trainer.variables, kept):
        variable.assign(value)
    return Outcome(made, best, epoch, seconds / max(epoch - 1, 1))


def against_eager(network: MADENetwork, rows: np.ndarray, schedule: Schedule, repeats: int = 5) -> str:
    """CPU seconds of an epoch on the rows, compiled and eager, in turns: the medians and their ratio.

    Beside them its matrix products alone, which both have to do: no loop can be further below the eager one.
    """
    trainer = Trainer(network, rows, schedule)
    ways = {
        "compiled": lambda number: trainer.epoch(number, schedule.learning_rate),
        "eager": lambda _: trainer.eager_epoch(schedule.learning_rate),
        "products": lambda _: trainer.products_epoch(),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 1):
        for name, epoch in ways.items():
            start = time.process_time()
            epoch(number)
            spent[name].append(time.process_time() - start)
    compiled, eager, products = (float(np.median(seconds[1:])) for seconds in spent.values())
    return (
        f"an epoch of {len(rows)} rows: {compiled:.3f} CPU s compiled, {eager:.3f} eager, {eager / compiled:.1f}x; "
        f"the matrix products alone {products:.3f}, {eager / products:.1f}x"
    )


def scorer(made: MADE, rows_at_once: int = 1000) -> Callable[[np.ndarray], float]:
    """`rows -> mean NLL in nats`, in bounded memory."""
    compiled = tf.function(made.log_prob, reduce_retracing=True)

    def score(rows: np.ndarray) -> float:
        parts = [rows[start : start + rows_at_once] for start in range(0, len(rows), rows_at_once)]
        return -float(np.concatenate([compiled(tf.constant(part)).numpy() for part in parts]).mean())

    return score


def check_blind(made: MADE) -> None:
    """Ends the program if any output is under the influence of its own input or of one that comes later."""
    leak = tf.function(functools.partial(largest_leak_of_patterns, made.network))
    found = float(leak(tf.convert_to_tensor(made.kernels), made.plan))
    if found != 0.0:
        raise SystemExit(f"no density: an output depends on what it must not see (slope {found})")


def load(name: str, data_dir: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to score."""
    if name not in IMAGES:
        found = datasets.load_binary(name, data_dir)
        return found.split("train"), found.split("valid")
    vectors = datasets.vectors_of_images(datasets.load_images(name, data_dir))
    return vectors.train_x, vectors.test_x


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", default="adult", help=f"adult, connect4, nltcs, ... or one of {', '.join(IMAGES)}")
    add("--data-dir", help="default: TFFCL_DATA_DIR")
    add("--hidden", type=int, nargs="*", default=[500], help="units of each hidden layer (default 500)")
    add("--num-masks", type=int, default=8, help="patterns trained with and averaged over (default 8)")
    add("--agnostic", choices=["order", "connectivity", "both"], default="order", help="what patterns differ in")
    add("--no-direct", action="store_true", help="no direct connection")
    add("--activation", default="relu")
    add("--learning-rate", type=float, default=3e-3)
    add("--batch-size", type=int, default=100)
    add("--patience", type=int, default=6, help="epochs without a better held-out NLL (default 6)")
    add("--decays", type=int, default=3, help="divisions of the learning rate by 3 (default 3)")
    add("--max-epochs", type=int, default=1000)
    add("--seed", type=int, default=0)
    add("--held-out-only", action="store_true", help="never look at the rows to score: for choosing flags")
    add("--against-eager", type=int, metavar="ROWS", help="only compare an epoch of so many rows with an eager one")
    return parser.parse_args()


def main() -> None:
    """Trains, checks, scores."""
    flags = parse()
    try:
        rows, scored = load(flags.dataset, flags.data_dir)
        agnostic = flags.agnostic if flags.num_masks > 1 else None
        config = MADEConfig(
            rows.shape[1],
            tuple(flags.hidden),
            not flags.no_direct,
            order_agnostic=agnostic in ("order", "both"),
            connectivity_agnostic=agnostic in ("connectivity", "both"),
            num_masks=flags.num_masks,
            activation=flags.activation,
        )
    except errors.InputError as error:
        raise SystemExit(str(error)) from None
    fields = [field.name for field in dataclasses.fields(Schedule)]
    schedule = Schedule(**{name: getattr(flags, name) for name in fields})
    shuffled = np.random.default_rng(flags.seed).permutation(rows)
    held_out, rows = np.split(shuffled, [len(shuffled) // 10])
    if flags.against_eager:
        print(against_eager(MADENetwork(config), rows[: flags.against_eager], schedule), flush=True)
        return
    outcome = train(MADENetwork(config), rows, held_out, schedule)
    check_blind(outcome.made)
    line = f"{flags.dataset} {config.input_size} inputs, {flags.hidden} hidden, {flags.num_masks} masks ({agnostic})"
    line += f": held out {outcome.held_out:.3f} nats"
    if not flags.held_out_only:
        line += f", scored {scorer(outcome.made)(scored):.3f} nats on {len(scored)} rows"
    print(f"{line}; {outcome.epochs} epochs of {outcome.seconds:.3f} CPU s", flush=True)


if __name__ == "__main__":
    main()
