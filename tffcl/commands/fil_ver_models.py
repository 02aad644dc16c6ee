"""The encoder and the classifier that the flags ask for: pre-trained on the first task, frozen, kept with the run.

`encoder.npz` in the run directory holds the encoder, `classifier.npz` the weights of the classifier that was trained
with it, with which the run starts; a run that goes on does so with exactly these.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tffcl import models, program, streams
from tffcl.client_works import LocalTraining, RehearsalModel, randomness
from tffcl.commands.entry import say
from tffcl.commands.fil_ver_flags import END_TO_END
from tffcl.commands.fil_ver_options import FilVerOptions
from tffcl.commands.running import checksum
from tffcl.datasets import Domains
from tffcl.models.encoders import mean_of
from tffcl.program.reporters import Reporter, default_reporters
from tffcl.transfers import archive

BATCH = 1000  # test examples at a time


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenModel:
    """What a run trains and on what, and where it came from.

    Attributes:
      model: the encoder, the classifier and its first weights.
      accuracy: on the test examples of the first task before the run begins, or None without any.
      trained: whether the encoder was pre-trained.
    """

    model: RehearsalModel
    accuracy: Optional[float]
    trained: bool

    @property
    def checksum(self) -> str:
        """Of the encoder's weights and of the classifier's first ones."""
        first = self.model.initial
        return checksum([self.model.encoder.values, *([] if first is None else [first])])


def build_encoder(options: FilVerOptions, domains: Domains) -> models.Encoder:
    """The encoder of the method, without weights."""
    if options.method == "naive":
        return models.IdentityEncoder(domains.image_size, domains.max_value)
    return models.ImageEncoder(
        domains.image_size,
        variational=options.variational,
        embedding_size=options.embedding_size,
        filters=options.filters,
        hidden=options.hidden,
        max_value=domains.max_value,
    )


def build_classifier(options: FilVerOptions, domains: Domains, encoder: models.Encoder) -> models.MLP:
    """The classifier of what the encoder gives."""
    return models.MLP(encoder.embedding_size, domains.num_labels, options.hidden)


def build_network(options: FilVerOptions, domains: Domains) -> models.EmbeddingClassifier:
    """Both in one network: what is pre-trained, and what the end-to-end methods train throughout."""
    encoder = build_encoder(options, domains)
    return models.EmbeddingClassifier(encoder, build_classifier(options, domains, encoder), options.beta)


def model_of(
    options: FilVerOptions, domains: Domains, stream: streams.TaskStream, folder: pathlib.Path
) -> Optional[FrozenModel]:
    """As `freeze`; None for a method in which nothing is frozen."""
    return None if options.method in END_TO_END else freeze(options, domains, stream, folder)


def freeze(
    options: FilVerOptions,
    domains: Domains,
    stream: streams.TaskStream,
    folder: Optional[pathlib.Path] = None,
) -> FrozenModel:
    """Takes the encoder from a run directory that has one, else pre-trains or draws it; says how good it is.

    All methods with the same kind of encoder, the same seed and the same first task get the same one.

    Args:
      options: filled in.
      domains: the first is learned from.
      stream: whose first task is learned from, by the clients that have examples in it.
      folder: the run directory.

    Raises:
      RunError: files in the run directory that cannot be used.
    """
    encoder = build_encoder(options, domains)
    classifier = build_classifier(options, domains, encoder)
    kept = _kept(folder, encoder) if folder is not None and options.resume else None
    if kept is not None:
        frozen, first = kept
    elif options.pretrains:
        frozen, first = _pretrained(options, domains, stream)
    else:
        frozen, first = models.FrozenEncoder(encoder, encoder.initial(_drawn(options.seed)).numpy()), None
    other = None
    if options.method == "noise":
        other = models.FrozenEncoder(encoder, encoder.initial(_drawn(options.seed)).numpy())
    model = RehearsalModel(frozen, classifier, first, other)
    if first is None:
        return FrozenModel(model, None, False)
    tested = program.OfflineDomainData(domains, stream).test_of(0)
    accuracy = accuracy_of(model, first, tested) if len(tested["label"]) else None
    _tell(options, stream, accuracy, kept is not None)
    return FrozenModel(model, accuracy, True)


def _drawn(seed: int) -> tf.Tensor:
    """The key of an encoder that is never trained."""
    return randomness.fold(randomness.root_key(seed), randomness.EXAMPLES)


def _pretrained(
    options: FilVerOptions, domains: Domains, stream: streams.TaskStream
) -> tuple[models.FrozenEncoder, np.ndarray]:
    """The encoder, and the classifier's weights, after the first task (eq. 9, or eq. 7 without a posterior)."""
    first = streams.TaskStream(stream.name, tuple((tasks[0],) for tasks in stream.tasks))
    one = dataclasses.replace(domains, domains=domains.domains[:1])
    central, epochs = options.pretraining == "central", options.pretraining_epochs
    data: Any = (program.OfflineDomainData if central else program.DomainClientData)(one, first)
    return program.pretrain(
        build_network(options, domains),
        data,
        training=LocalTraining(
            num_epochs=epochs if central else 1,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            patience=0,
        ),
        num_rounds=1 if central else epochs,
        seed=options.seed,
        reporters=(),
    )


