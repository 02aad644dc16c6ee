"""Time and memory of FedSeIT with SIT against clients, entries and workers; and what 100 rounds leave in memory.

    uv run benchmarks/scale.py                                    # 3 clients x 5 tasks up to 200 x 10
    uv run benchmarks/scale.py --clients 200 --tasks 10           # one of them
    uv run benchmarks/scale.py --growth 100 --runtime in-process  # 100 rounds of one small problem

Documents are drawn here. Each line of the first two is an event of a run with a run directory (in a temporary folder):
its seconds, the entries of the knowledge base, what stands in memory (peak of the coordinator, of its workers together,
and of all), and the bytes that its checkpoint added on the disk. `--growth` compares what stands in memory after the
tenth round with what stands there after the last.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
from processes import Memory  # noqa: E402

from tffcl import runtime  # noqa: E402
from tffcl.algorithms import build_fedseit  # noqa: E402
from tffcl.client_works import LocalTraining  # noqa: E402
from tffcl.models import TextCNNConfig  # noqa: E402
from tffcl.program import ClientTask, run_program  # noqa: E402
from tffcl.transfers import SIT  # noqa: E402

MIB = 2**20
LABELS, LENGTH = 4, 10  # of a task; of a document


class DrawnTexts:
    """Documents about a label of a task: words near the label's own, among common ones.

    Args:
      clients: C.
      tasks: T.
      documents: training documents of each task; a quarter as many are for validation, and for testing.
      dimension: D, of the word vectors.
      words: V, in use in a task.
    """

    def __init__(self, clients: int, tasks: int, documents: int, dimension: int, words: int = 300) -> None:
        self.num_clients, self.num_tasks, self._documents = clients, tasks, documents
        vectors = np.random.default_rng(0).normal(0, 0.4, (words, dimension)).astype(np.float32)
        vectors[:2] = 0
        self._vectors = vectors

    def task(self, client: int, task: int) -> ClientTask:
        """The same at every call."""
        rng = np.random.default_rng([client, task])
        topics = rng.choice(8, LABELS, replace=False)  # tasks share topics
        parts = [self._draw(rng, topics, count) for count in (self._documents, *[self._documents // 4] * 2)]
        context = OrderedDict(vectors=self._vectors, tokens=np.concatenate([words for words, _ in parts], None))
        firsts = np.cumsum([0, *(words.size for words, _ in parts)])
        train, validation, test = (
            OrderedDict(
                start=np.arange(first, first + words.size, LENGTH, dtype=np.int32),
                length=np.full(len(words), LENGTH, np.int32),
                label=label,
            )
            for first, (words, label) in zip(firsts, parts)
        )
        return ClientTask(context, train, validation, context, test, LABELS)

    def _draw(self, rng: np.random.Generator, topics: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Words int32 [count, LENGTH] and label int32 [count]."""
        label = rng.integers(0, LABELS, count).astype(np.int32)
        own = 2 + 30 * topics[label][:, None] + rng.integers(0, 30, (count, LENGTH))
        common = rng.integers(2, len(self._vectors), (count, LENGTH))
        return np.where(rng.random((count, LENGTH)) < 0.5, own, common).astype(np.int32), label


