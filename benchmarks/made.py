"""How good a density MADE is when it is trained in one place, in nats, and what an epoch costs.

    uv run benchmarks/made.py --dataset adult --data-dir ../shared/data
    uv run benchmarks/made.py --dataset connect4 --agnostic connectivity --data-dir ../shared/data
    uv run benchmarks/made.py --dataset mnist --hidden 400 --num-masks 1 --learning-rate 1e-3 --data-dir ../shared/data
    uv run benchmarks/made.py --dataset mnist --hidden 400 --num-masks 1 --against-eager 600 --data-dir ../shared/data
    uv run benchmarks/made.py --dataset rcv1 --rows 2000 --held-out 400 --choose weight_decay num_masks

Trained on `train` but for a tenth of its rows, or --held-out, which decide on the learning rate, on which weights are
kept, and on when to stop; what is scored is the whole of `valid` (of the test images for image sets), once, at the end.
Of a set that has one file alone --rows are for training and the rest is scored. --choose tries values of options one
after the other, decides by the held-out rows, and scores the first values and the chosen ones. The Jacobian of every
pattern that is averaged is checked before anything is scored.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tffcl import datasets, errors  # noqa: E402
from tffcl.client_works import FusedAdam  # noqa: E402
from tffcl.client_works.optimizers import decay_weights  # noqa: E402
from tffcl.models import MADE, MADEConfig, MADENetwork  # noqa: E402
from tffcl.models.made import largest_leak_of_patterns  # noqa: E402

IMAGES = ("digits", "mnist", "fashion-mnist")
# What --choose tries; the first are those of a plain MADE.
GRID: dict[str, tuple[Any, ...]] = {
    "weight_decay": (0.0, 0.1, 0.3, 1.0, 3.0, 10.0),
    "num_masks": (1, 4, 8, 16),
    "hidden": ([500], [100], [200]),
}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How training goes: names as the flags."""

    batch_size: int
    learning_rate: float
    weight_decay: float
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
        decayed = [(self.variables[0], self._network.kernels.of_kernels())] if self._schedule.weight_decay else []

        def one_step(step: tf.Tensor, state: tuple) -> tuple:
            batch = tf.gather(self._rows, order[step * size : (step + 1) * size])
            patterns = self._network.num_patterns
            pattern = tf.random.stateless_uniform([], fold(key, step), 0, patterns, tf.int32)
            with tf.GradientTape() as tape:
                loss = self._loss(batch, connected(pattern))
            gradients = tape.gradient(loss, self.variables)
            decay_weights(decayed, learning_rate * self._schedule.weight_decay)
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