def _tell(options: FilVerOptions, stream: streams.TaskStream, accuracy: Optional[float], kept: bool) -> None:
    kind = "VEE" if options.variational else "deterministic encoder"
    examples = sum(len(tasks[0].train) for tasks in stream.tasks)
    how = "taken from the run directory" if kept else f"{options.pretraining_epochs} epochs"
    right = "no test examples" if accuracy is None else f"{100 * accuracy:.1f} % of its test examples right"
    say(f"pre-training: {kind}, {options.pretraining}, {examples} examples of task 1, {how}: {right}")


def accuracy_of(model: RehearsalModel, weights: np.ndarray, examples: program.client_data.Tensors) -> float:
    """Share of examples that a classifier with these weights has right, from the centres of their posteriors."""
    right, labels = 0, examples["label"]
    for start in range(0, len(labels), BATCH):
        part = {name: values[start : start + BATCH] for name, values in examples.items()}
        stats = model.encoder.encode({}, part)
        logits = model.classifier.logits(tf.constant(weights), mean_of(model.encoder.encoder, stats))
        right += int((logits.numpy().argmax(axis=1) == part["label"]).sum())
    return right / len(labels)


class Keeper:
    """The usual reporters; before them, it writes encoder and classifier into the run directory.

    None of these may write before the directory is the run's own, which it is when they are told of the start.
    """

    def __init__(self, folder: pathlib.Path, frozen: Optional[FrozenModel]):
        self._folder, self._frozen = folder, frozen
        self._told: list[Reporter] = []

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Any]) -> None:
        """Before anything is learned; a run that goes on may have its files already."""
        path = self._folder / "encoder.npz"
        if self._frozen is not None and not path.exists():
            model = self._frozen.model
            if model.initial is not None:
                archive.write(self._folder / "classifier.npz", {"weights": model.initial})
            program.save_encoder(path, model.encoder)
        self._told = default_reporters(self._folder)
        for reporter in self._told:
            reporter.start(num_tasks, num_rounds, past)

    def report(self, event: Any) -> None:
        """Handed on."""
        for reporter in self._told:
            reporter.report(event)

    def close(self) -> None:
        """Handed on."""
        for reporter in self._told:
            reporter.close()


def _kept(
    folder: pathlib.Path, encoder: models.Encoder
) -> Optional[tuple[models.FrozenEncoder, Optional[np.ndarray]]]:
    """What `Keeper` wrote, or None where it did not come to that."""
    if not (folder / "encoder.npz").exists():
        return None
    frozen = program.load_encoder(folder / "encoder.npz", encoder)
    path = folder / "classifier.npz"
    return frozen, archive.read(path, "weights")["weights"] if path.exists() else None
