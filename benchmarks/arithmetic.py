"""What a round of 10^3, 10^5 and 10^7 clients would take, by arithmetic from constants that are measured here.

    uv run benchmarks/arithmetic.py                        # prints constants, tables, and the check by simulation
    uv run benchmarks/arithmetic.py --page docs/scale.md   # puts them on the page, too

All times are CPU times, so what else runs on the machine matters little. The work of the paper's size is a round of
FedAvg, and of FedSeIT, with a TextCNN of 3 x 128 filters on 320 drawn documents. A round's costs at the coordinator,
CPU seconds of its process and bytes that cross to its workers, are fitted as fixed + workers * a + clients * b.
The check: 1,000 clients of tiny work, beside a fit of tiny work with at most 192 clients in a round.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
from processes import Memory  # noqa: E402
from scale import LABELS, MIB, DrawnTexts  # noqa: E402

from tffcl import runtime  # noqa: E402
from tffcl.algorithms import build_fed_avg, build_fedseit  # noqa: E402
from tffcl.client_works import LocalTraining  # noqa: E402
from tffcl.models import TextCNN, TextCNNConfig  # noqa: E402
from tffcl.papers import tables  # noqa: E402
from tffcl.program import ClientFiles, Results, run_program  # noqa: E402
from tffcl.program.events import Event  # noqa: E402
from tffcl.runtime.executor import WorkerStub  # noqa: E402
from tffcl.transfers import SIT, NoTransfer  # noqa: E402

EPOCHS, ROUND_SECONDS, FAN_OUT = 10, 600, 100  # of the round that is foretold
FIRST = 2  # rounds that compile, allocate, and are not counted
KEPT = {"at the coordinator": False, "in client files": True}  # where clients keep their states


@dataclasses.dataclass(frozen=True)
class Work:
    """A client's work in a round.

    Attributes:
      dimension: D, of the word vectors.
      filters: of each of three kernel sizes.
      documents: of training.
      decomposed: FedSeIT (with SIT, three entries) instead of FedAvg.
    """

    dimension: int
    filters: int
    documents: int
    decomposed: bool = False

    def parts(self, epochs: int) -> tuple[Any, Any]:
        """The process and the transfer."""
        config = TextCNNConfig(self.dimension, max_classes=LABELS, num_filters=self.filters)
        training = LocalTraining(num_epochs=epochs, patience=0)
        if self.decomposed:
            return build_fedseit(config, num_foreign=3, training=training, seed=1), SIT(k=3, q=10)
        return build_fed_avg(TextCNN(config), training=training, seed=1), NoTransfer()


PAPER, FEDSEIT, TINY = Work(100, 128, 320), Work(100, 128, 320, decomposed=True), Work(8, 2, 8)


class Rounds:
    """A reporter: what each round costs the coordinator, which is this process.

    Attributes:
      seconds: of CPU, for each round.
      memory: bytes that stand in it after each round.
      crossed: bytes of all requests to workers and of their answers in the round number `counted`, from 0.
      history: bytes that the last round's event takes in the history.
    """

    def __init__(self, counted: int = -1) -> None:
        self.seconds: list[float] = []
        self.memory: list[int] = []
        self.crossed = self.history = 0
        self._counted, self._request = counted, WorkerStub._request
        self._watch = Memory(seconds=3600)  # asked after each round

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        self._begin = time.process_time()

    def report(self, event: Event) -> None:
        if event["event"] == "round":
            self.seconds.append(time.process_time() - self._begin)
            self.memory.append(self._watch.now()[0])
            self.history = held(event)
            counts = len(self.seconds) == self._counted
            WorkerStub._request = self._counting() if counts else self._request
        self._begin = time.process_time()

    def _counting(self) -> Any:
        def request(stub: WorkerStub, method: Any, message: Any) -> Any:
            answer = self._request(stub, method, message)
            sent = len(message) if isinstance(message, bytes) else message.ByteSize()
            self.crossed += sent + answer.ByteSize()
            return answer

        return request

    def close(self) -> None:
        WorkerStub._request = self._request
        self._watch.close()


def held(value: Any) -> int:
    """Bytes of an event, with all that is in it."""
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sys.getsizeof(value) + sum(map(held, inner))


def run(
    work: Work, clients: int, files: bool, reporter: Rounds, rounds: int, per_round: int = 0, epochs: int = 1
) -> Results:
    """The results of a run of one task, in the runtime that is installed."""
    process, transfer = work.parts(epochs)
    with tempfile.TemporaryDirectory() as folder:
        return run_program(
            process, DrawnTexts(clients, 1, work.documents, work.dimension), transfer, num_rounds=rounds, seed=1,
            clients_per_round=per_round or None, evaluate_every="task", reporters=[reporter],
            client_files=ClientFiles(folder) if files else None,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a round costs the coordinator, in CPU seconds or bytes: fixed, for each worker, for each client."""

    fixed: float
    worker: float
    client: float

    def of(self, clients: float, workers: float) -> float:
        """The cost of a round."""
        return self.fixed + self.worker * workers + self.client * clients


