"""The networks that ship, by name, and how a run makes one. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from tffcl import models
from tffcl.errors import InputError
from tffcl.models.options import LayersConfig, MADEConfig, TextCNNConfig
from tffcl.options import options_of
from tffcl.parts import Registry, users_code

if TYPE_CHECKING:
    from tffcl.algorithms.method import Method
    from tffcl.experiment.plan import Plan
    from tffcl.models import Network


@dataclasses.dataclass(frozen=True)
class NetworkPart:
    """A network as a run knows it.

    Attributes:
      name: what `--network` calls it.
      kinds: kinds of data that it takes.
      options: dataclasses of its options.
      build: `(plan, num_foreign) -> Network`.
      usual: it is what suits its kind, and need not be named.
    """

    name: str
    kinds: tuple[str, ...]
    options: tuple[type, ...]
    build: Callable[[Plan, int], Network]
    usual: bool = True


def _text_cnn(plan: Plan, num_foreign: int) -> Network:
    config = dataclasses.replace(
        plan.group(TextCNNConfig), embedding_size=plan.input_shape[-1], max_classes=plan.num_classes
    )
    aligned = plan.method.foreign == "aligned"
    return models.AlignedTextCNN(config, num_foreign) if aligned else models.TextCNN(config, num_foreign)


def _made(plan: Plan, num_foreign: int) -> Network:
    shared = "decomposition" not in plan.method.options  # a base that is shared whole has its biases in it
    config = dataclasses.replace(plan.group(MADEConfig), input_size=plan.input_shape[-1], share_biases=shared)
    return models.MADENetwork(config, num_foreign)


def _layers(plan: Plan, num_foreign: int) -> Network:
    """Convolutions for images, linear layers, and a linear head, as a Keras model."""
    import tensorflow as tf

    chosen, layers = plan.group(LayersConfig), tf.keras.layers
    tf.keras.utils.set_random_seed(plan.seed)
    model = tf.keras.Sequential([layers.Input(plan.input_shape)])
    if plan.kind == "image":
        for filters in chosen.filters:
            model.add(layers.Conv2D(filters, 5, padding="same", activation="relu"))
            model.add(layers.MaxPooling2D(2, padding="same"))
    if len(plan.input_shape) > 1:
        model.add(layers.Flatten())
    for units in chosen.hidden:
        model.add(layers.Dense(units, activation="relu"))
    if chosen.dropout:
        model.add(layers.Dropout(chosen.dropout))
    model.add(layers.Dense(plan.num_classes))
    return models.KerasNetwork(model, num_foreign)


NETWORKS = Registry(
    "network",
    "tffcl.networks",
    {
        "textcnn": NetworkPart("textcnn", ("text",), (TextCNNConfig,), _text_cnn),
        "made": NetworkPart("made", ("binary",), (MADEConfig,), _made),
        "cnn": NetworkPart("cnn", ("image",), (LayersConfig,), _layers),
        "mlp": NetworkPart("mlp", ("vector",), (LayersConfig,), _layers),
    },
)
_USUAL = {"text": "textcnn", "binary": "made", "image": "cnn", "vector": "mlp"}


def network_of(chosen: Any, method: Method, kind: str) -> Optional[NetworkPart]:
    """The network that is asked for, else what suits the kind of data; None for a method with networks of its own.

    Raises:
      InputError: no such network, or one that does not take such data.
    """
    if method.own_network:
        if chosen is not None:
            raise InputError(f"network: {method.name} has a network of its own")
        return None
    if chosen is None:
        return NETWORKS.get(_USUAL[kind])
    if isinstance(chosen, NetworkPart):
        return chosen
    found = NETWORKS.get(chosen) if isinstance(chosen, str) else chosen
    return found if isinstance(found, NetworkPart) else _of_function(found, str(chosen))


def _of_function(function: Any, name: str) -> NetworkPart:
    """A Keras model of the user's: `function(input_shape, num_classes, **options)`."""
    if not callable(function):
        raise InputError(
            f"network: {name} should be a function (input_shape, num_classes) -> tf.keras.Model, found "
            f"{type(function).__name__}"
        )

    options = options_of(function, ("input_shape", "num_classes"))

    def build(plan: Plan, num_foreign: int) -> Network:
        import tensorflow as tf

        tf.keras.utils.set_random_seed(plan.seed)
        own = {} if options is None else dataclasses.asdict(plan.group(options))
        with users_code(f"network: {name}"):
            model = function(plan.input_shape, plan.num_classes, **own)
        if isinstance(model, models.Network):
            return model
        if not isinstance(model, tf.keras.Model):
            raise InputError(f"network: {name} made a {type(model).__name__}, expected a tf.keras.Model")
        return models.KerasNetwork(model, num_foreign)

    kinds = getattr(function, "kinds", ("image", "vector"))
    return NetworkPart(name, tuple(kinds), () if options is None else (options,), build, usual=False)
