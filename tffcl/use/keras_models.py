"""A client's model of a task as a plain Keras model, and its export: raw examples in, class names or log-densities out.

Inputs and outputs go by name:

  text             `text`, string [N]             vocabulary and the tokeniser's rule are inside
  images           `image`, uint8 [N, h, w]       pixels as they were; scaled inside
  vectors          `features`, float32 [N, ...]   raw columns; scaled inside as the training data were
  rows of 0 and 1  `x`, uint8 [N, D]              2 at what only pads a row

A classifier gives `label`, string [N], and `probability`, float32 [N], of the most probable class; `classes`, string
[N, L], and `probabilities`, float32 [N, L], of all classes of the task. A density gives `log_density`, float32 [N], in
nats, and `conditionals`, float32 [N, J, D]: P(x_d = 1 | those before d) under each of its J masks, from which samples
are drawn dimension by dimension.

All layers are Keras's own: the models load without this library and without TensorFlow Federated.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import tensorflow as tf

from tffcl import datasets, storage
from tffcl.client_works import RehearsalModel
from tffcl.client_works.export import text_cnn_model
from tffcl.datasets import text as text_lib
from tffcl.datasets.encoding import UNKNOWN
from tffcl.errors import InputError, RunError, check_choice
from tffcl.experiment import loading
from tffcl.models import AlignedTextCNN, EmbeddingClassifier, IdentityEncoder, KerasNetwork, MADENetwork, TextCNN, made
from tffcl.models.encoders import KERNEL_SIZE

if TYPE_CHECKING:
    from tffcl.use.finished import FinishedRun, Parameters


_layers = tf.keras.layers


@dataclasses.dataclass(frozen=True)
class Plain:
    """What is taken out of a run for a client and task.

    Attributes:
      model: raw examples in, names out (see the module).
      core: the same without strings, for TensorFlow Lite: of text `tokens`, int32 [N, L], in; no names out.
      labels: names of the classes, in the order of the probabilities; empty for a density.
      words: the vocabulary of `tokens`, from id 2 on; empty for others than text.
      sample: of a density `(count, seed) -> {"x": uint8 [count, D]}`, a tf.function; else None.
    """

    model: tf.keras.Model
    core: tf.keras.Model
    labels: tuple[str, ...]
    words: tuple[str, ...] = ()
    sample: Optional[Callable] = None


def build(run: FinishedRun, client: int, task: int) -> Plain:
    """See the module.

    Raises:
      InputError: no such client or task.
      RunError: a network, or a tokeniser, that cannot be put into a plain model.
    """
    found, plan = run.parameters(client, task), run.plan
    if isinstance(found.network, MADENetwork):
        trained = loading.pooled(plan.stream, plan.method.pool).task(client, task).labels
        return _density(found, max(plan.dataset.widths[label] for label in trained))
    labels = run.clients[client].tasks[task].labels
    # With one head, its columns are the data set's labels; else the first are those of the task.
    columns = [plan.dataset.label_names.index(name) for name in labels] if plan.one_head else list(range(len(labels)))
    if plan.kind == "text":
        return _text(run, found, labels, columns)
    given, scaled = _numbers(plan)
    logits = _classifier(run, found)(scaled)
    core = tf.keras.Model(given, _probabilities(logits, columns))
    return Plain(_named(given, core(given)["probabilities"], labels), core, labels)


def _probabilities(logits: tf.Tensor, columns: Sequence[int]) -> dict[str, tf.Tensor]:
    """Softmax over the classes of the task alone, as they compete in its evaluation."""
    if list(columns) != list(range(logits.shape[-1])):
        logits = tf.gather(logits, list(columns), axis=1)
    return {"probabilities": _layers.Softmax(name="probabilities")(logits)}


def _named(given: tf.Tensor, probabilities: tf.Tensor, labels: Sequence[str]) -> tf.keras.Model:
    """The model with class names beside the probabilities."""
    names = _layers.StringLookup(vocabulary=list(labels), num_oov_indices=0, mask_token=None, invert=True, name="names")
    every = tf.cast(tf.zeros_like(probabilities), tf.int64) + list(range(len(labels)))
    return tf.keras.Model(
        given,
        {
            "label": names(tf.argmax(probabilities, axis=1)),
            "probability": tf.reduce_max(probabilities, axis=1),
            "classes": names(every),
            "probabilities": probabilities,
        },
    )


# -- text ---------------------------------------------------------------------------------------------------------


def _text(run: FinishedRun, found: Parameters, labels: Sequence[str], columns: Sequence[int]) -> Plain:
    data: datasets.EncodedTextDataset = run.plan.dataset
    if data.unicode is None:
        raise RunError(f"{run.directory}: its text went through a tokeniser of your own, which no model can hold")
    words, vectors = _with_decomposed(data.words[UNKNOWN + 1 :], data.embedding)
    if isinstance(found.network, (TextCNN, AlignedTextCNN)):
        of_tokens = text_cnn_model(found.network, found.kernels, found.local, found.attention, vectors, found.foreign)
    else:
        of_tokens = _text_encoder(found, vectors)
    tokens = tf.keras.Input([None], dtype=tf.int32, name="tokens")
    core = tf.keras.Model(tokens, _probabilities(of_tokens(tokens), columns))
    given = tf.keras.Input([], dtype=tf.string, name="text")
    lookup = _layers.TextVectorization(standardize=None, split="whitespace", vocabulary=list(words), name="vocabulary")
    ids = tf.cast(lookup(standardised(given, data.unicode)), tf.int32)
    if data.max_words is not None:
        ids = ids[:, : data.max_words]
    return Plain(_named(given, core(ids)["probabilities"], labels), core, tuple(labels), words)


def _with_decomposed(words: Sequence[str], vectors: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The vocabulary, and each word once more as Unicode decomposes it where that differs, with the same vector.

    TensorFlow cannot compose characters (NFC), as `tffcl.datasets.tokenise` does first.
    """
    known = set(words)
    others = {unicodedata.normalize("NFD", word): row for row, word in enumerate(words, UNKNOWN + 1)}
    added = {word: row for word, row in others.items() if word not in known}
    return (*words, *added), np.concatenate([vectors, vectors[list(added.values())]]) if added else vectors