class Lines:
    """A reporter that prints a line for each event, with what the last one cost."""

    def __init__(self, memory: Memory, folder: pathlib.Path, quiet: bool) -> None:
        self._memory, self._folder, self._quiet = memory, folder, quiet
        self._seen: dict[str, int] = {}
        self._entries = 0
        self.after: list[tuple[int, int]] = []  # bytes in memory after each round
        self.written: list[int] = []  # by checkpoints of rounds other than a task's first

    def start(self, num_tasks: int, num_rounds: int, past: list) -> None:
        self._memory.take_peak()

    def report(self, event: dict) -> None:
        files = {path.name: path.stat().st_size for path in (self._folder / "checkpoints").iterdir()}
        written = sum(size for name, size in files.items() if name not in self._seen)
        self._seen = files
        if event["event"] == "round":
            self.after.append(self._memory.now())
            if event["round"] > 0:
                self.written.append(written)
        else:
            self._entries += len(event["bytes_up"])
        own, workers, both = (size // MIB for size in self._memory.take_peak())
        if not self._quiet:
            what = f"task {event['task']} " + (f"round {event['round']}" if "round" in event else "end")
            print(
                f"  {what:<16} {event['seconds']:8.1f} s {self._entries:6} entries "
                f"{own:6} + {workers:5} = {both:6} MiB at most, {written / MIB:7.1f} MiB written",
                flush=True,
            )

    def close(self) -> None:
        pass


@contextlib.contextmanager
def opened(name: str, workers: int) -> Iterator[None]:
    """A runtime by its name: local, in-process, or remote over workers that `tffcl worker` would start elsewhere."""
    if name == "in-process":
        with runtime.in_process():
            yield
    elif name == "local":
        with runtime.local(num_workers=workers):
            yield
    else:
        with runtime.local(num_threads=1, num_workers=max(workers, 2)):
            yield


def run(options: argparse.Namespace, clients: int, tasks: int, rounds: int, quiet: bool = False) -> Lines:
    """One run, with its lines; then what it came to."""
    transfer = SIT(k=3, q=options.centroids)
    config = TextCNNConfig(options.dimension, max_classes=LABELS, num_filters=options.filters)
    process = build_fedseit(
        config, num_foreign=3, training=LocalTraining(num_epochs=options.epochs, patience=0), seed=1
    )
    data = DrawnTexts(clients, tasks, options.documents, options.dimension)
    taking_part = min(options.per_round, clients)
    print(
        f"{clients} clients x {tasks} tasks, {taking_part} a round, {rounds} rounds a task, {options.runtime}, "
        f"{options.workers} worker(s); {process.knowledge_size} parameters in an adaptive",
        flush=True,
    )
    memory, begin = Memory(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, opened(options.runtime, options.workers):
        lines = Lines(memory, pathlib.Path(folder) / "run", quiet)
        results = run_program(
            process, data, transfer, num_rounds=rounds, seed=1, clients_per_round=taking_part,
            evaluate_every="task", output_dir=pathlib.Path(folder) / "run", reporters=[lines],
        )  # fmt: skip
    memory.close()
    print(
        f"  ended after {time.perf_counter() - begin:.0f} s, at most {memory.highest // MIB} MiB in all processes, "
        f"TTA {100 * results.to_json()['task_averaged_test_accuracy']:.1f} %, "
        f"{np.median(lines.written or [0]) / MIB:.1f} MiB a round written; load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores",
        flush=True,
    )
    return lines


def growth(options: argparse.Namespace) -> None:
    """What many rounds of one task leave in memory."""
    lines = run(options, 3, 1, options.growth, quiet=True)
    for place, name in enumerate(("coordinator", "workers")):
        tenth, last = lines.after[9][place], lines.after[-1][place]
        if tenth:
            print(
                f"  {name:<12} {tenth / MIB:7.1f} MiB after round 10, {last / MIB:7.1f} MiB after round "
                f"{options.growth}: {100 * (last / tenth - 1):+.1f} %",
                flush=True,
            )


def main() -> None:
    """Parses the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, help="clients (default: a row of sizes up to 200 x 10)")
    parser.add_argument("--tasks", type=int, default=10, help="tasks of each client (default 10)")
    parser.add_argument("--per-round", type=int, default=10, help="clients of a round (default 10)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a task (default 2)")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of a round (default 1)")
    parser.add_argument("--documents", type=int, default=40, help="training documents of a task (default 40)")
    parser.add_argument("--dimension", type=int, default=50, help="of the word vectors (default 50)")
    parser.add_argument("--filters", type=int, default=32, help="of each kernel size (default 32)")
    parser.add_argument("--centroids", type=int, default=10, help="Q of SIT (default 10)")
    parser.add_argument("--runtime", choices=["local", "in-process", "remote"], default="local", help="default local")
    parser.add_argument("--workers", type=int, default=1, help="workers on this machine (default 1)")
    parser.add_argument("--growth", type=int, metavar="ROUNDS", help="only so many rounds of one small problem")
    options = parser.parse_args()
    if options.growth:
        growth(options)
    elif options.clients:
        run(options, options.clients, options.tasks, options.rounds)
    else:
        for clients, tasks in ((3, 5), (20, 10), (200, 10)):
            run(options, clients, tasks, options.rounds)


if __name__ == "__main__":
    main()