def fit(points: Sequence[tuple[int, int]], costs: Sequence[float]) -> Cost:
    """The cost of rounds of (clients, workers), by least squares of the relative errors; none is negative."""
    from scipy.optimize import nnls

    rows = np.array([[1.0, workers, clients] for clients, workers in points]) / np.array(costs)[:, None]
    scale = rows.max(0)
    return Cost(*nnls(rows / scale, np.ones(len(costs)))[0] / scale)


@dataclasses.dataclass
class Points:
    """What rounds of one work cost the coordinator: (clients, workers), CPU seconds, bytes."""

    where: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    crossed: list[float] = dataclasses.field(default_factory=list)

    def measure(self, work: Work, files: bool, clients: int, workers: int, rounds: int) -> None:
        """Adds a point, of the runtime that is installed."""
        reporter = Rounds(counted=FIRST + rounds)
        run(work, clients, files, reporter, FIRST + rounds + 1)
        self.where.append((clients, workers))
        self.seconds.append(float(np.median(reporter.seconds[FIRST:-1])))
        self.crossed.append(reporter.crossed)
        print(f"  {clients} clients, {workers} workers, client files: {files}: {self.seconds[-1]:.3f} s of CPU, "
              f"{reporter.crossed / MIB:.2f} MiB", flush=True)  # fmt: skip


def client_constants(work: Work) -> tuple[float, float, float, float]:
    """Bytes up and down of a client and round as the history counts them; dense up; CPU seconds of a client-epoch."""
    clients, rounds, reporter = 4, 4, Rounds()
    with runtime.in_process():
        results = run(work, clients, False, reporter, FIRST + rounds, epochs=EPOCHS)
    # The last round of a task has its end, too.
    up, down, dense = (
        float(np.mean(np.array(sent)[:, FIRST : FIRST + rounds - 1]))
        for sent in (results.bytes_up, results.bytes_down, results.bytes_up_dense)
    )
    return up, down, dense, float(np.median(reporter.seconds[FIRST:])) / clients / EPOCHS


def handle_bytes(count: int = 20000) -> float:
    """What the handle of a client that keeps its state in files takes in the coordinator's memory."""
    process, _ = TINY.parts(1)
    watch = Memory(seconds=3600)
    before = watch.now()[0]
    store = ClientFiles("/nowhere").first_store(process, count)
    taken = (watch.now()[0] - before) / len(store)
    watch.close()
    return taken