def standardised(texts: tf.Tensor, unicode: bool) -> tf.Tensor:
    """Texts whose tokens stand between spaces: `tffcl.datasets.tokenise` in TensorFlow's string operations.

    The same for composed text (NFC) but for capitals that are younger than TensorFlow's tables of Unicode (Glagolitic,
    Vithkuqi and a few Latin ones), which stay capitals.

    Args:
      texts: string [...].
      unicode: the rule.
    """
    replace = tf.strings.regex_replace
    if unicode:
        kept, dropped = _character_classes()
        texts = replace(texts, "[\\x{2019}\\x{2bc}]", "'")
        texts = replace(texts, f"[{dropped}]", "")
        texts = replace(texts, f"[^{kept}]", " ")
        texts = replace(texts, text_lib.HAN, r" \1 ")
    else:
        texts = replace(texts, text_lib.FOREIGN, " ")
    texts = replace(texts, f"(?i){text_lib.SUFFIX}", r" \1")
    texts = replace(texts, text_lib.PUNCTUATION, r" \1 ")
    return tf.strings.lower(texts, encoding="utf-8")


@functools.cache
def _character_classes() -> tuple[str, str]:
    """Characters that stay, and those that fall away without a space, as ranges of a regular expression."""
    replaced = [text_lib.replacement(code) for code in range(0x110000)]

    def ranges(holds: Callable[[Optional[str]], bool]) -> str:
        marks = np.array([holds(each) for each in replaced])
        marks[0xD800:0xE000] = False  # halves of pairs, which no UTF-8 has
        edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
        return "".join(f"\\x{{{first:x}}}-\\x{{{end - 1:x}}}" for first, end in edges.reshape(-1, 2))

    return ranges(lambda each: each not in (None, " ")), ranges(lambda each: each is None)


