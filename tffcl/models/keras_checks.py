"""What a Keras model must be so that `KerasNetwork` trains what the user believes it to train."""

from __future__ import annotations

import tensorflow as tf

from tffcl import errors
from tffcl.models.decomposition import check_supported, leaf_layers


def checked_head(model: tf.keras.Model) -> tf.keras.layers.Layer:
    """The Dense layer that gives the logits.

    Raises:
      InputError: the model has no such layer, or asks for what federated local training would leave out without a
        word: other randomness than Dropout, regularizers, constraints, weights or products that are not float32.
    """
    check_supported(model)
    for name, tensors in (("input", model.inputs), ("output", model.outputs)):
        if len(tensors) != 1:
            raise errors.InputError(f"model: expected one {name}, found {len(tensors)}")
    head = model.get_layer(model.output_names[0])
    if type(head) is not tf.keras.layers.Dense or head.activation is not tf.keras.activations.linear:
        raise errors.InputError("model: expected a Dense layer without activation (logits) as the last layer")
    if len(model.outputs[0].shape) != 2:
        raise errors.InputError(f"model: expected logits [N, classes], found shape {model.outputs[0].shape}")
    _check_weights(model)
    _check_precision(model)
    _check_randomness(model)
    _check_losses(model)
    return head


def _check_weights(model: tf.keras.Model) -> None:
    for weight in model.trainable_weights:
        if weight.dtype != tf.float32:
            raise errors.InputError(f"model: expected float32 weights, found {weight.name} of {weight.dtype.name}")
        if weight.constraint is not None:
            raise errors.InputError(f"model: the constraint on {weight.name} would be ignored; leave it out")


def _check_precision(model: tf.keras.Model) -> None:
    for layer in _layers(model):
        if layer.weights and layer.compute_dtype != "float32":
            raise errors.InputError(
                f"model: expected layers that compute in float32, found {layer.name} in {layer.compute_dtype}; local "
                "training scales no losses, so build the model under the policy 'float32'"
            )


def _check_losses(model: tf.keras.Model) -> None:
    regularised = [layer.name for layer in _layers(model) if getattr(layer, "activity_regularizer", None)]
    if regularised or model.losses:
        raise errors.InputError(
            f"model: regularizers and added losses (of {(regularised or [model.name])[0]}) would be ignored; "
            "the client work has its own penalties"
        )


def _check_randomness(model: tf.keras.Model) -> None:
    replaced = {id(layer) for layer in leaf_layers(model) if is_plain_dropout(layer)}
    for layer in _layers(model):
        if not isinstance(layer, tf.keras.__internal__.layers.BaseRandomLayer) or id(layer) in replaced:
            continue
        if not _is_off(layer):
            raise errors.InputError(
                f"model: {type(layer).__name__} {layer.name!r} draws random numbers that no seed of ours reaches; "
                "only a Dropout layer (without noise_shape) can"
            )


def is_plain_dropout(layer: tf.keras.layers.Layer) -> bool:
    """Whether `KeyedDropout` can stand in for this layer."""
    return type(layer) is tf.keras.layers.Dropout and layer.noise_shape is None


def _is_off(layer: tf.keras.layers.Layer) -> bool:
    """Whether a layer that could draw random numbers draws none: no dropout, as in LSTM by default."""
    rates = [getattr(layer, name) for name in ("rate", "dropout", "recurrent_dropout") if hasattr(layer, name)]
    return bool(rates) and not any(rates)


def _layers(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    return [part for part in model.submodules if isinstance(part, tf.keras.layers.Layer)]