@dataclasses.dataclass(frozen=True)
class Round:
    """A round of so many clients whose work takes `ROUND_SECONDS` on one thread of each worker."""

    clients: int
    epoch_seconds: float
    cost: Cost

    @property
    def workers(self) -> int:
        return math.ceil(self.clients * EPOCHS * self.epoch_seconds / ROUND_SECONDS)

    @property
    def seconds(self) -> float:
        """Of the one coordinator."""
        return self.cost.of(self.clients, self.workers)

    def tree(self) -> tuple[int, int, float, float]:
        """Levels, nodes, seconds of the root, and seconds of one node of each level together."""
        levels, nodes, below = 1, 0, self.workers
        least = min(self.workers, FAN_OUT)
        root = path = self.cost.of(self.clients / self.workers * least, least)
        while below > FAN_OUT:
            below = math.ceil(below / FAN_OUT)
            nodes, levels = nodes + below, levels + 1
            root = self.cost.of(0, min(below, FAN_OUT))
            path += root
        return levels, nodes + 1, root, path


def saturation(epoch_seconds: float, cost: Cost) -> float:
    """Clients of a round with which the coordinator's own CPU seconds are `ROUND_SECONDS`."""
    return (ROUND_SECONDS - cost.fixed) / (cost.client + cost.worker * EPOCHS * epoch_seconds / ROUND_SECONDS)


