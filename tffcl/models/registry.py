"""The networks that ship: their options, and how a run builds them by name. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional, Union

from tffcl import models
from tffcl.errors import InputError
from tffcl.options import OptionError, Options, option, options_of, widths
from tffcl.parts import Registry, users_code

if TYPE_CHECKING:
    from tffcl.algorithms.method import Method
    from tffcl.experiment.plan import Plan
    from tffcl.models import Network


@dataclasses.dataclass(frozen=True)
class TextCNNConfig(Options):
    """Sizes of a TextCNN.

    Shown in docs/papers.md.

    Attributes:
      embedding_size: D, dimension of the (frozen) word vectors.
      max_classes: labels of a task.
      base_scale: a small one leaves room to the adaptives, which start at a share of it and keep tasks apart: worth 4
        to 6 points of TTA on TREC6 at the paper's settings.
      attention_scale: the first attention is uniform in [1 - s, 1 + s] (FedSeIT) or [-s, s] (FedWeIT).
      foreign_projection: W_f of FedSeIT; docs/results.md has what "mean" saves and costs.

    Raises:
      InputError: a size out of its range, or a kernel size that comes twice.
    """

    embedding_size: int
    max_classes: int = 4
    kernel_sizes: tuple[int, ...] = option((3, 4, 5), "Words that a filter spans.", least=1, parse=widths, sparse=True)
    num_filters: int = option(128, "Filters of each kernel size.", least=1, sparse=True)
    dropout: float = option(0.3, "Share of features dropped before the head.", least=0, below=1, sparse=True)
    base_scale: float = option(
        0.2, "Width of the base's first values, in units of Glorot's.", above=0, advanced=True, sparse=True
    )
    attention_scale: float = option(
        0.1, "Width of the first attention over foreign adaptives.", advanced=True, sparse=True
    )
    foreign_projection: str = option(
        "each", "FedSeIT's W_f: a block for each foreign adaptive, as published, or one for their mean.",
        choices=("each", "mean"), advanced=True, sparse=True,
        mark=lambda network: "+mean" if network.foreign_projection == "mean" else "",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding_size", "max_classes"):
            if getattr(self, name) < 1:
                raise OptionError(name, f"expected at least 1, found {getattr(self, name)}")
        if not self.kernel_sizes or len(set(self.kernel_sizes)) < len(self.kernel_sizes):
            raise OptionError("kernel_sizes", f"expected sizes of at least 1, each once, found {self.kernel_sizes}")


ACTIVATIONS = ("elu", "gelu", "leaky_relu", "relu", "selu", "sigmoid", "softplus", "swish", "tanh")
Order = Union[str, tuple[int, ...]]


def parse_order(text: str) -> Order:
    """natural, random, or a permutation of 1..D."""
    if text in ("natural", "random"):
        return text
    texts = text.replace(",", " ").split()
    places = [int(each) for each in texts if each.isdecimal()]
    if len(places) < len(texts) or sorted(places) != list(range(1, len(texts) + 1)) or not texts:
        shown = text if len(text) < 60 else f"{text[:57]}..."
        raise ValueError(f"{shown!r} is neither 'natural', 'random' nor a permutation of 1..{max(1, len(texts))}")
    return tuple(places)


@dataclasses.dataclass(frozen=True)
class MADEConfig(Options):
    """Sizes and masks of a MADE.

    Shown in examples/confedmade_mnist.py.

    Attributes:
      input_size: D, binary inputs.
      order: 'random' is drawn once, with the plan.
      num_masks: J, patterns of connectivity.
      distinct_masks: of ConFedMADE table 1.
      share_biases: biases are the server's, like the kernels; else they belong to the task.
      attention_start: the first attention.

    Raises:
      InputError: a size out of its range, or choices that contradict each other.
    """

    input_size: int
    hidden: tuple[int, ...] = option(
        (500,), "Units of each hidden layer; 'none' for direct connections alone.", least=1, parse=widths,
        metavar="N[,N...]", join=True,
    )  # fmt: skip
    direct: bool = option(
        True, "DC: inputs connected to outputs, too.", mark=lambda made: "" if made.direct else "-nodc"
    )
    order: Order = option(
        "natural", "Places of the inputs; a list is a permutation of 1..D.", parse=parse_order,
        metavar="natural|random|N,N,...",
    )  # fmt: skip
    order_agnostic: bool = option(
        False, "OA: every mask has an order of its own.", mark=lambda made: "+oa" if made.order_agnostic else ""
    )
    connectivity_agnostic: bool = option(
        False, "CA: every mask numbers hidden units anew.",
        mark=lambda made: "+ca" if made.connectivity_agnostic else "",
    )  # fmt: skip
    num_masks: Optional[int] = option(
        None, "Masks that training goes through and evaluation averages over; none for 1, or 8 with OA or CA.",
        least=1,
    )  # fmt: skip
    distinct_masks: bool = option(
        False, "Each client draws its own masks, instead of the server's for all.",
        mark=lambda made: "+distinct" if made.distinct_masks else "",
    )  # fmt: skip
    activation: str = option("relu", "Of the hidden units.", choices=ACTIVATIONS, sparse=True)
    share_biases: bool = False
    attention_start: float = 0.0
    base_scale: float = option(
        1.0, "Width of the base's first values, in units of Glorot's.", above=0, advanced=True, sparse=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        agnostic = self.order_agnostic or self.connectivity_agnostic
        if self.num_masks is None:
            object.__setattr__(self, "num_masks", 8 if agnostic else 1)
        if self.input_size < 1:
            raise OptionError("input_size", f"expected at least 1, found {self.input_size}")
        self._check_order()
        if self.connectivity_agnostic and not self.hidden:
            raise OptionError("connectivity_agnostic", "expected hidden layers, found none")
        if not self.hidden and not self.direct:
            raise OptionError("hidden", "expected at least 1 layer, or direct connections")
        if (self.num_masks or 1) > 1 and not agnostic:
            same = f"{self.num_masks} masks would all be the same"
            raise OptionError("num_masks", f"{same}; more than 1 needs order_agnostic or connectivity_agnostic")
        if not math.isfinite(self.attention_start):
            raise OptionError("attention_start", f"expected a finite number, found {self.attention_start}")

    def _check_order(self) -> None:
        size = self.input_size
        if isinstance(self.order, str):
            if self.order not in ("natural", "random"):
                raise OptionError("order", f"expected 'natural', 'random' or a permutation, found {self.order!r}")
        elif self.order_agnostic:
            raise OptionError("order", "a permutation and order_agnostic contradict each other")
        elif size > 1 and sorted(self.order) != list(range(1, size + 1)):
            raise OptionError("order", f"expected a permutation of 1..{size}, found {len(self.order)} places")


@dataclasses.dataclass(frozen=True)
class EncoderConfig(Options):
    """Sizes of an encoder and of the classifier on top of it (FIL-VER, section 5)."""

    embedding_size: int = option(256, "Dimensions of an embedding.", least=1)
    hidden: tuple[int, ...] = option(
        (1000, 1000), "Units of the linear layers, in the encoder as in the classifier.", least=1, parse=widths,
        metavar="N,N,...", join=True,
    )  # fmt: skip
    filters: tuple[int, ...] = option(
        (32, 64), "Of the encoder's 5 x 5 convolutions.", least=1, parse=widths, metavar="N,N,...", only=("image",)
    )
    beta: float = option(1e-4, "Weight of the divergence from N(0, I) when a VEE is pre-trained (eq. 9).", least=0)


@dataclasses.dataclass(frozen=True)
class LayersConfig(Options):
    """Sizes of a plain network of images or vectors."""

    hidden: tuple[int, ...] = option(
        (128,), "Units of the linear layers below the head.", least=1, parse=widths, metavar="N,N,...", join=True
    )
    filters: tuple[int, ...] = option(
        (16, 32), "Of the 5 x 5 convolutions.", least=1, parse=widths, metavar="N,N,...", only=("image",)
    )
    dropout: float = option(0.0, "Share of units dropped before the head.", least=0, below=1, sparse=True)


# -- how a run builds a network ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class NetworkPart:
    """A network that a run can build.

    Attributes:
      name: its name for `--network`.
      kinds: kinds of data that it takes.
      options: dataclasses of its options.
      build: `(plan, num_foreign) -> Network`.
      usual: it is the default for its kinds of data.
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
    return (models.AlignedTextCNN if plan.method.aligns(plan) else models.TextCNN)(config, num_foreign)


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
    """The network that was chosen, else the default for the kind of data; None for a method with its own networks.

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
    part = NETWORKS.get(chosen) if isinstance(chosen, str) else chosen
    return part if isinstance(part, NetworkPart) else _of_function(part, str(chosen))


def _of_function(function: Any, name: str) -> NetworkPart:
    """A Keras model of the user's: `function(input_shape, num_classes, **options)`."""
    if not callable(function):
        wanted = "a function (input_shape, num_classes) -> tf.keras.Model"
        raise InputError(f"network: {name} should be {wanted}, found {type(function).__name__}")

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