def _text_encoder(found: Parameters, vectors: np.ndarray) -> tf.keras.Model:
    """FIL-VER on text: the mean of a document's known words, then linear layers."""
    counting = np.array(vectors)
    counting[: UNKNOWN + 1] = 0
    tokens = tf.keras.Input([None], dtype=tf.int32, name="tokens")
    embedding = _layers.Embedding(*counting.shape, trainable=False, name="word_vectors")
    padded = tf.pad(tokens, [[0, 0], [0, 1]])  # a document without words is one of padding
    known = tf.reduce_sum(tf.cast(tokens > UNKNOWN, tf.float32), axis=1, keepdims=True)
    mean = tf.reduce_sum(embedding(padded), axis=1) / tf.maximum(known, 1.0)
    model = tf.keras.Model(tokens, _embedded(found)(mean))
    embedding.set_weights([counting])
    return model


# -- numbers ------------------------------------------------------------------------------------------------------


def _numbers(plan: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The input of raw images or vectors, and what the network takes of it."""
    data = plan.dataset
    if plan.kind == "image":
        shape = data.image_size if isinstance(data, datasets.Domains) else data.train_images.shape[1:]
        given = tf.keras.Input(shape, dtype=tf.uint8, name="image")
        return given, tf.expand_dims(tf.cast(given, tf.float32) / float(data.max_value), 3)
    given = tf.keras.Input(data.train_x.shape[1:], dtype=tf.float32, name="features")
    scaled = given
    if data.centre.any() or (data.scale != 1).any():
        centre, scale = (np.broadcast_to(each, data.train_x.shape[-1:]).tolist() for each in (data.centre, data.scale))
        scaled = (given - centre) / scale
    return given, tf.reshape(scaled, [-1, *plan.input_shape]) if plan.input_shape != given.shape[1:] else scaled


def _classifier(run: FinishedRun, found: Parameters) -> tf.keras.Model:
    """From what the network takes to logits."""
    if isinstance(found.network, KerasNetwork):
        return found.network.plain(found.kernels, found.local)
    if isinstance(found.network, (RehearsalModel, EmbeddingClassifier)):
        return _embedded(found)
    raise RunError(
        f"{run.directory}: no plain model can be made of a {type(found.network).__name__}; that of a TextCNN, "
        "KerasNetwork, MADENetwork or EmbeddingClassifier can"
    )


def _embedded(found: Parameters) -> tf.keras.Model:
    """FIL-VER: an encoder at the centre of its posterior, and the classifier on top of it."""
    network = found.network
    encoder: Any
    if isinstance(network, RehearsalModel):
        encoder, classifier = network.encoder.encoder, network.classifier
        values, top = network.encoder.values, found.kernels
    else:
        encoder, classifier = network.encoder, network.mlp
        values, top = network.split(found.kernels)
    parts = _arrays_of(encoder.weights, values)
    shape = [*encoder.shape, 1] if hasattr(encoder, "shape") else [encoder.num_features]
    given = units = tf.keras.Input(shape, name="scaled")
    weights = _Weights()
    for number in range(len(getattr(encoder, "filters", ()))):
        kernel, bias = parts[f"conv_{number}"], parts[f"bias_conv_{number}"]
        layer = _layers.Conv2D(kernel.shape[3], KERNEL_SIZE, padding=encoder.padding, name=f"conv_{number}")
        units = _layers.ReLU()(_layers.MaxPooling2D(2, padding="same")(weights.add(layer, kernel, bias)(units)))
    if len(shape) > 1:
        units = _layers.Flatten()(units)
    if not isinstance(encoder, IdentityEncoder):
        hidden = [f"linear_{number}" for number in range(len(encoder.hidden))]
        for name in hidden:
            units = weights.dense(units, parts[name], parts[f"bias_{name}"], f"encoder_{name}", "relu")
        name = "mean" if encoder.variational else "embedding"
        units = weights.dense(units, parts[name], parts[f"bias_{name}"], name)
    tops, last = _arrays_of(classifier.weights, top), len(classifier.hidden)
    for number in range(last + 1):
        kernel, bias = tops[f"linear_{number}"], tops[f"bias_{number}"]
        units = weights.dense(units, kernel, bias, f"classifier_{number}", "relu" if number < last else None)
    return weights.model(given, units)


def _arrays_of(layout: Any, flat: Any) -> dict[str, np.ndarray]:
    """The parts of a flat vector."""
    return {name: part.numpy() for name, part in layout.split(tf.constant(flat)).items()} if layout.parts else {}


# -- densities ----------------------------------------------------------------------------------------------------


class _Weights:
    """Dense layers whose weights are set once the model is whole."""

    def __init__(self) -> None:
        self._of: list[tuple[Any, list[np.ndarray]]] = []

    def add(self, layer: Any, *weights: np.ndarray) -> Any:
        """The layer, which will have these weights."""
        self._of.append((layer, list(weights)))
        return layer

    def dense(
        self, inputs: tf.Tensor, kernel: np.ndarray, bias: Optional[np.ndarray], name: str, activation: Any = None
    ) -> tf.Tensor:
        """A Dense layer's outputs."""
        layer = _layers.Dense(kernel.shape[1], activation, use_bias=bias is not None, name=name)
        return self.add(layer, *([kernel] if bias is None else [kernel, bias]))(inputs)

    def model(self, given: tf.Tensor, outputs: Any) -> tf.keras.Model:
        """The model, with all weights in place."""
        model = tf.keras.Model(given, outputs)
        for layer, weights in self._of:
            layer.set_weights(weights)
        return model


def _density(found: Parameters, width: int) -> Plain:
    network: MADENetwork = found.network
    size, patterns = network.config.input_size, network.num_patterns
    observed = (np.arange(size) < width).astype(np.float32)
    given, weights = tf.keras.Input([size], dtype=tf.uint8, name="x"), _Weights()
    whole = tf.cast(given, tf.int32)  # TensorFlow Lite compares no bytes
    ones, present = (tf.cast(each, tf.float32) for each in (tf.equal(whole, 1), tf.less(whole, made.ABSENT)))
    densities, conditionals = [], []
    for pattern in range(patterns):
        logits = _log_odds(found, pattern, observed, ones, weights)
        # -log p(x_d | x_<d) is softplus of the logit, its sign turned where x_d is 1.
        losses = tf.math.softplus(logits * (1.0 - 2.0 * ones)) * present
        densities.append(-weights.dense(losses, observed[:, None], None, f"mask_{pattern}_observed"))
        conditionals.append(tf.expand_dims(tf.sigmoid(logits), 1))
    if patterns == 1:
        log_density, every = densities[0][:, 0], conditionals[0]
    else:
        joined = _layers.Concatenate(axis=1)(densities)
        log_density = tf.reduce_logsumexp(joined, axis=1) - math.log(patterns)
        every = _layers.Concatenate(axis=1)(conditionals)
    model = weights.model(given, {"log_density": log_density, "conditionals": every})
    kernels, local, plan, seen = map(tf.constant, (found.kernels, found.local, found.plan, observed))

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "count"), tf.TensorSpec([2], tf.int32, "seed")])
    def sample(count: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """Rows drawn from the density; equal seeds give equal rows."""
        return {"x": tf.cast(made.draw(network, kernels, local, plan, seen, count, seed), tf.uint8)}

    return Plain(model, model, (), sample=sample)


def _log_odds(found: Parameters, pattern: int, observed: np.ndarray, ones: tf.Tensor, weights: _Weights) -> tf.Tensor:
    """The outputs of a MADE under one of its masks, float32 [N, D], of inputs float32 [N, D]."""
    network, config = found.network, found.network.config
    kernels = found.kernels * network.connectivity(tf.constant(found.plan), pattern).numpy()
    split = network.parts(tf.constant(kernels), tf.constant(found.local))
    parts = {name: part.numpy() for name, part in split.items()}
    for name in {"hidden_0", "direct"} & set(parts):
        parts[name] = parts[name] * observed[:, None]  # what pads is not seen
    units = ones
    for layer in range(len(config.hidden)):
        name = f"hidden_{layer}"
        units = weights.dense(units, parts[name], parts[f"bias_{name}"], f"mask_{pattern}_{name}", config.activation)
    if not config.hidden:
        return weights.dense(ones, parts["direct"], parts["bias_output"], f"mask_{pattern}_direct")
    logits = weights.dense(units, parts["output"], parts["bias_output"], f"mask_{pattern}_output")
    return logits + weights.dense(ones, parts["direct"], None, f"mask_{pattern}_direct") if config.direct else logits


FORMATS = ("keras", "savedmodel", "tflite")
_ENDINGS = {"keras": ".keras", "tflite": ".tflite"}


def export(
    run: FinishedRun, client: int, task: int, format: str, path: Union[str, os.PathLike[str]]
) -> list[pathlib.Path]:
    """Writes a client's model of a task; see `tffcl.use.keras_models` for its inputs and outputs.

    keras: one file `.keras`. savedmodel: a folder, whose signature `serving_default` has inputs and outputs by name; a
    density also has `sample`, `(count, seed) -> x`. tflite: one file `.tflite` with built-in operations alone. These
    have no strings, so that it takes the ids of words (`tokens`, int32 [N, L], 0 for no word, 1 for an unknown one) and
    gives probabilities without names; `PATH.json` beside it holds vocabulary, tokeniser and names.

    Shown in docs/from-run-to-use.md.

    Returns:
      What was written.

    Raises:
      InputError: no such client, task or format, or a path with another ending.
      RunError: the run's models cannot be read, or the path cannot be written; nothing that stood there is replaced.
    """
    check_choice("format", format, FORMATS)
    target, ending = pathlib.Path(path), _ENDINGS.get(format)
    if ending is not None and target.suffix != ending:
        raise InputError(f"{target}: a model in the format {format} is a file that ends in {ending}")
    if os.path.lexists(target):
        raise InputError(f"{target} is there already; give another path")
    storage.check_folder(target.absolute().parent, "the folder of a model")
    plain = build(run, client, task)
    storage.make_folder(target.absolute().parent, "the folder of a model")
    try:
        with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=storage.TEMPORARY) as folder:
            made = pathlib.Path(folder) / f"model{ending or ''}"
            _WRITERS[format](plain, made)
            os.replace(made, target)
    except OSError as error:
        raise storage.cannot_write(target, error) from error
    if format != "tflite":
        return [target]
    beside = target.with_name(f"{target.name}.json")
    storage.write_json(
        beside, {"labels": plain.labels, **({"words": plain.words} if plain.words else {}), **_rule(run)}
    )
    return [target, beside]