def figure(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def foretold(up: float, epoch: float, seconds: dict[str, Cost], crossed: dict[str, Cost]) -> tuple[str, str]:
    """The tables of rounds, and of where the coordinator saturates."""
    rows = []
    for clients in (10**3, 10**5, 10**7):
        for share in (1, 100):
            rounds = {kept: Round(clients // share, epoch, cost) for kept, cost in seconds.items()}
            files = rounds["in client files"]
            levels, nodes, root, path = files.tree()
            rows.append([
                f"10^{round(math.log10(clients))}", figure(files.clients), figure(files.workers),
                figure(up * files.clients / 1e9),
                *(figure(cost.of(files.clients, files.workers) / 1e9) for cost in crossed.values()),
                *(figure(each.seconds) for each in rounds.values()),
                f"{levels}", f"{nodes:,}", figure(root), figure(path),
            ])  # fmt: skip
    header = ["clients", "in a round", "workers (cores)", "sent up, GB"]
    header += [f"through the coordinator, GB, states {kept}" for kept in crossed]
    header += [f"coordinator, s, states {kept}" for kept in seconds]
    header += ["tree: levels", "aggregators", "root, s", "a node of each level, s"]
    limits = [
        [kept, figure(limit := saturation(epoch, cost)), figure(Round(int(limit), epoch, cost).workers)]
        for kept, cost in seconds.items()
    ]
    return tables.markdown(header, rows), tables.markdown(["states", "clients in a round", "workers"], limits)


def simulated(rounds: int) -> dict[tuple[str, int], Rounds]:
    """Runs of 1,000 clients of tiny work in the installed runtime, by where states are and clients in a round."""
    found = {}
    for kept, files in KEPT.items():
        for taking_part in (1000, 100):
            reporter = found[kept, taking_part] = Rounds()
            run(TINY, 1000, files, reporter, rounds, taking_part)
            each = ", ".join(f"{1e3 * spent / taking_part:.2f}" for spent in reporter.seconds)
            print(f"  1,000 clients, {taking_part} in a round, states {kept}; CPU ms a client: {each}", flush=True)
            print(f"    MiB: {', '.join(f'{size / MIB:.1f}' for size in reporter.memory)}", flush=True)
    return found


def compared(found: dict[tuple[str, int], Rounds], costs: dict[str, Cost]) -> str:
    """The table of the simulation beside what the fit of smaller rounds on two workers foretells."""
    rows = []
    for (kept, taking_part), reporter in found.items():
        early, last = reporter.memory[FIRST], reporter.memory[-1]
        measured = 1e3 * float(np.median(reporter.seconds[FIRST:])) / taking_part
        told = 1e3 * costs[kept].of(taking_part, 2) / taking_part
        rows.append([
            kept, f"{taking_part:,}", f"{early / MIB:.1f}", f"{last / MIB:.1f}", f"{100 * (last / early - 1):+.1f} %",
            f"{measured:.2f}", f"{told:.2f}", f"{measured / told:.2f}",
        ])  # fmt: skip
    header = ["states", "in a round, of 1,000", f"MiB after round {FIRST + 1}", "after the last", "change"]
    return tables.markdown([*header, "CPU ms a client", "foretold", "ratio"], rows)


def constants(
    of_clients: dict[str, Any],
    seconds: dict[str, dict[str, Cost]],
    crossed: dict[str, Cost],
    simulation: dict[tuple[str, int], Rounds],
) -> str:
    """The table of what was measured."""
    rows = []
    for name, (up, down, dense, epoch) in of_clients.items():
        counted = f"{up:,.0f} ({dense:,.0f} dense) / {down:,.0f}"
        rows += [[f"{name}: bytes up / down of a client and round, as the history counts them", counted]]
        rows += [[f"{name}: CPU s of a client-epoch, {PAPER.documents} documents", f"{epoch:.3f}"]]
    for size, of_size in seconds.items():
        for kept, cost in of_size.items():
            told = f"{1e3 * cost.fixed:.1f} + {1e3 * cost.worker:.2f} a worker + {1e3 * cost.client:.2f} a client"
            rows.append([f"coordinator, CPU ms a round, {size}, states {kept}", told])
    for kept, cost in crossed.items():
        told = f"{cost.worker / MIB:.2f} a worker + {cost.client / MIB:.4f} a client"
        rows.append([f"through the coordinator, MiB a round, FedAvg, states {kept}", told])
    for kept in KEPT:
        spent = simulation[kept, 1000].seconds
        rows.append([f"coordinator, CPU ms a client, once a task (its start, compiling), tiny work, states {kept}",
                     f"{spent[0] - float(np.median(spent[FIRST:])):.1f}"])  # fmt: skip
    rows.append(["coordinator's memory for the handle of a client in files, bytes", f"{handle_bytes():,.0f}"])
    history = simulation["at the coordinator", 1000].history / 1000
    rows.append(["coordinator's memory for the history of a client and round, bytes", f"{history:,.0f}"])
    return tables.markdown(["constant", "measured"], rows)


def main() -> None:
    """Parses the flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", help="a page with places for the tables constants, rounds, saturation, simulation")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that each constant is a median of (default 5)")
    parser.add_argument("--simulated", type=int, default=12, help="rounds of the simulation (default 12)")
    options = parser.parse_args()
    if options.page:
        for place in ("constants", "rounds", "saturation", "simulation"):
            tables.write_table(f"{options.page}#{place}")  # looks whether it is there
    points = {(work, kept): Points() for work in (PAPER, TINY) for kept in KEPT}
    simulation: dict[tuple[str, int], Rounds] = {}
    for workers in (2, 6):
        with runtime.local(num_workers=workers, num_threads=1):
            simulation = simulation or simulated(options.simulated)
            for (work, kept), measured in points.items():
                for clients in (16, 64) if work is PAPER else (48, 192):
                    measured.measure(work, KEPT[kept], clients, workers, options.rounds)
    seconds = {
        name: {kept: fit(points[work, kept].where, points[work, kept].seconds) for kept in KEPT}
        for name, work in (("FedAvg", PAPER), ("tiny work", TINY))
    }
    crossed = {kept: fit(points[PAPER, kept].where, points[PAPER, kept].crossed) for kept in KEPT}
    of_clients = {"FedAvg": client_constants(PAPER), "FedSeIT": client_constants(FEDSEIT)}
    up, _, _, epoch = of_clients["FedAvg"]
    rounds, limits = foretold(up, epoch, seconds["FedAvg"], crossed)
    found = {
        "constants": constants(of_clients, seconds, crossed, simulation),
        "rounds": rounds,
        "saturation": limits,
        "simulation": compared(simulation, seconds["tiny work"]),
    }
    for place, table in found.items():
        print(f"\n{place}\n\n{table}", flush=True)
        if options.page:
            tables.write_table(f"{options.page}#{place}", table)


if __name__ == "__main__":
    main()
