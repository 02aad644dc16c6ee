"""load_run: a run directory as a read-only view, whose models need neither its data nor its code."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from tffcl import runtime, storage
from tffcl.algorithms import registry
from tffcl.client_works import RehearsalModel
from tffcl.errors import InputError, RunError, TffclError
from tffcl.experiment import Experiment, frozen, loading, record
from tffcl.experiment.plan import Plan
from tffcl.models import KerasNetwork, Network, Whole
from tffcl.models.registry import NETWORKS, NetworkPart
from tffcl.program import client_files, results
from tffcl.program.results import results_of
from tffcl.program.run_directory import Checkpoints, History
from tffcl.program.state import ClientStore, RunState
from tffcl.templates import ContinualProcess, compose, messages
from tffcl.transfers import KnowledgeBase

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf

    from tffcl.program.events import Event


@dataclasses.dataclass(frozen=True)
class Known:
    """Data of which a run directory holds everything but the examples: what an `Experiment` needs of a data set."""

    name: str
    kind: str


class FinishedPlan(Plan):
    """The plan of a run that is read back: method, network and options as they were, data without examples.

    Args:
      folder: the run directory.
      allow_code: import the method where it stands in a file or package of the user's, which runs its code.

    Raises:
      RunError: what is needed is not there; one line says what.
    """

    def __init__(self, folder: pathlib.Path, allow_code: bool = False):
        self.record = record.read(folder)
        self.folder = folder
        self.experiment = _experiment(self.record, folder, allow_code)
        self.kind, self.method = self.experiment.kind, self.experiment.method
        self._groups = self.experiment.groups
        self.stream = record.read_split(folder)
        self.dataset = record.read_dataset(self.record["data"], folder)
        tasks = self.record["tasks"]
        self.data: Any = types.SimpleNamespace(num_clients=len(tasks), num_tasks=len(tasks[0]))
        self.transfer = self._transfer()
        self.recorded, self.frozen = {}, None

    @property
    def own_method(self) -> bool:
        """Whether the method's code is the user's."""
        return _own_method(self.record["method"])

    def rehearsal_model(self, pretrained: bool, noise: bool) -> RehearsalModel:
        """FIL-VER's frozen encoder with a classifier, as the run directory holds them."""
        del pretrained
        return frozen.kept_model(self, noise, pathlib.Path(str(self.folder)))


def _own_method(name: str) -> bool:
    return any(map(registry.METHODS.is_own, name.split("@")))


def _experiment(recorded: dict[str, Any], folder: pathlib.Path, allow_code: bool) -> Experiment:
    method, network = recorded["method"], recorded["network"]
    if method is None:
        raise RunError(f"{folder}: its method was given as an object, and stands in no file; {record.OLD}")
    if _own_method(method) and not allow_code:
        raise RunError(
            f"{folder}: its method is {method}, whose code would run: allow it with --allow-code, or in Python "
            "load_run(..., allow_code=True)"
        )
    if network == record.KERAS:
        network = NetworkPart(network, (recorded["data"]["kind"],), (), functools.partial(_keras_network, folder))
    elif network is not None and network not in NETWORKS.names:
        raise RunError(f"{folder}: its network is {network}, no Keras model that could be kept; {record.OLD}")
    data = Known(recorded["data"]["name"], recorded["data"]["kind"])
    # Options on which others depend, first.
    first = {name: recorded["options"][name] for name in ("scenario", "selection") if name in recorded["options"]}
    try:
        known = Experiment(method, data=data, network=network, **first).fields
        options = {name: value for name, value in recorded["options"].items() if name in known}
        return Experiment(method, data=data, network=network, **options)
    except TffclError as error:
        raise RunError(f"{folder}: its options are not those of this version of tffcl ({error})") from error


