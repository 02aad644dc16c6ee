"""The frozen encoder of FIL-VER: pre-trained on the first task or drawn, and kept with the run.

`encoder.npz` in the run directory holds the encoder, `classifier.npz` the weights of the classifier that was trained
with it, with which the run starts; a resumed run goes on with exactly these.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tffcl import archive, models, program, streams
from tffcl.algorithms.fil_ver import Rehearsal
from tffcl.client_works import LocalTraining, RehearsalModel, randomness
from tffcl.errors import RunError
from tffcl.experiment import loading
from tffcl.models.encoders import mean_of
from tffcl.models.network import competing, with_label_mask
from tffcl.models.registry import EncoderConfig
from tffcl.program.state import RunState

logger = logging.getLogger(__name__)

_BATCH = 1000  # test examples at a time


def build_encoder(plan: Any) -> models.Encoder:
    """The encoder of a method, without weights."""
    chosen, shape = plan.group(EncoderConfig), plan.input_shape
    variational = plan.method.encoder == "variational"
    sizes: dict[str, Any] = {
        "variational": variational, "embedding_size": chosen.embedding_size, "hidden": chosen.hidden,
    }  # fmt: skip
    if plan.kind == "text":
        return models.TextEncoder(shape[0], **sizes)
    if plan.kind == "vector":
        return models.VectorEncoder(shape[0], **sizes)
    max_value = plan.dataset.max_value
    if plan.method.encoder == "identity":
        return models.IdentityEncoder(shape[:2], max_value)
    return models.ImageEncoder(shape[:2], filters=chosen.filters, max_value=max_value, **sizes)


def plain_encoder(plan: Any) -> models.FrozenEncoder:
    """What an encoder of images, columns or texts gets, as it is: a layer that hands on the mean of word vectors."""
    size = plan.input_shape[0]
    if plan.kind == "image":
        return models.FrozenEncoder(
            models.IdentityEncoder(plan.input_shape[:2], plan.dataset.max_value), np.zeros(0, np.float32)
        )
    kind = models.TextEncoder if plan.kind == "text" else models.VectorEncoder
    encoder = kind(size, variational=False, embedding_size=size, hidden=())
    parts = {name: tf.eye(size) if len(shape) > 1 else tf.zeros(shape) for name, shape in encoder.weights.parts}
    return models.FrozenEncoder(encoder, encoder.weights.join(parts).numpy())


def build_classifier(plan: Any, encoder: models.Encoder) -> models.MLP:
    """The classifier of what the encoder gives."""
    return models.MLP(encoder.embedding_size, plan.num_classes, plan.group(EncoderConfig).hidden)


def build_network(plan: Any) -> models.EmbeddingClassifier:
    """Both in one network: what is pre-trained, and what the end-to-end methods train throughout."""
    encoder = build_encoder(plan)
    network = models.EmbeddingClassifier(encoder, build_classifier(plan, encoder), plan.group(EncoderConfig).beta)
    return with_label_mask(network, plan.growing) if plan.label_mask else network


@dataclasses.dataclass(frozen=True, eq=False)
class Frozen:
    """What a run trains on."""

    model: RehearsalModel  # the encoder, the classifier and its first weights
    accuracy: Optional[float] = (
        None  # on the first task's test examples before the run; None without, or not pre-trained
    )
    trained: bool = False  # whether the encoder was pre-trained

    @property
    def checksum(self) -> str:
        """Of the encoder's weights and of the classifier's first ones."""
        first = self.model.initial
        return loading.checksum([self.model.encoder.values, *([] if first is None else [first])])

    def write(self, folder: pathlib.Path) -> None:
        """Writes both into the run directory; a resumed run may have its files already."""
        if (folder / "encoder.npz").exists():
            return
        if self.model.initial is not None:
            archive.write(folder / "classifier.npz", {"weights": self.model.initial})
        program.save_encoder(folder / "encoder.npz", self.model.encoder)


def freeze(plan: Any, pretrained: bool, noise: bool, folder: Optional[pathlib.Path] = None) -> Frozen:
    """Takes the encoder from a run directory that has one, else pre-trains or draws it; logs how good it is.

    All methods with the same kind of encoder, the same seed and the same first task get the same one. If pre-trained it
    learns from the first task of those who pre-train; with `noise` memories are made by another one,
    which was never trained.

    Raises:
      RunError: files in the run directory that cannot be used.
    """
    encoder = build_encoder(plan)
    kept = _kept(folder, encoder) if folder is not None and plan.resume else None
    if kept is not None:
        frozen, first = kept
    else:
        frozen, first = _pretrained(plan) if pretrained else (_never_trained(plan, encoder), None)
    model = _model(plan, frozen, first, noise)
    if first is None:
        return Frozen(model)
    tested = _first_task(plan, pool="all").task(0, 0)
    accuracy = accuracy_of(model, first, tested) if len(tested.test["label"]) else None
    _log(plan, accuracy, kept is not None)
    return Frozen(model, accuracy, True)


def kept_model(plan: Any, noise: bool, folder: pathlib.Path, first: bool = True) -> RehearsalModel:
    """The encoder that a run directory holds, with the classifier's `first` weights; RunError where it holds none."""
    kept = _kept(folder, build_encoder(plan))
    if kept is None:
        raise RunError(f"{folder} has no encoder.npz, the frozen encoder of {plan.method.name}")
    return _model(plan, kept[0], kept[1] if first else None, noise)


