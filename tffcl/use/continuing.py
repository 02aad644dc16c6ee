"""continue_run: a run learns further tasks from new data, without the old data at hand.

Server, clients, knowledge base, masks and heads go on as the run left them, in a run directory of its own, whose
history begins with that of the run. Past tasks are kept but not scored: their test examples are not there. The new data
are divided as the run's were, into `num_tasks` further tasks of each client.

Texts are cut by the run's rule into the run's vocabulary; a word that it lacks is unknown, and keeps its place with the
zero vector, unless `embeddings` has a vector for it. Columns of numbers are scaled as the run's were. Labels that the
run has not seen are appended to its own. A task has no more labels than the run's largest; where all tasks have one
head, that gets a column for each new label, with the first values of a new network.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import tree

from tffcl import datasets, streams
from tffcl.client_works import DecomposedWork, RehearsalModel, RehearsalWork
from tffcl.datasets.encoding import UNKNOWN
from tffcl.errors import InputError, RunError
from tffcl.experiment import frozen, loading
from tffcl.layers.kernels import VectorLayout
from tffcl.program import ClientTask
from tffcl.program.client_data import AnyClientData
from tffcl.program.results import Results
from tffcl.program.state import ClientStore, RunState
from tffcl.templates import ContinualProcess, messages
from tffcl.use.finished import FinishedPlan

if TYPE_CHECKING:
    from tffcl.use.finished import FinishedRun

logger = logging.getLogger(__name__)


class _OldAndNew:
    """Data of which only the tasks from number `first` on are at hand; those before are empty."""

    def __init__(self, new: AnyClientData, first: int, process: ContinualProcess):
        self._new, self._first = new, first
        self.num_clients, self.num_tasks = new.num_clients, first + new.num_tasks
        raw = process.prepare.type_signature.parameter[3].member
        context, examples = ({name: _nothing(kind) for name, kind in messages.entries(raw[part]).items()}
                             for part in ("context", "examples"))  # fmt: skip
        self._empty = ClientTask(context, examples, examples, context, examples)

    def task(self, client: int, task: int) -> Any:
        """See `tffcl.program.ClientData`."""
        return self._empty if task < self._first else self._new.task(client, task - self._first)


def _nothing(kind: Any) -> np.ndarray:
    return np.zeros([size or 0 for size in kind.shape], kind.dtype)


class ContinuedPlan(FinishedPlan):
    """The plan of a run that goes on with new data.

    Args:
      run: the run, at its end.
      data: a table, a folder or a name of data of the run's kind.
      num_tasks: further tasks of each client.
      text_column: the column, or key, of texts.
      label_column: that of labels.
      embeddings: word vectors for new words, as for `tffcl run`; None leaves them unknown.
      options: those of the run that are to be others, as rounds, epochs and the run directory.

    Raises:
      InputError: data of another kind or shape, or too many labels in a task.
      RunError: a run that cannot go on without its data.
    """

    def __init__(
        self, run: FinishedRun, data: str, num_tasks: int, text_column: str, label_column: str,
        embeddings: Optional[str], options: dict[str, Any],
    ):  # fmt: skip
        super().__init__(run.directory, run._allow_code)
        self._run, self._first = run, run.num_tasks
        self._check()
        before, self._old = self.experiment, self.dataset
        given = {name: value for name, value in options.items() if value is not None}
        self.experiment = before.replace(**given, num_tasks=self._first + num_tasks)
        self._groups = self.experiment.groups
        self._head = super().num_classes
        new = self._loaded(data, text_column, label_column)
        self.dataset = self._with_old(new, embeddings)
        divided = before.replace(**given, num_tasks=num_tasks, **({"assign": ()} if before.assign else {}))
        everybody = streams.Enrollment.full(run.num_clients, num_tasks)
        self.new_stream = self._numbered(loading.stream_of(divided, new, run.num_clients, everybody), new.label_names)
        self._check_labels()
        self.stream = streams.TaskStream(self.stream.name, tuple(
            (*old, *(dataclasses.replace(task, task=self._first + task.task) for task in fresh))
            for old, fresh in zip(self.stream.tasks, self.new_stream.tasks)
        ))  # fmt: skip
        self.data = types.SimpleNamespace(num_clients=run.num_clients, num_tasks=self._first + num_tasks)
        self.transfer = self._transfer()
        self.recorded = {"continued_from": run.settings.get("data_fingerprint"), "continued_at_task": self._first}

    def _check(self) -> None:
        folder = self._run.directory
        self._run.require_finished()
        if self.method.pool != "none":
            raise RunError(f"{folder}: {self.method.name} learns from the data of past tasks, which are not at hand")
        if self.experiment.scenario not in ("non-iid", "sequence", "mixed"):
            raise RunError(f"{folder}: the scenario {self.experiment.scenario} cannot be continued with a table")
        if self.privacy is not None or self.transfer.noised:
            raise RunError(f"{folder}: its epsilon is that of a whole run; more tasks need a run of their own")
        if self.experiment.features is not None:
            raise RunError(f"{folder}: learned from features of a file, which further examples do not have")

    @property
    def num_classes(self) -> int:
        """Classes of the network's head: one head grows, those of tasks have the size that they had."""
        return len(self.dataset.label_names) if self.one_head else self._head

    def _loaded(self, data: str, text_column: str, label_column: str) -> Any:
        """The new data set, of the run's kind."""
        found = loading.natural_kind(data, text_column)
        if self.kind == "text" and pathlib.Path(data).suffix in (".csv", ".tsv", ".jsonl"):
            found = "text"  # a table that has no texts, or is none, is refused for what it lacks
        if self.kind not in loading._ALSO[found]:
            raise InputError(f"{self._run.directory} learned from {self.kind} data, and {data} holds {found} data")
        columns = {"text_column": text_column, "label_column": label_column} if loading.is_table(data) else {}
        settings = types.SimpleNamespace(
            data=data, kind=self.kind, data_dir=None, tokeniser=None, binarise=self.experiment.values.get("binarise"),
            split_seed=self.split_seed, features=None, client_column=None,
            **{"text_column": "text", "label_column": "label", **columns},
        )  # fmt: skip
        return loading.load(settings)  # type: ignore[arg-type]

    def _with_old(self, new: Any, embeddings: Optional[str]) -> Any:
        """The new examples as the run would have had them, under its labels and then those that are new."""
        old: Any = self._old
        names = (*old.label_names, *(name for name in new.label_names if name not in old.label_names))
        ids = np.array([names.index(name) for name in new.label_names], np.int32)
        labels = {"label_names": names, "train_labels": ids[new.train_labels], "test_labels": ids[new.test_labels]}
        if self.kind == "text":
            return self._encoded(new, labels, embeddings)
        if embeddings is not None:
            raise InputError(f"embeddings: is for text, and {self._run.directory} learned from {self.kind} data")
        shapes = [getattr(each, "train_images" if self.kind == "image" else "train_x").shape[1:] for each in (old, new)]
        if shapes[0] != shapes[1]:
            raise InputError(f"{new.name}: expected examples of {list(shapes[0])}, found {list(shapes[1])}")
        if self.kind == "image" and old.max_value != new.max_value:
            raise InputError(f"{new.name}: expected pixels of 0 to {old.max_value}, found up to {new.max_value}")
        if self.kind == "binary":
            known = dict(zip(old.label_names, old.widths))
            known.update(zip(new.label_names, new.widths))
            return dataclasses.replace(new, **labels, widths=tuple(known[name] for name in names))
        return dataclasses.replace(self._rescaled(new) if self.kind == "vector" else new, **labels)

    def _rescaled(self, new: datasets.ArrayDataset) -> datasets.ArrayDataset:
        """Columns in the run's order, scaled as the run's were."""
        old, order = self._old, list(range(new.train_x.shape[-1]))
        if old.columns:
            if sorted(old.columns) != sorted(new.columns):
                wanted, found = (", ".join(each)[:150] for each in (old.columns, new.columns))
                raise InputError(f"{new.name}: expected the columns {wanted}, found {found or 'none'}")
            order = [new.columns.index(name) for name in old.columns]
        parts = [((x * new.scale + new.centre)[..., order] - old.centre) / old.scale for x in (new.train_x, new.test_x)]
        return dataclasses.replace(
            new, train_x=parts[0], test_x=parts[1], columns=old.columns, centre=old.centre, scale=old.scale
        )

    def _encoded(
        self, new: datasets.TextDataset, labels: dict[str, Any], embeddings: Optional[str]
    ) -> datasets.EncodedTextDataset:
        old: datasets.EncodedTextDataset = self._old
        if old.unicode is None:
            raise RunError(f"{self._run.directory}: its text went through a tokeniser of your own")
        new = dataclasses.replace(new, unicode=old.unicode)
        documents = [new.tokenise(text)[: old.max_words] for text in (*new.train_texts, *new.test_texts)]
        words, table = old.words, old.embedding
        strange = {word for document in documents for word in document} - set(words)
        if embeddings is not None and strange:
            vectors = datasets.load_word_vectors(embeddings, strange)
            if vectors.vectors.shape[1] != table.shape[1]:
                found = vectors.vectors.shape[1]
                raise InputError(f"embeddings: expected {table.shape[1]} dimensions, as the run has, found {found}")
            words, table = (*words, *vectors.words), np.concatenate([table, vectors.vectors])
            strange -= set(vectors.words)
        if strange:
            logger.info("data: %d words of %s are unknown to the run", len(strange), new.name)
        ids = {word: number for number, word in enumerate(words)}
        rows = [[ids.get(word, UNKNOWN) for word in document] for document in documents]
        train = len(new.train_texts)
        return dataclasses.replace(
            old, name=new.name, words=words, embedding=table, **labels,
            train_tokens=datasets.RaggedTokens.from_rows(rows[:train]),
            test_tokens=datasets.RaggedTokens.from_rows(rows[train:]),
        )  # fmt: skip

    def _numbered(self, stream: streams.TaskStream, names: Sequence[str]) -> streams.TaskStream:
        """A stream of the new data's own labels with those that the run numbers them by."""
        ids = [self.dataset.label_names.index(name) for name in names]

        def numbered(task: streams.Task) -> streams.Task:
            labels, tested = (tuple(sorted(ids[k] for k in each)) for each in (task.labels, task.test_labels))
            return dataclasses.replace(task, labels=labels, test_labels=tested)

        return dataclasses.replace(
            stream, tasks=tuple(tuple(map(numbered, tasks)) for tasks in stream.tasks), excluded_labels=()
        )

    def _check_labels(self) -> None:
        if self.one_head:
            return
        largest = max(len(task.labels) for tasks in self.new_stream.tasks for task in tasks)
        if largest > self._head:
            raise InputError(
                f"labels_per_task: {largest} labels in a task, but the run's heads have {self._head}; give fewer"
            )

    def rehearsal_model(self, pretrained: bool, noise: bool) -> RehearsalModel:
        """FIL-VER's frozen encoder; the classifier's weights come with the server's state."""
        model = frozen.kept_model(self, noise, self._run.directory, first=False)
        self.frozen = frozen.Frozen(model)
        return model

    def _begin(self, process: ContinualProcess) -> tuple[RunState, Sequence[Any]]:
        old, state = self._run._process, self._run.read_state()
        added = isinstance(process.work, DecomposedWork) and process.work.network.adds_foreign
        if process.num_foreign < old.num_foreign or (process.num_foreign > old.num_foreign and not added):
            raise RunError(
                f"{self._run.directory}: its transfer gives up to {old.num_foreign} entries for a task, and with more "
                f"tasks {process.num_foreign}; this cannot be continued"
            )
        self.data = _OldAndNew(self.client_data(self.new_stream), self._first, process)
        more = process.num_foreign - old.num_foreign
        return _grown(_with_places(state, more) if more else state, old, process), self._run.events

    def _finish(
        self, process: ContinualProcess, state: RunState, folder: Optional[pathlib.Path], results: Results
    ) -> dict[str, Any]:
        return {}


