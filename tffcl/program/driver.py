"""run_program: a stream of tasks through a continual process, round by round."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from tffcl import runtime
from tffcl.aggregators import ClientPrivacy
from tffcl.archive import Shelf
from tffcl.errors import InputError, OperationError, RunError
from tffcl.models.network import CLASSES
from tffcl.program import cohorts, events, run_directory
from tffcl.program import state as state_lib
from tffcl.program.client_data import AnyClientData
from tffcl.program.client_files import ClientFiles
from tffcl.program.client_folders import StoredData
from tffcl.program.events import Event
from tffcl.program.reporters import Reporter, default_reporters
from tffcl.program.results import Results, Settings, privacy_accounts, results_of
from tffcl.program.state import ClientStore
from tffcl.program.task_data import Summarise, TaskData, check_data
from tffcl.streams import Enrollment
from tffcl.templates import ContinualProcess, messages
from tffcl.transfers import Transfer

logger = logging.getLogger(__name__)

OnStart = Callable[[Optional[pathlib.Path]], None]
Finish = Callable[[ContinualProcess, state_lib.RunState, Optional[pathlib.Path], Results], Mapping[str, Any]]

Begin = tuple[state_lib.RunState, Sequence[Event]]

_PREPARED_AT_ONCE = 32  # clients whose raw data stand in memory together


def run_program(
    process: ContinualProcess,
    data: AnyClientData,
    transfer: Transfer,
    *,
    num_rounds: int,
    seed: int,
    output_dir: Optional[Union[str, os.PathLike[str]]] = None,
    clients_per_round: Optional[int] = None,
    resume: bool = False,
    evaluate_every: str = "round",
    reporters: Optional[Sequence[Reporter]] = None,
    summarise: Optional[Summarise] = None,
    config: Optional[Mapping[str, Any]] = None,
    enrollment: Optional[Enrollment] = None,
    privacy: Optional[ClientPrivacy] = None,
    client_files: Optional[ClientFiles] = None,
    on_start: Optional[OnStart] = None,
    finish: Optional[Finish] = None,
    keep: str = "last",
    begin: Optional[Begin] = None,
) -> Results:
    """Lets every client learn its tasks one after another, in the TFF context that is installed.

    For each task: what each client tells of it, the transfer's choice and the start of the task; its examples
    prepared, once; `num_rounds` rounds, each with an evaluation of all tasks so far, a line of history and a
    checkpoint; the end of the task, when what was learned enters the knowledge base.

    With an enrollment, only the clients that are active in a task take part in any of this. One that has left is still
    scored on the tasks that it had, and what it had sent is still there. A task in which nobody is active runs no
    computation and changes nothing; it has its lines of history all the same.

    Shown in docs/papers.md.

    Args:
      process: what clients and server do.
      data: what each client learns in each task.
      transfer: which entries of the knowledge base each client receives for a task.
      num_rounds: rounds for each task.
      seed: root of all randomness.
      output_dir: the run directory, made here (config.json, history.jsonl, checkpoints/, results.json); None
        keeps everything in memory.
      clients_per_round: how many clients take part in a round, drawn anew each time; None for all.
      resume: go on where the run in `output_dir` stopped; its results are those of a run that never did.
      evaluate_every: "round", or "task" for only the end of each task.
      reporters: get every event; None for a progress bar and, with a run directory, TensorBoard and CSV.
      summarise: makes the document vectors, float32 `[N, D]`, that a transfer summarises; by default the
        mean of each document's word vectors.
      config: further settings to record, "method" and "dataset" among them; a run is resumed only with the
        same.
      enrollment: which clients are active in which tasks, recorded in the configuration as its table; the data of the
        others must be empty there. None for all in all.
      privacy: what the process's aggregator was built with, for its account in the results (`privacy`).
      client_files: where clients keep their states, in files on the machines of their workers; None for all in the
        memory of this program.
      on_start: called with the run directory's path (None in memory) once the directory is this run's own, before
        anything is learned.
      finish: called with the process, the state at the end, the path and the results so far; what it returns is added
        to the results. Of clients whose states nobody here can read, the state has none.
      keep: what stays of the checkpoints after the end: "last", one compact state, whose large arrays are rounded to 8
        significant bits; "all", the last two checkpoints as they are; "none". Until then the last two stay.
      begin: state and events at the end of another run, whose clients go on here with the task number `state.task`.
        Data of the tasks before it may be empty: they are then not scored any more.

    Returns:
      The results, as they stand in results.json.

    Raises:
      InputError: data or settings that cannot be used; the message names the client and the task.
      RunError: a run directory that exists already or is of another run, a full disk, a lost worker; a file of a client
        that cannot be written or read (the message names the client and the path).
    """
    if keep not in run_directory.KEEP:
        raise InputError(f"keep: expected one of {', '.join(run_directory.KEEP)}; found {keep!r}")
    settings = Settings(num_rounds, seed, clients_per_round, evaluate_every)
    client_files = _checked_files(client_files, process, data, transfer)
    check_data(process, data, enrollment, 0 if begin is None else begin[0].task)
    wanted = transfer.num_foreign(data.num_clients)
    if wanted != process.num_foreign:
        raise InputError(
            f"transfer: gives up to {wanted} entries to each of {data.num_clients} clients, but the process was "
            f"built for {process.num_foreign}; build it with num_foreign={wanted}"
        )
    full_config = {**(config or {}), **vars(settings), "num_clients": data.num_clients, "num_tasks": data.num_tasks}
    if enrollment is not None:
        full_config["enrollment"] = list(enrollment.table())
    if client_files is not None:
        full_config["client_store"] = "files"
    tasks = TaskData(data, transfer, settings.seed, summarise, enrollment)
    with run_directory.open_run(output_dir, full_config, resume) as directory:
        reporting = default_reporters(output_dir, full_config) if reporters is None else reporters
        if on_start is not None:
            on_start(directory.path)
        stored = directory.finished()
        if stored is not None:
            return _as_it_ended(stored, directory, cohorts.scores_are(process), full_config)
        run = _Run(process, tasks, transfer, settings, directory, reporting, client_files, privacy, begin)
        history = run.to_the_end()
        results = results_of(history, cohorts.scores_are(process), full_config)
        if finish is not None:
            results = dataclasses.replace(results, more=finish(process, run.last_state(), directory.path, results))
        accounts = privacy_accounts(privacy, history, tasks.enrollment, process, transfer)
        results = dataclasses.replace(results, privacy=accounts)
        directory.finish(results.to_json(), run.state, keep)
    return dataclasses.replace(results, directory=directory.path)


def _checked_files(
    client_files: Optional[ClientFiles], process: ContinualProcess, data: AnyClientData, transfer: Transfer
) -> Optional[ClientFiles]:
    """Raises InputError for files where clients cannot keep all that they have to."""
    if client_files is not None and process.consolidate is not None:
        raise InputError("client_files: the server has to be told which classes there were; leave client_files out")
    if client_files is not None and process.infer is not None:
        raise InputError(
            "client_files: to infer a task its examples meet the parameters of all tasks, and files hold them as their "
            "own meet them; leave client_files out"
        )
    if not isinstance(data, StoredData):
        return client_files
    if client_files is None or transfer.needs_summaries:
        raise InputError(
            "stored data: needs client_files, and a transfer that is told nothing of the examples (not SIT)"
        )
    return dataclasses.replace(client_files, stored_data=True)


def _as_it_ended(
    stored: Mapping[str, Any], directory: run_directory.RunDirectory, scores_are: str, config: Mapping[str, Any]
) -> Results:
    """The results of a run that has ended: of its history, and what stands in results.json besides."""
    results = results_of(directory.history.events, scores_are, config)
    more = {name: value for name, value in stored.items() if name not in {**results.to_json(), "privacy": None}}
    return dataclasses.replace(results, more=more, privacy=stored.get("privacy", {}), directory=directory.path)


class _Run:
    """One run; `state` and the history are all that it knows of its past."""

    def __init__(
        self,
        process: ContinualProcess,
        data: TaskData,
        transfer: Transfer,
        settings: Settings,
        directory: run_directory.RunDirectory,
        reporters: Sequence[Reporter],
        client_files: Optional[ClientFiles] = None,
        privacy: Optional[ClientPrivacy] = None,
        begin: Optional[Begin] = None,
    ):
        self.process = process if client_files is None else client_files.process(process)
        self.data, self.transfer, self.settings, self.client_files = data, transfer, settings, client_files
        self.directory, self.reporters = directory, reporters
        self.clients = range(data.num_clients)
        self.watch = events.now()
        rests_on = {state_lib.SUMMARIES: transfer.noised, state_lib.PARTICIPANTS: privacy is not None}
        secret = [name for name, needed in rests_on.items() if needed]
        first, past = (None, ()) if begin is None else begin
        self.state = state_lib.start(
            process, data.num_clients, settings, directory.restore, client_files, secret, first
        )
        if not directory.history.events:
            for event in past:
                directory.history.append(event)
        data.secrets = self.state.secrets.get(state_lib.SUMMARIES)
        self._keeps_secrets = bool(secret) or "secret" in messages.entries(process.client_state_type)
        self.shelf = Shelf()  # of what is prepared
        self.prepared: list[dict[int, cohorts.Prepared]] = []  # [task][client], of those enrolled

    def to_the_end(self) -> list[Event]:
        """Runs all that is left to do, and returns all events."""
        history = self.directory.history
        with self.directory.advising():
            for reporter in self.reporters:
                reporter.start(self.data.num_tasks, self.settings.num_rounds, history.events)
        try:
            if self._keeps_secrets and not history.events:
                # Before anything leaves a client: another secret would tell of the same with other noise.
                self.directory.save(self.state)
            self._prepare_past()
            while self.state.task < self.data.num_tasks:
                self._learn_task()
        except OperationError:
            if self.client_files is not None:  # says whose file it was, if it was one
                self.client_files.check(self.process, self.state.store)
            raise
        finally:
            for reporter in self.reporters:
                reporter.close()
        return history.events

    def last_state(self) -> state_lib.RunState:
        """The state at the end, with the clients' states in it where they can be read."""
        state = self.state
        if self.client_files is not None:
            state = dataclasses.replace(state)
            try:
                state.store = self.client_files.read(state.store)
            except RunError as error:
                logger.warning("what needs the states of clients is left out of the results: %s", error)
                state.store = ClientStore([])
        return state

    def _prepare_past(self) -> None:
        """After a resume: what had been prepared is not kept, but follows from the recorded selections."""
        for task in range(len(self.state.selections)):
            self._prepare(task)
            if task < self.state.task:
                self._forget_training_data(task)

    def _learn_task(self) -> None:
        if not self.state.begun:
            self._begin_task()
        while self.state.round < self.settings.num_rounds:
            self._round()
        self._end_task()

    def _begin_task(self) -> None:
        state, task = self.state, self.state.task
        active = self.data.active(task)
        selections: list[list[int]] = [[] for _ in self.clients]
        if active:
            summaries = list(self.data.summaries(task).values())
            selected = self.transfer.select(state.base, task, active, summaries)
            state.store.set_task(active, task)
            for part in cohorts.parts_below(
                [state.store.num_bytes(client) for client in active], cohorts.MESSAGE_BYTES
            ):
                incoming = self.transfer.transfer_in(state.base, selected[part], len(self.clients))
                states = [state.store[client] for client in active[part]]
                state.store.merge(active[part], self.process.begin_task(state.server, states, incoming))
            for client, entries in zip(active, selected):
                selections[client] = list(map(int, entries))
        state.selections.append(selections)
        self._prepare(task)

    def _prepare(self, task: int) -> None:
        made: dict[int, cohorts.Prepared] = {}
        active = self.data.active(task)
        for start in range(0, len(active), _PREPARED_AT_ONCE):
            raw = {client: self.data.task(client, task) for client in active[start : start + _PREPARED_AT_ONCE]}
            made.update(cohorts.prepare_task(self.process, self.state, self.transfer, raw, task, self.shelf))
        self.prepared.append(made)

    def _forget_training_data(self, task: int) -> None:
        for prepared in self.prepared[task].values():
            prepared.forget_training_data()

    def _round(self) -> None:
        state, active = self.state, self.data.active(self.state.task)
        secret = state.secrets.get(state_lib.PARTICIPANTS)
        participants = state_lib.sample_clients(self.settings, active, state.task, state.round, secret)
        sent_down = events.bytes_down(state, participants, active, self.data.newcomers(state.task), self.process.handed)
        before = events.now()
        reported, measured = self._train(participants) if participants else ({}, {})
        training = events.now() - before
        scores = self._evaluate() if self.settings.evaluate_every == "round" else None
        sent_up = events.bytes_up(state, participants, reported, self.data.summaries(state.task))
        event = events.round_event(state.task, state.round, participants, reported, measured, scores)
        events.add_bytes(event, "up", sent_up)
        events.add_bytes(event, "down", sent_down)
        state.round += 1
        self._record(event, training)

    def _train(self, participants: Sequence[int]) -> tuple[dict[int, Mapping[str, Any]], Mapping[str, Any]]:
        """A round of the process: what it reports for each participant whose worker did not get lost, and measured."""
        state, data = self.state, self._training_data(participants)
        server, reported, measured = cohorts.train_round(self.process, state.server, state.store, participants, data)
        state.fresh = not np.array_equal(state.server["shared"], server["shared"])
        state.server = server
        return reported, measured

    def _training_data(self, clients: Sequence[int]) -> list[Mapping[str, Any]]:
        return [self.prepared[self.state.task][client].training_data() for client in clients]

    def _end_task(self) -> None:
        state, task = self.state, self.state.task
        active = self.data.active(task)
        attention = {client: state.store[client].get("attention") for client in active}
        refused: dict[int, str] = {}
        uploaded = self._upload(active, attention, refused)
        measured = self._consolidate(active)
        event = events.task_event(task, self._evaluate(), state.selections[task], state.base, measured)
        events.add_attention(event, state.selections[task], [attention.get(client) for client in self.clients])
        events.add_bytes(event, "up", {**dict.fromkeys(self.clients, (0, 0)), **uploaded})
        silent = [client for client in active if client not in {**uploaded, **refused}]
        if self.process.num_foreign and silent:
            event["nothing_learned"] = silent
        causes = (self.data.refused(task), refused)
        reasons = {client: "; ".join(each[client] for each in causes if client in each) for client in active}
        if any(reasons.values()):
            events.add_left_out(event, reasons)
        state.task, state.round = task + 1, 0
        self._record(event)
        self._forget_training_data(task)

    def _consolidate(self, active: Sequence[int]) -> Any:
        """What the server does by itself at the end of a task in which anybody was; what it measured, or None."""
        if self.process.consolidate is None or not active:
            return None
        seen = self.prepared[self.state.task][active[0]].test_data()["context"][CLASSES]
        self.state.server, measured = self.process.consolidate(self.state.server, seen)
        return measured

    def _upload(
        self, active: Sequence[int], attention: dict[int, Any], refused: dict[int, str]
    ) -> dict[int, events.Bytes]:
        """Ends the task of some clients; returns the bytes of what each of them adds to the knowledge base.

        `attention` gains that of clients who keep it themselves; `refused` those whose upload is not taken, and why.
        """
        state, task, prepared = self.state, self.state.task, self.prepared[self.state.task]
        sent: dict[int, events.Bytes] = {}
        sizes = [state.store.num_bytes(client) + prepared[client].training_bytes for client in active]
        for part in cohorts.parts_below(sizes, cohorts.MESSAGE_BYTES):
            states = [state.store[client] for client in active[part]]
            changes, uploads = self.process.end_task(state.server, states, self._training_data(active[part]))
            state.store.merge(active[part], changes)
            for client, upload in zip(active[part], uploads):
                if "attention" in upload:
                    attention[client] = upload["attention"]
                if reason := messages.refusal(upload):
                    refused[client] = reason
                # Without transfer nobody would ever read it; it is 0 of one that was left out of all rounds, or is now.
                if self.process.num_foreign and np.any(upload["knowledge"]):
                    entry = state.base.add(client, task, upload["knowledge"], self.data.summaries(task)[client])
                    size = self.process.knowledge_size
                    sent[client] = events.coded_and_dense(state.base.nonzeros(entry), size)
        return sent

    def _evaluate(self) -> dict[str, cohorts.Rows]:
        if not self.data.active(self.state.task):
            history = self.directory.history.events
            return cohorts.unchanged_scores(history, cohorts.scores_are(self.process), len(self.clients))
        if self.process.infer is None:
            scores = cohorts.evaluate_tasks(self.process, self.state, self.prepared, self.data.growing)
        else:
            scores = cohorts.inferred_scores(self.process, self.state, self.transfer, self.prepared, self.data.task)
        return cohorts.without_parameters(scores, self.prepared) if self.data.common_tests else scores

    def _record(self, event: Event, training: Optional[events.Spent] = None) -> None:
        """A line of history, then a checkpoint that knows of it, then the reporters."""
        reading = events.now()
        event["seconds"] = (reading - self.watch).wall
        if training is not None:
            event["training_seconds"] = vars(training)
        self.watch = reading
        if failures := runtime.take_worker_failures():
            event["worker_failures"] = failures
        with self.directory.advising():
            line = self.directory.history.append(event)
            self.directory.save(self.state)
            for reporter in self.reporters:
                reporter.report(line)
