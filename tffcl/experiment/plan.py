"""Plan: an experiment with its data at hand, and the run that comes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import datasets, errors, metrics, program, runtime, storage, streams, transfers
from tffcl.aggregators import ClientPrivacy
from tffcl.algorithms.fed_avg import Importance
from tffcl.client_works import RehearsalModel
from tffcl.client_works.options import LocalTraining
from tffcl.experiment import Experiment, densities, frozen, loading, record
from tffcl.experiment.groups import GROWING, Runtime
from tffcl.models import EmbeddingClassifier, FrozenEncoder, MADENetwork, Network, Whole
from tffcl.models.network import with_label_mask
from tffcl.options import OptionError
from tffcl.program import cohorts
from tffcl.program.client_data import ArrayData, EvaluatedOnValidation, scaled
from tffcl.program.events import accuracy_by_round
from tffcl.program.reporters import default_reporters
from tffcl.program.results import Results
from tffcl.program.state import RunState
from tffcl.runtime import quiet
from tffcl.templates import ContinualProcess, with_task_inference
from tffcl.transfers.options import Selection

logger = logging.getLogger(__name__)

_FISHER = "Fisher information, from which the updates follow without noise"


class Plan:
    """What a run is built of; a method builds its process from it.

    Shown in examples/fedseit_trec.py.

    Args:
      experiment: method, data and options.

    Attributes:
      experiment: with the data named.
      method: of the experiment.
      kind: kind of the data as the network takes them.
      dataset: the data set; of domains, `Domains`.
      stream: the tasks before they were pooled.
      data: the clients' data as the method meets them.
      transfer: what each client receives from the knowledge base.

    Raises:
      TffclError: options or data that cannot be used.
    """

    def __init__(self, experiment: Experiment):
        if experiment.data is None:
            experiment = experiment.replace(data=loading.usual_data(experiment))
        self.experiment, self.kind = experiment, experiment.kind
        self.method: Any = experiment.method
        self._groups = experiment.groups
        clients = 1 if self.method.clients == "single" else experiment.num_clients
        self.enrollment = loading.enrollment_of(experiment)
        if experiment.output_dir is not None:
            self._check_folders(pathlib.Path(experiment.output_dir))
        self.dataset: Any = None if experiment.data in loading.PAIRS else loading.load(experiment)
        if experiment.scenario == "domains":
            self.dataset = loading.domains_of(experiment, self.dataset)
        # All that options and labels may get wrong comes before word vectors are trained.
        self.stream = loading.stream_of(experiment, self.dataset, clients, self.enrollment)
        self._log_data()
        if self.kind == "text":
            self.dataset = loading.encoded(experiment, self.dataset)
        self.data = self.client_data(self.stream, self.method.pool)
        self.transfer = self._transfer()
        self.recorded: dict[str, Any] = {}  # what the method adds to config.json
        self.frozen: Optional[frozen.Frozen] = None
        self.folder: Optional[pathlib.Path] = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "experiment":
            raise AttributeError(name)
        return getattr(self.experiment, name)

    def group(self, kind: type) -> Any:
        """The options that a dataclass declares, with their values."""
        return self._groups[kind]

    @property
    def training(self) -> LocalTraining:
        """Epochs, batches, learning rate."""
        return self._groups[LocalTraining]

    def _log_data(self) -> None:
        data: Any = self.dataset
        if isinstance(data, datasets.Domains):
            height, width = data.image_size
            what = f"images of {height} x {width}, {data.num_labels} labels; tasks: {', '.join(self.task_names[0])}"
        else:
            train, test = len(data.train_labels), len(data.test_labels)
            what = f"{train} training and {test} test examples, {len(data.label_names)} labels"
        logger.info(
            "data: %s, %s; %d rounds a task, up to %d epochs", data.name, what, self.num_rounds, self.num_epochs
        )
        if self.heads_by_task:
            told = "known, so that scores do not compare with those of one growing head"
            inferred = "inferred, of those that the client has learned, by the lowest entropy"
            logger.info("test: the task of each example is %s", told if self.task_at_test == "known" else inferred)

    # -- data -----------------------------------------------------------------------------------------------------

    @property
    def one_head(self) -> bool:
        """Whether labels are the data set's, with one head over all of them."""
        by_label = self.kind != "binary" and self.method.by_label(self)
        return by_label or self.method.pool != "none" or self.growing or self.experiment.scenario == "domains"

    @property
    def growing(self) -> bool:
        """Whether one head grows with the classes seen, and no task label is known at test."""
        return self.incremental and not self.method.by_task

    @property
    def heads_by_task(self) -> bool:
        """Whether clients have parameters for each task, and a test example may be of any class seen."""
        return self.incremental and self.method.by_task

    @property
    def incremental(self) -> bool:
        """Whether a test example may be of any class seen: with a growing head, or with parameters for each task."""
        return self.experiment.scenario in GROWING

    @property
    def num_classes(self) -> int:
        """Classes of the network's head."""
        if self.one_head:
            return len(self.dataset.label_names)
        return max(len(task.labels) for tasks in self.stream.tasks for task in tasks)

    @property
    def label_mask(self) -> bool:
        """Whether tasks that differ in their labels have one head, in which only labels that may occur compete."""
        return self.one_head and self.experiment.scenario != "domains" and self.kind != "binary"

    def _plain_vectors(self) -> np.ndarray:
        """Training examples, float32 `[N, D]`: pixels in [0, 1], columns, or the mean of a document's word vectors."""
        data: Any = self.dataset
        if self.kind == "text":
            tokens = data.train_tokens
            return transfers.document_vectors(tokens.values, tokens.row_splits[:-1], tokens.lengths, data.embedding)
        rows = data.train_x if self.kind == "vector" else scaled(data.train_images, data.max_value)
        return np.reshape(rows, [len(rows), -1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an example as the network takes it; the dimension of word vectors for text."""
        data: Any = self.dataset
        if self.kind == "text":
            return (int(data.embedding.shape[1]),)
        if self.kind == "binary":
            return (data.width,)
        if self.kind == "vector":
            shape = tuple(map(int, data.train_x.shape[1:]))
            return (math.prod(shape),) if self.method.own_network else shape  # an encoder takes vectors
        size = data.image_size if isinstance(data, datasets.Domains) else data.train_images.shape[1:]
        return (*map(int, size), 1)

    def client_data(self, stream: streams.TaskStream, pool: str = "none") -> Any:
        """Data divided by a stream of the first tasks of this run, as a method with a pool meets them."""
        made = self._client_data(stream, pool)
        if self.experiment.evaluate_on == "test":
            return made
        own = self._client_data(stream, "none") if pool == "cumulative" else made
        return EvaluatedOnValidation(made, own)

    def _client_data(self, stream: streams.TaskStream, pool: str) -> Any:
        data: Any = self.dataset
        if isinstance(data, datasets.Domains):
            data = dataclasses.replace(data, domains=data.domains[: stream.num_tasks])
            form: dict[str, Any] = {} if self.method.own_network else {"encoder_input": "features", "scaled": True}
            if pool == "all":
                return program.OfflineDomainData(data, stream, **form)
            if pool == "replay":
                own = (self.method.remembered(self), self.split_seed, self.method.task_memory(self))
                return program.ReplayedDomainData(data, stream, *own, **form)
            if pool == "cumulative":
                every = stream.num_tasks * max(len(task.train) for tasks in stream.tasks for task in tasks)
                return program.ReplayedDomainData(data, stream, every, self.split_seed, **form)
            return program.DomainClientData(data, stream, **form)
        growing: dict[str, Any] = {
            "growing": self.growing,
            "own_classes": self.growing and self.train_classes == "own",
            "common_tests": self.heads_by_task,
        }
        if pool == "memory":
            plain = self._plain_vectors() if self.method.herds(self) else None
            per_class = self.method.remembered(self)
            pooled = streams.with_memory(stream, data.train_labels, per_class, self.split_seed, plain)
        else:
            pooled = loading.pooled(stream, pool)
        if self.kind == "text":
            return program.TextClientData(data, pooled, self.one_head, **growing)
        if self.kind == "binary":
            return program.DensityClientData(data, pooled)
        if self.kind == "vector":
            vectors = [part.reshape(len(part), *self.input_shape) for part in (data.train_x, data.test_x)]
            arrays = (vectors[0], data.train_labels, vectors[1], data.test_labels)
        else:
            images = [data.train_images, data.test_images]
            if not self.method.own_network:
                images = [scaled(part, data.max_value) for part in images]
            arrays = (images[0], data.train_labels, images[1], data.test_labels)
        return ArrayData(
            pooled,
            *arrays,
            num_labels=len(data.label_names),
            entry="x" if self.method.own_network else "features",
            one_head=self.one_head,
            **growing,
        )

    @property
    def task_names(self) -> list[list[str]]:
        """What each client learns in each task."""
        if isinstance(self.dataset, datasets.Domains):
            names = [domain.name for domain in self.dataset.domains]
            return [names] * (1 if self.method.pool == "all" else self.stream.num_clients)
        return loading.task_names(self.stream, self.dataset.label_names)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short sum over all data of the run, so that it is not resumed with other ones."""
        data: Any = self.dataset
        if isinstance(data, datasets.Domains):
            sums = []
            for number, domain in enumerate(data.domains):
                for client in range(self.stream.num_clients):
                    task = self.stream.task(client, number)
                    sums += [domain.train_images(task.train), domain.train_labels[task.train]]
                    sums += [domain.test_images(task.test), domain.test_labels[task.test]]
            return loading.checksum(sums)
        if self.kind == "text":
            tokens = (data.train_tokens, data.test_tokens)
            words = [array for part in tokens for array in (part.values, part.row_splits)]
            return loading.checksum([data.embedding, *words, data.train_labels, data.test_labels])
        if self.kind == "image":
            names = ("train_images", "train_labels", "test_images", "test_labels")
        else:
            names = ("train_x", "train_labels", "test_x", "test_labels")
        return loading.checksum(getattr(data, name) for name in names)

    # -- the process ----------------------------------------------------------------------------------------------

    def _transfer(self) -> transfers.Transfer:
        if self.method.foreign is None:
            return transfers.NoTransfer()
        own = self.experiment.own.get("method")
        return self.group(Selection).transfer(
            self.num_tasks,
            self.seed,
            len(self.dataset.label_names),
            None if own is None else self.group(own),
            self.stream.named_labels(self.dataset.label_names),
        )

    def network(self, num_foreign: Optional[int] = None) -> Network:
        """The network, with places for what the transfer gives."""
        if self.experiment.network is None:
            raise errors.InputError(f"network: {self.method.name} has a network of its own")
        places = self.transfer.num_foreign(self.data.num_clients) if num_foreign is None else num_foreign
        network: Any = self.experiment.network.build(self, places)
        if self.growing:
            network = Whole(network)
        return with_label_mask(network, self.growing) if self.label_mask else network

    @property
    def privacy(self) -> Optional[ClientPrivacy]:
        """Clipping and noise on the updates of the base, if asked for."""
        chosen = self.experiment
        if chosen.dp_base_clip is None or chosen.dp_base_noise is None:
            return None
        given = {} if chosen.dp_base_delta is None else {"delta": chosen.dp_base_delta}
        return ClientPrivacy(
            clip=chosen.dp_base_clip,
            noise_multiplier=chosen.dp_base_noise,
            clients_per_round=chosen.clients_per_round or chosen.num_clients,
            quantile=chosen.dp_base_quantile,
            uncovered=(_FISHER,) if Importance in self._groups and "curv" in self.method.name else (),
            **given,
        )

    def aggregator(self) -> Any:
        """The builders' argument `aggregator`: None unless noise is asked for."""
        privacy = self.privacy
        return None if privacy is None else privacy.factory()

    def rehearsal_model(self, pretrained: bool, noise: bool) -> RehearsalModel:
        """FIL-VER's frozen encoder with a classifier (`tffcl.experiment.frozen.freeze`)."""
        self.frozen = frozen.freeze(self, pretrained, noise, self.folder)
        self.recorded["encoder_checksum"] = self.frozen.checksum
        return self.frozen.model

    def plain_encoder(self) -> FrozenEncoder:
        """Examples as they are: pixels in [0, 1], columns, or the mean of a document's word vectors."""
        return frozen.plain_encoder(self)

    def embedding_classifier(self) -> EmbeddingClassifier:
        """FIL-VER's encoder and classifier as one network, to be trained end to end."""
        self.recorded["encoder_checksum"] = None
        return frozen.build_network(self)

    # -- the run --------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """All that config.json records besides the driver's own settings."""
        recorded = {
            **self.experiment.config(),
            "dataset": self.dataset.name,
            "data_fingerprint": self.fingerprint,
            **self.recorded,
        }
        if self.kind == "text":
            recorded["embedding_size"] = self.input_shape[0]
        else:
            recorded["tasks"] = self.task_names
        return recorded

    def directory(self) -> pathlib.Path:
        """--output-dir, else the first of runs/METHOD-DATA-seedN, ...-2, ...-3 that is not there yet.

        Raises:
          RunError: a run is there, and it is not to be resumed; or it, or --client-dir, is nowhere to write to.
        """
        data = self.dataset.name.replace(" ", "-")
        base = pathlib.Path("runs") / f"{self.experiment.label}-{data}-seed{self.seed}"
        names = itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))
        folder = pathlib.Path(self.output_dir or next(name for name in names if not os.path.lexists(name)))
        self._check_folders(folder)
        logger.info("run directory: %s", folder)
        return folder

    def _check_folders(self, folder: pathlib.Path) -> None:
        """Raises RunError, before anything heavy begins, where the run could not be kept."""
        storage.check_folder(folder, "a run directory")
        if self.client_dir is not None and self.experiment.runtime != "remote":
            storage.check_folder(self.client_dir, "the folder of clients' states")
        if not self.resume and os.path.lexists(folder / "config.json"):
            raise errors.run_exists(folder)

    def open_runtime(self) -> contextlib.AbstractContextManager:
        """The TFF runtime of --runtime, to be entered."""
        self._check_noise()
        if self.experiment.runtime == "in-process":
            return runtime.in_process(threads_per_client=self.threads_per_client)
        if self.workers is not None:
            return runtime.remote(
                self.group(Runtime).addresses, call_timeout=self.call_timeout, on_lost_worker=self.on_lost_worker
            )
        return runtime.local(repeatable=self.dp_base_noise is None)

    def _check_noise(self) -> None:
        if self.dp_base_noise is None:
            return
        if self.experiment.runtime == "remote":
            logger.info(
                "privacy: the workers have to be started with TF_DETERMINISTIC_OPS=0, for their noise has no seed"
            )
        elif os.environ.get("TF_DETERMINISTIC_OPS", "0") not in ("0", "false"):
            raise OptionError(
                "dp_base_noise",
                "noise that could be repeated protects nobody, and TF_DETERMINISTIC_OPS in the environment forbids any "
                "other; unset it",
            )

    def client_files(self) -> Optional[program.ClientFiles]:
        """Where --client-dir has the clients keep their states; None without it."""
        folder = self.client_dir
        if folder is None:
            return None
        return program.ClientFiles(folder if self.experiment.runtime == "remote" else os.path.abspath(folder))

    def run(self, build: Optional[Callable[[Plan], ContinualProcess]] = None) -> Results:
        """All tasks and rounds, from the data to the results in the run directory.

        Args:
          build: makes the process in the place of the method.
        """
        self.folder = self.directory()
        # A tracker that is missing is found before anything is built.
        progress = "quiet" if self.experiment.quiet else "verbose" if self.experiment.verbose else "normal"
        config = self.experiment.config()
        reporters = default_reporters(self.folder, config, progress=progress, track=self.experiment.track)
        comes_and_goes = self.experiment.scenario == "domains" and self.method.pool != "all"
        enrollment = self.participation() if self.incremental else self.enrollment if comes_and_goes else None
        with self.open_runtime():
            process = (build or self.method.process)(self)
            if self.heads_by_task and self.task_at_test == "entropy":
                process = with_task_inference(process)
            quiet.collect_as_usual()
            begin = self._begin(process)
            return program.run_program(
                process,
                self.data,
                self.transfer,
                num_rounds=self.num_rounds,
                seed=self.seed,
                clients_per_round=self.clients_per_round,
                evaluate_every=self.evaluate_every,
                output_dir=self.folder,
                resume=self.resume,
                reporters=reporters,
                config=self.config(),
                enrollment=enrollment,
                privacy=self.privacy,
                client_files=self.client_files(),
                on_start=functools.partial(self._on_start, process),
                finish=self._finish,
                keep=self.keep,
                begin=begin,
            )

    def participation(self) -> Optional[streams.Enrollment]:
        """Of new classes or rows: who has examples to train on when; None for all in all tasks, and without clients."""
        if self.method.pool in ("clients", "all"):
            return None
        found = streams.participation(
            self.data.stream if self.experiment.evaluate_on == "test" else self.data.data.stream
        )
        rows = [set(row) for row in found.table()]
        nothing = [client + 1 for client, row in enumerate(rows) if "*" not in row]
        some = [client + 1 for client, row in enumerate(rows) if len(row) > 1 and "*" in row]
        if nothing:
            which = _clients(nothing, len(rows))
            logger.warning("data: %s no examples at all; more --alpha or fewer clients give them some", which)
        if some:
            logger.info("data: %s no examples in some tasks, and no part in these", _clients(some, len(rows)))
        return None if found.name == "full" else found

    def _begin(self, process: ContinualProcess) -> Any:
        """State and events to begin with, where that is not a process that has learned nothing."""
        del process

    def _on_start(self, process: ContinualProcess, folder: Optional[pathlib.Path]) -> None:
        """Writes experiment.toml, with which `--config` starts such a run again, the frozen encoder, and the record."""
        if folder is None:
            return
        with contextlib.suppress(OptionError):  # of objects that no file can name
            text = self.experiment.replace(output_dir=None, resume=False, track=None).to_toml()
            storage.write_whole(folder / "experiment.toml", text.encode())
        if self.frozen is not None:
            self.frozen.write(folder)
        record.write(self, process, folder)

    def _finish(
        self, process: ContinualProcess, state: RunState, folder: Optional[pathlib.Path], results: Results
    ) -> dict[str, Any]:
        """Figures of `results.json` that the driver does not have.

        memory: see `frozen.memory_of`; pretraining_accuracy: on task 1, before the run; others: see
        `_of_original_tasks`, `densities.finish` and, in the scenario `mixed`, `transfers.selection_shares`.
        incremental, with one growing head, or a head for each task where a class may be of any:
        `metrics.incremental_figures`, `by_round` (`accuracy_by_round`) and `memory` (`metrics.memory_figures`).
        """
        more: dict[str, Any] = {}
        if self.method.schedule == "fil-ver" and self.method.own_network:
            more["memory"] = frozen.memory_of(self, state)
            if self.frozen is not None and self.frozen.trained:
                more["pretraining_accuracy"] = self.frozen.accuracy
        by_task = results.scores_by_task
        if self.method.pool in ("clients", "all") and len(state.store):
            more.update(self._of_original_tasks(process, state))
            by_task = np.array(more.get("accuracy_by_task"), float)
        if self.incremental:
            tests, owned = self._examples_by_task()
            pooled = self.method.pool in ("clients", "all")
            more["incremental"] = {
                **metrics.incremental_figures(by_task if self.growing else results.scores, tests, owned),
                "by_round": accuracy_by_round(results.events, tests.tolist(), self.num_rounds, pooled),
                "memory": self._memory(state, owned),
            }
        if self.experiment.scenario == "mixed" and process.num_foreign:
            named = self.stream.named_labels(self.dataset.label_names)
            more.update(transfers.selection_shares(named, state.base.entries, state.selections))
        if isinstance(getattr(process.work, "network", None), MADENetwork) and len(state.store):
            more.update(densities.finish(self, process, state, folder))
        return more

    def _memory(self, state: RunState, owned: np.ndarray) -> dict[str, float]:
        """`metrics.memory_figures` at the end; where all data are in one place, of that."""
        states = [state.store.num_bytes(client) for client in range(len(state.store))]
        if self.method.pool == "memory":
            per_class = self.method.remembered(self)
            counts = streams.class_counts(self.stream, self.dataset.train_labels, len(self.dataset.label_names))
            examples = np.minimum(counts, per_class).sum(axis=1)
        else:
            examples = owned.sum(axis=1) * (self.method.pool != "none")
        if self.method.pool == "all":
            examples = examples.sum(keepdims=True)
        return metrics.memory_figures(states, examples, loading.example_bytes(self.dataset))

    def _examples_by_task(self) -> tuple[np.ndarray, np.ndarray]:
        """Test examples of each task, int [T], and training examples of each client and task, int [C, T]."""
        tasks = self.stream.tasks
        tests = [max(len(own[number].test) for own in tasks) for number in range(self.stream.num_tasks)]
        return np.array(tests), np.array([[len(task.train) for task in own] for own in tasks])

    def _of_original_tasks(self, process: ContinualProcess, state: RunState) -> dict[str, Any]:
        """Scores of pooled models on each of the tasks that were pooled.

        accuracy_by_task, average_accuracy_by_task: of the one model, all clients together, [1][T] and its mean;
        nll_of_tasks, average_nll_of_tasks: of a density, [C][T] and its mean.
        """
        data = self.client_data(self.stream)
        tasks = [[(client, task) for task in range(data.num_tasks)] for client in range(data.num_clients)]
        newest = None
        if self.growing:  # of each task the first client that has its test set
            having = [next(c for c in range(data.num_clients) if len(self.stream.task(c, t).test)) for _, t in tasks[0]]
            tasks, newest = [list(zip(having, range(data.num_tasks)))], data.task(0, data.num_tasks - 1)
        sums = [
            [
                cohorts.test_of(
                    process, state, min(client, len(state.store) - 1), 0, data.task(client, task), newest=newest
                )
                for client, task in row
            ]
            for row in tasks
        ]
        if cohorts.scores_are(process) == "nll":
            nll = [[float(np.mean(of_task["losses"])) for of_task in tasks] for tasks in sums]
            return {"nll_of_tasks": nll, "average_nll_of_tasks": float(np.mean(nll))}
        counted = [[[float(of_task[name]) for name in ("correct", "count")] for of_task in tasks] for tasks in sums]
        accuracies = [float(right / count) if count else None for right, count in np.sum(counted, axis=0)]
        known = [each for each in accuracies if each is not None]
        return {"accuracy_by_task": [accuracies], "average_accuracy_by_task": float(np.mean(known)) if known else None}


def _clients(numbers: Sequence[int], of: int) -> str:
    """Which clients have something: "clients 2, 4 have", or how many where they are many.

    >>> _clients([2], 5), _clients(range(1, 21), 30)
    ('client 2 has', '20 of 30 clients have')
    """
    if len(numbers) > loading.MOST_CLIENTS:
        return f"{len(numbers)} of {of} clients have"
    return f"client{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} {'have' if len(numbers) > 1 else 'has'}"
