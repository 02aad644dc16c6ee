"""export: a client's model of a task as a file of Keras, a SavedModel or one of TensorFlow Lite, without tffcl."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Union

import tensorflow as tf

from tffcl import storage
from tffcl.datasets.encoding import UNKNOWN
from tffcl.errors import InputError, RunError, check_choice
from tffcl.use import keras_models

if TYPE_CHECKING:
    from tffcl.use.finished import FinishedRun
    from tffcl.use.keras_models import Plain

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
    plain = keras_models.build(run, client, task)
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