def _model(plan: Any, frozen: models.FrozenEncoder, first: Optional[np.ndarray], noise: bool) -> RehearsalModel:
    drawn = _never_trained(plan, frozen.encoder) if noise else None
    return RehearsalModel(
        frozen, build_classifier(plan, frozen.encoder), first, drawn, label_mask=plan.label_mask, growing=plan.growing
    )


def _never_trained(plan: Any, encoder: models.Encoder) -> models.FrozenEncoder:
    key = randomness.fold(randomness.root_key(plan.seed), randomness.EXAMPLES)
    return models.FrozenEncoder(encoder, encoder.initial(key).numpy())


_MADE: dict[Any, tuple[models.FrozenEncoder, np.ndarray]] = {}  # in this process, for methods that are compared


def _pretrained(plan: Any) -> tuple[models.FrozenEncoder, np.ndarray]:
    """The encoder, and the classifier's weights, after the first task (eq. 9, or eq. 7 without a posterior)."""
    own = plan.group(Rehearsal)
    key = (repr(build_encoder(plan)), plan.fingerprint, plan.training, plan.seed, plan.group(EncoderConfig).beta,
           own.pretraining, own.pretraining_clients, own.pretraining_epochs)  # fmt: skip
    if key not in _MADE:
        _MADE.clear()
        central = own.pretraining == "central"
        _MADE[key] = program.pretrain(
            build_network(plan),
            _first_task(plan, pool="all" if central else "none"),
            training=LocalTraining(
                num_epochs=own.pretraining_epochs if central else 1,
                batch_size=plan.batch_size,
                learning_rate=plan.learning_rate,
                patience=0,
            ),
            num_rounds=1 if central else own.pretraining_epochs,
            seed=plan.seed,
            reporters=(),
        )
    return _MADE[key]


def _first_task(plan: Any, pool: str) -> Any:
    """The data of a run of which the first task is the only one, by those who pre-train."""
    return plan.client_data(_first_stream(plan), pool)


def _first_stream(plan: Any) -> streams.TaskStream:
    whole = plan.stream
    if plan.group(Rehearsal).pretraining_clients == "all" and plan.enrollment.name != "full":
        everybody = streams.Enrollment.full(plan.enrollment.num_clients, plan.enrollment.num_tasks)
        whole = loading.stream_of(plan.experiment, plan.dataset, plan.enrollment.num_clients, everybody)
    return streams.TaskStream(whole.name, tuple(tasks[:1] for tasks in whole.tasks))


def _log(plan: Any, accuracy: Optional[float], kept: bool) -> None:
    own = plan.group(Rehearsal)
    kind = "VEE" if plan.method.encoder == "variational" else "deterministic encoder"
    examples = sum(len(tasks[0].train) for tasks in _first_stream(plan).tasks)
    how = "taken from the run directory" if kept else f"{own.pretraining_epochs} epochs"
    right = "no test examples" if accuracy is None else f"{100 * accuracy:.1f} % of its test examples right"
    logger.info("pre-training: %s, %s, %d examples of task 1, %s: %s", kind, own.pretraining, examples, how, right)


def accuracy_of(model: RehearsalModel, weights: np.ndarray, task: program.ClientTask) -> float:
    """Share of test examples that a classifier with these weights has right, from the centres of their posteriors."""
    right, labels = 0, task.test["label"]
    for start in range(0, len(labels), _BATCH):
        part = {name: values[start : start + _BATCH] for name, values in task.test.items()}
        stats = model.encoder.encode(task.test_context, part)
        logits = model.classifier.logits(tf.constant(weights), mean_of(model.encoder.encoder, stats))
        logits = competing(logits, task.test_context)
        right += int((logits.numpy().argmax(axis=1) == part["label"]).sum())
    return right / len(labels)


def _kept(folder: pathlib.Path, encoder: models.Encoder) -> Optional[tuple[models.FrozenEncoder, Optional[np.ndarray]]]:
    """What an earlier part of the run wrote; None where it did not get so far."""
    if not (folder / "encoder.npz").exists():
        return None
    frozen, path = program.load_encoder(folder / "encoder.npz", encoder), folder / "classifier.npz"
    return frozen, archive.read(path, "weights")["weights"] if path.exists() else None


def memory_of(plan: Any, state: RunState) -> dict[str, Optional[int]]:
    """Bytes that are held for rehearsal at the end of a run; None of clients whose states cannot be read.

    `client` (the client with most) and `server`, each with the rows and with the bytes of as many raw images
    (`..._raw_images`, one byte a pixel); `encoder`.
    """
    image = math.prod(plan.input_shape)
    clients = [_rows_and_bytes(state.store[client], "memory_") for client in range(len(state.store))]
    rows, held = max(clients, default=(None, None))
    if plan.method.pool == "replay":  # its memory is images, and stands with the data
        rows = min(plan.method.remembered(plan), (plan.num_tasks - 1) * plan.examples_per_task)
        held = rows * (image + np.dtype(np.int32).itemsize)
    finalizer = state.server["finalizer"]
    kept = finalizer.get("memory", {}) if isinstance(finalizer, Mapping) else {}
    server_rows, server_held = _rows_and_bytes(kept)
    return {
        "client_rows": rows,
        "client": held,
        "client_raw_images": None if rows is None else rows * image,
        "server_rows": server_rows,
        "server": server_held,
        "server_raw_images": server_rows * image,
        "encoder": 0 if plan.frozen is None else plan.frozen.model.encoder.num_bytes,
    }


def _rows_and_bytes(held: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
    arrays = {name: np.asarray(value) for name, value in held.items() if name.startswith(prefix)}
    if not arrays:
        return 0, 0
    return len(arrays[f"{prefix}label"]), sum(array.nbytes for array in arrays.values())