def _rule(run: FinishedRun) -> dict[str, object]:
    """How a text becomes ids of words."""
    if run.plan.kind != "text":
        return {}
    card = run.plan.record["data"]
    return {"tokeniser": card["tokeniser"], "max_words": card["max_words"], "first_word_id": UNKNOWN + 1}


def _keras(plain: Plain, path: pathlib.Path) -> None:
    plain.model.save(path)


def _saved_model(plain: Plain, path: pathlib.Path) -> None:
    module = tf.Module()
    module.model = plain.model  # type: ignore[attr-defined]
    signature = tf.TensorSpec(plain.model.inputs[0].shape, plain.model.inputs[0].dtype, plain.model.input_names[0])
    signatures = {"serving_default": tf.function(plain.model.call, input_signature=[signature])}
    if plain.sample is not None:
        signatures["sample"] = plain.sample
    tf.saved_model.save(module, str(path), signatures=signatures)


def _tf_lite(plain: Plain, path: pathlib.Path) -> None:
    spec = tf.TensorSpec(plain.core.inputs[0].shape, plain.core.inputs[0].dtype, plain.core.input_names[0])
    called = tf.function(plain.core.call, input_signature=[spec])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([called.get_concrete_function()], plain.core)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    try:
        content = converter.convert()
    except Exception as error:  # the converter's own, of many kinds
        reason = str(error).split("\n")[0][:200]
        raise RunError(f"tflite: this model needs more than the built-in operations ({reason})") from None
    path.write_bytes(content)


_WRITERS = {"keras": _keras, "savedmodel": _saved_model, "tflite": _tf_lite}