def _keras_network(folder: pathlib.Path, plan: Any, num_foreign: int) -> Network:
    import tensorflow as tf

    path = folder / record.KERAS
    try:
        return KerasNetwork(tf.keras.models.load_model(path, compile=False, safe_mode=True), num_foreign)
    except (OSError, ValueError, TypeError) as error:  # what Keras raises for layers that it does not know
        reason = str(error).split("\n")[0][:200]
        raise RunError(f"{path}: cannot be read without the code of its layers ({reason})") from None


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a client.

    Shown with `load_run`.

    Attributes:
      client, number: from 0.
      labels: names of its labels, in the order of a model's probabilities.
      train, validation, test: int64, rows of the data set; of pooled tasks those of all that was pooled.
      score: on its test examples at the end of the run, accuracy or NLL in nats; None for no test examples.
    """

    client: int
    number: int
    labels: tuple[str, ...]
    train: np.ndarray = dataclasses.field(repr=False)
    validation: np.ndarray = dataclasses.field(repr=False)
    test: np.ndarray = dataclasses.field(repr=False)
    score: Optional[float]
    _run: FinishedRun = dataclasses.field(repr=False, compare=False)

    def model(self) -> tf.keras.Model:
        """See `FinishedRun.model`."""
        return self._run.model(self.client, self.number)


@dataclasses.dataclass(frozen=True)
class Client:
    """A client of a run: its `number`, and its `tasks`.

    Shown with `load_run`.
    """

    number: int
    tasks: tuple[Task, ...]


@dataclasses.dataclass(frozen=True)
class Parameters:
    """What a client's model of a task is made of.

    Attributes:
      network: a `Network`, or FIL-VER's `RehearsalModel`.
      kernels: float32 `[kernels.size]`, composed; of a `RehearsalModel` the classifier's weights.
      local: float32 `[local.size]`.
      attention: float32 `[K, kernels]`.
      foreign: float32 `[k, knowledge_size]`, the foreign adaptives that the client received for the task.
      plan: int32, of a MADE.
    """

    network: Any
    kernels: np.ndarray
    local: np.ndarray
    attention: Optional[np.ndarray] = None
    foreign: Optional[np.ndarray] = None
    plan: Optional[np.ndarray] = None


class FinishedRun:
    """A run directory, to be looked at; made by `tffcl.load_run`, and printed as a short table.

    Shown with `load_run`.

    Attributes:
      directory: the run directory.
      settings: what config.json holds, a mapping.
      finished: whether the run came to its end.
      scores_are: "accuracy", or "nll" where the examples have no labels.
      scores: float64 `[C, T, T]`: score of client c on task i after it learned task t; NaN for no data.
    """

    def __init__(self, directory: pathlib.Path, allow_code: bool = False):
        self.directory, self._allow_code = directory, allow_code
        self.settings = storage.read_object(directory / "config.json", "the configuration of a run", error=RunError)
        self.finished = (directory / "results.json").exists()
        self.events = _events(directory / "history.jsonl")
        named = {name for event in self.events for name in event}
        self.scores_are = "accuracy" if "accuracy" in named else "nll"
        try:
            self._results = results_of(self.events, self.scores_are, self.settings)
        except (LookupError, TypeError, ValueError) as error:
            raise RunError(f"{directory}: its history is not that of a run of config.json ({error!r})") from error
        self.scores = self._results.scores
        self._models: dict[tuple[int, int], Any] = {}

    def __repr__(self) -> str:
        return repr(self._results)

    def _repr_html_(self) -> str:
        return self._results._repr_html_()

    @property
    def config(self) -> pd.DataFrame:
        """The settings: one row, a column for each."""
        return results.config_of(self.settings)

    @property
    def history(self) -> pd.DataFrame:
        """What was measured in every round: method, seed, client, task, round, metric, value."""
        return self._results.history

    @property
    def accuracy(self) -> pd.DataFrame:
        """Every score: method, seed, client, task, after_task, round, metric, value."""
        return self._results.accuracy

    @property
    def num_clients(self) -> int:
        """C, as the method met them."""
        return self.scores.shape[0]

    @property
    def num_tasks(self) -> int:
        """T, as the method met them."""
        return self.scores.shape[1]

    @property
    def ended(self) -> int:
        """Tasks that have been learned to their end."""
        return sum(event["event"] == "task_end" for event in self.events)

    @functools.cached_property
    def plan(self) -> FinishedPlan:
        """Method, network and options as they were, and the data without their examples."""
        return FinishedPlan(self.directory, self._allow_code)

    @functools.cached_property
    def clients(self) -> tuple[Client, ...]:
        """Every client with its tasks."""
        names, split = record.read(self.directory)["tasks"], record.read_split(self.directory)
        if (split.num_clients, split.num_tasks) != (len(names), len(names[0])):
            split = loading.pooled(split, self.plan.method.pool)
        last = self.scores[:, max(0, self.ended - 1)]
        made = []
        for client, tasks in enumerate(names):
            own = []
            for task, labels in enumerate(tasks):
                part = split.task(min(client, split.num_clients - 1), min(task, split.num_tasks - 1))
                score = last[client, task]
                own.append(Task(client, task, tuple(labels), part.train, part.validation, part.test,
                                None if np.isnan(score) else float(score), self))  # fmt: skip
            made.append(Client(client, tuple(own)))
        return tuple(made)

    def process(self) -> ContinualProcess:
        """The process that the run was made of, composed anew, in the TFF runtime that is installed."""
        return self.plan.method.process(self.plan)

    @functools.cached_property
    def _process(self) -> ContinualProcess:
        with _without_information(), runtime.in_process():
            return self.process()

    @functools.cached_property
    def _work(self) -> Any:
        """The client work: network and layout of states. Only a method of the user's is composed for it."""
        if self.plan.own_method:
            return self._process.work
        with _without_information(), compose.in_parts():
            return self.process().work

    @functools.cached_property
    def state(self) -> RunState:
        """The state at the last checkpoint: server, clients, knowledge base.

        States that clients keep themselves (`--client-dir`) are read where they lie.

        Raises:
          RunError: there is none, or the clients' files are not on this machine.
        """
        return self.read_state()

    def read_state(self) -> RunState:
        """`state`, read anew: whoever gets it may change it."""
        with _without_information(), runtime.in_process():
            server = self._process.initialize()
        process = self._process
        return self._read(server, messages.entries(process.client_state_type), process.knowledge_size)

    @functools.cached_property
    def _learned(self) -> RunState:
        """`state` with no more of the server's than its shared vector, without a process."""
        work = self._work
        if self.plan.own_method:
            return self.state
        shared = {"shared": np.zeros(work.shared_type.shape, work.shared_type.dtype)}
        return self._read(shared, work.state_type, work.knowledge_size)

    def _read(self, server: Any, names: Mapping[str, Any], knowledge_size: int) -> RunState:
        kept = self.settings.get("client_store") == "files"
        held = client_files.handle_of(names) if kept else names
        store = ClientStore([dict.fromkeys(held, np.zeros([0])) for _ in range(self.num_clients)])
        template = RunState(server, store, KnowledgeBase(knowledge_size))
        found = Checkpoints(self.directory / "checkpoints").latest(template, History(self.directory / "history.jsonl"))
        if found is None:
            raise RunError(f"{self.directory} holds no checkpoint, and models come from the last of a run")
        if kept:
            try:
                states = [client_files.read_state(found.store[client]) for client in range(len(store))]
                found.store = ClientStore({name: state[name] for name in names} for state in states)
            except (RunError, KeyError) as error:
                reason = f"a state lacks {error}" if isinstance(error, KeyError) else error
                raise RunError(f"{self.directory}: its clients keep their states themselves; {reason}") from None
        return found

    def parameters(self, client: int, task: int) -> Parameters:
        """What a client's model of a task is made of.

        Raises:
          InputError: no such client or task.
          RunError: a run that has not come so far, or whose models cannot be read.
        """
        import tensorflow as tf

        from tffcl.client_works import DecomposedWork, PlainWork, RehearsalWork

        self.check(client, task)
        state, work = self._learned, self._work
        if isinstance(work, RehearsalWork):
            return Parameters(work.model, np.asarray(state.server["shared"]), np.zeros([0], np.float32))
        own = self._own_number(client, task)
        held = state.store[client]
        view = {name: tf.convert_to_tensor(value) for name, value in work.task_view(held, own).items()}
        if isinstance(work, DecomposedWork):
            ids = state.selections[task][client]
            return Parameters(
                work.network, work.evaluated_kernel(view).numpy(), view["local"].numpy(), view["attention"].numpy(),
                state.base.rows(ids), held["plan"],
            )  # fmt: skip
        if isinstance(work, PlainWork):
            network: Any = work.network
            kernels = np.asarray(work.penalties.kernels(np.asarray(state.server["shared"])))
            local = view["local"].numpy()
            if isinstance(network, Whole):
                kernels, local = (np.asarray(part) for part in network.parts(tf.constant(kernels)))
                network = network.inner
            return Parameters(network, kernels, local, plan=held["plan"])
        raise RunError(f"{self.directory}: no model can be taken out of a {type(work).__name__}")

    def _own_number(self, client: int, task: int) -> int:
        """The client's own number of a task of the run: it counts those in which it was enrolled."""
        table = self.settings.get("enrollment")
        return task if table is None else table[client][:task].count("*")

    def require_finished(self) -> None:
        """Raises RunError for a run that has not come to its end."""
        if not self.finished:
            raise RunError(
                f"{self._so_far()}; go on with it: tffcl run METHOD ... --output-dir {self.directory} --resume"
            )

    def _so_far(self) -> str:
        return f"{self.directory} is not finished: {self.ended} of {self.num_tasks} tasks are learned"

    def tasks_of(self, client: int) -> list[int]:
        """Numbers of the tasks that a client has learned, ascending."""
        self.check(client, 0, enrolled=False)
        table = self.settings.get("enrollment")
        return [task for task in range(self.ended) if table is None or table[client][task] == "*"]

    def check(self, client: int, task: int, enrolled: bool = True) -> None:
        """Raises InputError for a client or task that the run does not have, RunError for one not learned yet.

        `enrolled`: also for a task in which the client took no part.
        """
        for what, number, count in (("client", client, self.num_clients), ("task", task, self.num_tasks)):
            if isinstance(number, bool) or not 0 <= number < count:
                raise InputError(f"{self.directory} has no {what} {number!r}; its {what}s are 0 to {count - 1}")
        table = self.settings.get("enrollment")
        if enrolled and table is not None and table[client][task] != "*":
            raise InputError(f"{self.directory}: client {client} took no part in task {task}")
        if task >= self.ended:
            raise RunError(self._so_far())

    def model(self, client: int, task: int) -> tf.keras.Model:
        """A client's model of one of its tasks as a plain Keras model, which loads without tffcl and without TFF.

        It takes what the data are made of: a text, an image's pixels as they were, raw columns, rows of 0 and 1. See
        `tffcl.use.keras_models`.

        Raises:
          InputError: no such client or task.
          RunError: the directory does not hold what the model is made of, or the run has not come so far.
        """
        from tffcl.use import keras_models

        if (client, task) not in self._models:
            self._models[client, task] = keras_models.build(self, client, task).model
        return self._models[client, task]


def load_run(directory: Union[str, os.PathLike[str], None], *, allow_code: bool = False) -> FinishedRun:
    """Reads a run directory; nothing is written, and no data file runs code.

    Shown in docs/from-run-to-use.md.

    Args:
      directory: what a run left, finished or not; `Results.directory`.
      allow_code: where the run's method stands in a file or package of the user's, import it, which runs its code.

    Raises:
      RunError: there is no run, or its files are damaged, or results that are in memory alone have no directory.
    """
    if directory is None:
        raise RunError("no run directory: the results are in memory alone; give run_program an output_dir")
    folder = pathlib.Path(directory)
    storage.check_run(folder, RunError)
    return FinishedRun(folder, allow_code)


@contextlib.contextmanager
def _without_information() -> Iterator[None]:
    """Inside, nothing is logged of where computations run and how networks are made: a run said so when it began."""
    logger = logging.getLogger("tffcl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _events(path: pathlib.Path) -> list[Event]:
    """The lines of history.jsonl, but for a last one that was cut off."""
    if not path.exists():
        return []
    lines = storage.read_regular(path, "the history of a run", error=RunError).split(b"\n")[:-1]
    return [storage.parse_object(line, f"{path}, line {number}", RunError) for number, line in enumerate(lines, 1)]