# -- heads that grow --------------------------------------------------------------------------------------------------


def _grown(state: RunState, old: ContinualProcess, new: ContinualProcess) -> RunState:
    """The state with columns for the labels that are new, where there are any."""
    layouts = [_layouts(process.work) for process in (old, new)]
    if layouts[0] == layouts[1]:
        return state
    shared = [each["shared"] for each in layouts]
    zeros = np.zeros([shared[1].size], np.float32)

    def larger(leaf: Any) -> Any:
        """The moments of an optimizer, which have the form of what it optimizes."""
        values = np.asarray(leaf)
        fits = values.dtype == np.float32 and values.shape == (shared[0].size,)
        return _with_columns(values, zeros, *shared) if fits else leaf

    server = tree.map_structure(larger, state.server)
    first = np.asarray(new.initialize()["shared"])
    server["shared"] = _with_columns(np.asarray(state.server["shared"]), first, *shared)
    store = []
    for client in range(len(state.store)):
        held = state.store[client]
        if "local" in layouts[0]:
            fresh = np.zeros([layouts[1]["local"].size], np.float32)
            for name in ("local", "past_local"):
                held[name] = _with_columns(held[name], fresh, layouts[0]["local"], layouts[1]["local"])
        store.append(held)
    return dataclasses.replace(state, server=server, store=ClientStore(store))


