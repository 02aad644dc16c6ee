"""TextCNN (Kim, 2014) as the client network of FedSeIT and FedWeIT (FedSeIT, appendix B and figure 3)."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers import text
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.network import Classifier, Layered, LinearLayer, Tensors, document_types, dropout, glorot_uniform
from tffcl.models.registry import TextCNNConfig


class _TextNetwork(Classifier):
    """Convolutions over word vectors, with documents as data."""

    def __init__(self, config: TextCNNConfig, num_foreign: int):
        if num_foreign < 0:
            raise errors.InputError(f"num_foreign: expected at least 0, found {num_foreign}")
        self.config = config
        self.num_foreign = num_foreign
        self.max_classes = config.max_classes
        self.num_features = config.num_filters * len(config.kernel_sizes)  # pooled features of a document
        self.kernels = KernelLayout(
            tuple((f"conv_{k}", (k, config.embedding_size, config.num_filters)) for k in config.kernel_sizes)
        )
        self._biases = tuple((f"bias_{k}", (config.num_filters,)) for k in config.kernel_sizes)
        self.of_labels = ("head_kernel", "head_bias")
        self._head = (("head_kernel", (self.num_features, config.max_classes)), ("head_bias", (config.max_classes,)))
        self.context_type, documents = document_types(config.embedding_size)
        self.example_type = OrderedDict(documents, label=tff.TensorType(np.int32, [None]))
        self.prepared_type = self.example_type

    @property
    def kernel_pieces(self) -> tuple[int, ...]:
        return self.kernels.sizes

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        return glorot_uniform(self.kernels, key, self.config.base_scale)

    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        return glorot_uniform(self.local, key)

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        centre, scale = 0.0 if self.adds_foreign else 1.0, self.config.attention_scale
        return tf.random.stateless_uniform(self.attention_shape, key, centre - scale, centre + scale)

    def _features(self, kernels: tf.Tensor, local: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        own = self.kernels.split(kernels)
        tokens = text.padded(context["tokens"], examples["start"], examples["length"])
        biases = [local[name] for name, _ in self._biases]
        return text.pooled_convolution(tokens, context["vectors"], list(own.values()), biases)

    def _scores(self, features: tf.Tensor, local: Tensors, dropout_key: tf.Tensor | None) -> tf.Tensor:
        features = dropout(features, self.config.dropout, dropout_key)
        return tf.matmul(features, local["head_kernel"]) + local["head_bias"]


class TextCNN(_TextNetwork, Layered):
    """The TextCNN of FedWeIT and of the baselines: foreign adaptives, if any, are added into its kernels.

    Shown with `TextCNNConfig`.
    """

    adds_foreign = True
    shareable = ("head_kernel", "head_bias")

    def __init__(self, config: TextCNNConfig, num_foreign: int = 0):
        super().__init__(config, num_foreign)
        self.local = VectorLayout(self._biases + self._head)
        names = [(kernel, bias) for (kernel, _), (bias, _) in zip(self.kernels.parts, self._biases)]
        self.layers = tuple(LinearLayer(*pair) for pair in (*names, ("head_kernel", "head_bias")))

    def logits(
        self,
        kernels: tf.Tensor,
        local: tf.Tensor,
        attention: tf.Tensor,
        context: Tensors,
        examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:
        parts = self.local.split(local)
        return self._scores(self._features(kernels, parts, context, examples), parts, dropout_key)

    def layer_inputs(
        self, kernels: tf.Tensor, local: tf.Tensor, attention: tf.Tensor, context: Tensors, examples: Tensors
    ) -> tuple[tf.Tensor, ...]:
        sizes = self.config.kernel_sizes
        tokens = text.padded(context["tokens"], examples["start"], examples["length"])
        tokens = text.pad_tokens(tokens, max(sizes))
        windows = [each.vectors for each in text.gather_windows(tokens, context["vectors"], sizes)]
        return (*windows, self._features(kernels, self.local.split(local), context, examples))


class AlignedTextCNN(_TextNetwork):
    """The TextCNN of FedSeIT: foreign adaptives are feature extractors of their own, aligned by W_f (eq. 2, 3).

    Shown in examples/fedseit_trec.py.
    """

    adds_foreign = False

    def __init__(self, config: TextCNNConfig, num_foreign: int):
        super().__init__(config, num_foreign)
        sizes, filters, features = config.kernel_sizes, config.num_filters, self.num_features
        blocks = min(num_foreign, 1) if config.foreign_projection == "mean" else num_foreign
        projections = tuple((f"foreign_projection_{k}", (blocks * filters, filters)) for k in sizes)
        augment = (("augment_projection", (2 * features, features)), ("augment_bias", (features,)))
        self.local = VectorLayout(self._biases + projections + augment + self._head)
        self.shareable = tuple(name for name, _ in self.local.parts if not name.startswith("bias_"))
        # The same vector with W_f as one tensor of K squares, or one, for each kernel size.
        joint = (("foreign_projection", (len(sizes), blocks, filters, filters)),)
        self._parts = VectorLayout(self._biases + joint + augment + self._head)
        responses = tff.TensorType(np.float32, [None, None, 2, features])
        self.prepared_type = OrderedDict(**self.example_type, foreign=responses)

    @property
    def local_pieces(self) -> tuple[int, ...]:
        """W_f, most of the entries, apart from the entries before and behind it."""
        own = self._parts.slice_of("foreign_projection")
        return own.start, own.stop - own.start, self.local.size - own.stop

    def prepare(self, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        documents = (context["tokens"], examples["start"], examples["length"], context["vectors"])
        return OrderedDict(**examples, foreign=text.foreign_responses(self.kernels, foreign, *documents))

    def batch(self, examples: Tensors, rows: tf.Tensor) -> Tensors:
        """Examples number `rows`, but `foreign` whole: `aligned` looks up no more of it than it needs."""
        cut = {name: values for name, values in examples.items() if name != "foreign"}
        return OrderedDict(super().batch(cut, rows), foreign=examples["foreign"], rows=rows)

    def logits(
        self,
        kernels: tf.Tensor,
        local: tf.Tensor,
        attention: tf.Tensor,
        context: Tensors,
        examples: Tensors,
        dropout_key: tf.Tensor | None,
    ) -> tf.Tensor:
        parts = self._parts.split(local)
        own = self._features(kernels, parts, context, examples)
        aligned = text.aligned(attention, examples["foreign"], parts["foreign_projection"], examples.get("rows"))
        joined = tf.matmul(tf.concat([own, aligned], axis=1), parts["augment_projection"]) + parts["augment_bias"]
        return self._scores(tf.nn.relu(joined), parts, dropout_key)