def load(name: str, data_dir: str | None, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, at most so many, and rows to score."""
    if name in IMAGES:
        vectors = datasets.vectors_of_images(datasets.load_images(name, data_dir))
        rows, scored = vectors.train_x, vectors.test_x
    else:
        splits = list(datasets.load_binary(name, data_dir).splits.values())
        rows, scored = splits[0], splits[1] if len(splits) > 1 else None
    if most is None and scored is None:
        raise SystemExit(f"{name}: has one file alone; give --rows, how many of its {len(rows)} rows are for training")
    if most is not None:
        rows = np.random.default_rng(42).permutation(rows)
        rows, rest = np.split(rows, [most])
        scored = rest if scored is None else scored
    return rows, scored


def parse() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", default="adult", help=f"adult, connect4, nltcs, ... or one of {', '.join(IMAGES)}")
    add("--data-dir", help="default: TFFCL_DATA_DIR")
    add("--hidden", type=int, nargs="*", default=[500], help="units of each hidden layer (default 500)")
    add("--rows", type=int, help="most rows to train on, held-out ones included")
    add("--held-out", type=int, help="how many of them are held out (default a tenth)")
    add("--choose", nargs="+", choices=GRID, default=[], help="options that the held-out rows decide on, in turn")
    add("--num-masks", type=int, default=8, help="patterns trained with and averaged over (default 8)")
    add("--agnostic", choices=["order", "connectivity", "both"], default="order", help="what patterns differ in")
    add("--no-direct", action="store_true", help="no direct connection")
    add("--activation", default="relu")
    add("--learning-rate", type=float, default=3e-3)
    add("--weight-decay", type=float, default=0.0, help="of kernels, decoupled; times the learning rate (default 0)")
    add("--batch-size", type=int, default=100)
    add("--patience", type=int, default=6, help="epochs without a better held-out NLL (default 6)")
    add("--decays", type=int, default=3, help="divisions of the learning rate by 3 (default 3)")
    add("--max-epochs", type=int, default=1000)
    add("--seed", type=int, default=0)
    add("--held-out-only", action="store_true", help="never look at the rows to score: for choosing flags")
    add("--against-eager", type=int, metavar="ROWS", help="only compare an epoch of so many rows with an eager one")
    return parser.parse_args()


def network_of(size: int, flags: argparse.Namespace) -> MADENetwork:
    """The network that flags ask for."""
    agnostic = flags.agnostic if flags.num_masks > 1 else None
    config = MADEConfig(
        size,
        tuple(flags.hidden),
        not flags.no_direct,
        order_agnostic=agnostic in ("order", "both"),
        connectivity_agnostic=agnostic in ("connectivity", "both"),
        num_masks=flags.num_masks,
        activation=flags.activation,
    )
    return MADENetwork(config)


def trained(flags: argparse.Namespace, rows: np.ndarray, held_out: np.ndarray) -> Outcome:
    """Trains by flags and prints a line."""
    schedule = Schedule(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(Schedule)})
    outcome = train(network_of(rows.shape[1], flags), rows, held_out, schedule)
    agnostic = f", {flags.agnostic}" if flags.num_masks > 1 else ""
    print(
        f"{flags.dataset} {rows.shape[1]} inputs, {len(rows)} rows, {flags.hidden} hidden, {flags.num_masks} masks"
        f"{agnostic}, weight decay {flags.weight_decay:g}: held out {outcome.held_out:.3f} nats on {len(held_out)} rows"
        f"; {outcome.epochs} epochs of {outcome.seconds:.3f} CPU s",
        flush=True,
    )
    return outcome


def choose(flags: argparse.Namespace, rows: np.ndarray, held_out: np.ndarray) -> Mapping[str, Outcome]:
    """Decides on the options of --choose one after the other; the first outcome and the best, and a table of all."""
    tried: dict[tuple[Any, ...], Outcome] = {}

    def outcome_of(**changed: Any) -> Outcome:
        values = {**vars(flags), **changed}
        key = tuple(str(values[name]) for name in GRID)
        if key not in tried:
            tried[key] = trained(argparse.Namespace(**values), rows, held_out)
        return tried[key]

    for name in flags.choose:
        setattr(flags, name, GRID[name][0])
    first = outcome_of()
    for name in flags.choose:
        best = min(GRID[name], key=lambda value, name=name: outcome_of(**{name: value}).held_out)
        setattr(flags, name, best)
    return {"first": first, ", ".join(f"{name} {getattr(flags, name)}" for name in flags.choose): outcome_of()}


def main() -> None:
    """Trains, checks, scores."""
    flags = parse()
    try:
        rows, scored = load(flags.dataset, flags.data_dir, flags.rows)
        network_of(rows.shape[1], flags)
    except errors.InputError as error:
        raise SystemExit(str(error)) from None
    shuffled = np.random.default_rng(flags.seed).permutation(rows)
    held_out, rows = np.split(shuffled, [flags.held_out or len(shuffled) // 10])
    if flags.against_eager:
        schedule = Schedule(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(Schedule)})
        print(against_eager(network_of(rows.shape[1], flags), rows[: flags.against_eager], schedule), flush=True)
        return
    outcomes = choose(flags, rows, held_out) if flags.choose else {"": trained(flags, rows, held_out)}
    for name, outcome in outcomes.items():
        check_blind(outcome.made)
        if not flags.held_out_only:
            print(f"{name or flags.dataset}: {scorer(outcome.made)(scored):.3f} nats on {len(scored)} rows", flush=True)


if __name__ == "__main__":
    main()