def _with_places(state: RunState, more: int) -> RunState:
    """The state with places for further foreign adaptives, which weigh nothing in the tasks that have ended."""
    store = []
    for client in range(len(state.store)):
        held = state.store[client]
        for name in ("attention", "past_attention"):  # [K, kernels] and [T, K, kernels]
            held[name] = np.pad(held[name], [(0, 0)] * (held[name].ndim - 2) + [(0, more), (0, 0)])
        store.append(held)
    return dataclasses.replace(state, store=ClientStore(store))


def _layouts(work: Any) -> dict[str, VectorLayout]:
    """Of the vectors that have a part for each label."""
    if isinstance(work, RehearsalWork):
        return {"shared": VectorLayout(work.model.classifier.weights.parts)}
    network = getattr(work, "network", None)
    if not isinstance(work, DecomposedWork) or network is None:
        return {"shared": VectorLayout((("shared", tuple(work.shared_type.shape)),))}
    shapes = dict(network.local.parts)
    dense = tuple((name, shapes[name]) for name in work._dense)
    return {"shared": VectorLayout((("base", (network.kernels.size,)), *dense)), "local": network.local}


def _with_columns(values: np.ndarray, first: np.ndarray, old: VectorLayout, new: VectorLayout) -> np.ndarray:
    """Vectors `[..., old.size]` as `[..., new.size]`: parts with more columns have those of `first`, `[new.size]`."""
    parts, start, at = [], 0, 0
    for (_, small), (_, large) in zip(old.parts, new.parts):
        size, wide = int(np.prod(small)), int(np.prod(large))
        part = values[..., start : start + size].reshape(*values.shape[:-1], *small)
        fresh = np.broadcast_to(first[at : at + wide].reshape(large)[..., small[-1] :],
                                (*values.shape[:-1], *large[:-1], large[-1] - small[-1]))  # fmt: skip
        parts.append(np.concatenate([part, fresh], axis=-1).reshape(*values.shape[:-1], wide))
        start, at = start + size, at + wide
    return np.concatenate(parts, axis=-1).astype(np.float32)


def continue_run(
    run: FinishedRun,
    data: str,
    *,
    num_tasks: int = 1,
    output_dir: Union[str, os.PathLike[str], None] = None,
    text_column: str = "text",
    label_column: str = "label",
    embeddings: Optional[str] = None,
    resume: bool = False,
    **options: Any,
) -> Results:
    """Learns further tasks from new data; see the module.

    Shown in docs/from-run-to-use.md.

    Args:
      run: a run that has come to its end; its directory stays as it is.
      data: a table, a folder with `train.*` and `test.*`, or a name of data of the run's kind.
      num_tasks: further tasks of each client.
      output_dir: the new run directory; None for that of the run with `-continued` behind it.
      text_column: the column, or key, of texts.
      label_column: that of labels.
      embeddings: word vectors for words that the run does not know.
      resume: go on with the run in `output_dir` where it stopped.
      **options: other options than the run's, by name: `num_rounds`, `num_epochs`, `labels_per_task`, `runtime`, ...

    Returns:
      The results over all tasks. Past tasks have no score after they were learned: no test examples are at hand.

    Raises:
      InputError: data that do not fit the run.
      RunError: a run that cannot go on without its data, or a directory that cannot be used.
    """
    target = output_dir or run.directory.with_name(f"{run.directory.resolve().name}-continued")
    chosen = {**options, "output_dir": os.fspath(target), "resume": resume}
    plan = ContinuedPlan(run, data, num_tasks, text_column, label_column, embeddings, chosen)
    if pathlib.Path(target).resolve() == run.directory.resolve():
        raise InputError(f"output_dir: {target} is the run that is continued; give another directory")
    run.state  # noqa: B018 - what is wrong with it comes before the new run directory is made
    return plan.run()
