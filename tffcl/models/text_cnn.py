"""TextCNN (Kim, 2014) as the client network of FedSeIT and FedWeIT (FedSeIT, appendix B and figure 3)."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.layers import foreign as foreign_lib
from tffcl.layers import windows
from tffcl.layers.kernels import KernelLayout, VectorLayout
from tffcl.models.network import Classifier, Tensors, document_types, dropout, glorot_uniform
from tffcl.models.options import TextCNNConfig


class _TextNetwork(Classifier):
    """What both networks have: convolutions over word vectors, and documents as data."""

    def __init__(self, config: TextCNNConfig, num_foreign: int):
        if num_foreign < 0:
            raise errors.InputError(f"num_foreign: expected at least 0, found {num_foreign}")
        self.config = config
        self.num_foreign = num_foreign
        self.max_classes = config.max_classes
        self.kernels = KernelLayout(
            tuple((f"conv_{k}", (k, config.embedding_size, config.num_filters)) for k in config.kernel_sizes)
        )
        self.context_type, documents = document_types(config.embedding_size)
        self.example_type = OrderedDict(documents, label=tff.TensorType(np.int32, [None]))
        self.prepared_type = self.example_type

    @property
    def num_features(self) -> int:
        """Pooled features of a document: filters of all kernel sizes."""
        return self.config.num_filters * len(self.config.kernel_sizes)

    def _bias_parts(self) -> tuple:
        return tuple((f"bias_{k}", (self.config.num_filters,)) for k in self.config.kernel_sizes)

    def initial_kernels(self, key: tf.Tensor) -> tf.Tensor:
        shapes = [shape for _, shape in self.kernels.parts]
        drawn = glorot_uniform(shapes, key, self.config.base_scale)
        return tf.concat([tf.reshape(kernel, [-1]) for kernel in drawn], 0)

    def initial_local(self, key: tf.Tensor) -> tf.Tensor:
        drawn = glorot_uniform([shape for _, shape in self.local.parts], key)
        return tf.concat([tf.reshape(part, [-1]) for part in drawn], 0)

    def _features(self, kernels: tf.Tensor, local: Tensors, context: Tensors, examples: Tensors) -> tf.Tensor:
        own = self.kernels.split(kernels)
        biases = [local[f"bias_{k}"] for k in self.config.kernel_sizes]
        tokens = windows.padded(context["tokens"], examples["start"], examples["length"])
        return windows.pooled_convolution(tokens, context["vectors"], list(own.values()), biases)


class TextCNN(_TextNetwork):
    """The TextCNN of FedWeIT and of the baselines: foreign adaptives, if any, are added into its kernels."""

    adds_foreign = True
    shareable = ("head_kernel", "head_bias")

    def __init__(self, config: TextCNNConfig, num_foreign: int = 0):
        super().__init__(config, num_foreign)
        head = (("head_kernel", (self.num_features, config.max_classes)), ("head_bias", (config.max_classes,)))
        self.local = VectorLayout(self._bias_parts() + head)

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        scale = self.config.attention_scale
        return tf.random.stateless_uniform(self.attention_shape, key, -scale, scale)

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
        features = self._features(kernels, parts, context, examples)
        features = dropout(features, self.config.dropout, dropout_key)
        return tf.matmul(features, parts["head_kernel"]) + parts["head_bias"]


class AlignedTextCNN(_TextNetwork):
    """The TextCNN of FedSeIT: foreign adaptives are feature extractors of their own, aligned by W_f (eq. 2, 3)."""

    adds_foreign = False

    def __init__(self, config: TextCNNConfig, num_foreign: int):
        super().__init__(config, num_foreign)
        filters, features = config.num_filters, self.num_features
        projections = tuple((f"foreign_projection_{k}", (num_foreign * filters, filters)) for k in config.kernel_sizes)
        self.local = VectorLayout(
            self._bias_parts()
            + projections
            + (
                ("augment_projection", (2 * features, features)),
                ("augment_bias", (features,)),
                ("head_kernel", (features, config.max_classes)),
                ("head_bias", (config.max_classes,)),
            )
        )
        self.shareable = tuple(name for name, _ in self.local.parts if not name.startswith("bias_"))
        kernels = len(config.kernel_sizes)
        # The same vector with W_f as one tensor of K squares for each kernel size.
        joint = (("foreign_projection", (kernels, num_foreign, filters, filters)),)
        self._parts = VectorLayout(self._bias_parts() + joint + self.local.parts[2 * kernels :])
        responses = tff.TensorType(np.float32, [None, None, 2, features])
        self.prepared_type = OrderedDict(**self.example_type, foreign=responses)

    @property
    def local_pieces(self) -> tuple[int, ...]:
        """W_f, which is most of it, apart from what stands before and behind."""
        own = self._parts.slice_of("foreign_projection")
        return own.start, own.stop - own.start, self.local.size - own.stop

    def initial_attention(self, key: tf.Tensor) -> tf.Tensor:
        scale = self.config.attention_scale
        return tf.random.stateless_uniform(self.attention_shape, key, 1.0 - scale, 1.0 + scale)

    def prepare(self, foreign: tf.Tensor, context: Tensors, examples: Tensors) -> Tensors:
        responses = foreign_lib.foreign_responses(
            self.kernels, foreign, context["tokens"], examples["start"], examples["length"], context["vectors"]
        )
        return OrderedDict(**examples, foreign=responses)

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
        aligned = foreign_lib.aligned(attention, examples["foreign"], parts["foreign_projection"], examples.get("rows"))
        augmented = tf.concat([own, aligned], axis=1)
        augmented = tf.nn.relu(tf.matmul(augmented, parts["augment_projection"]) + parts["augment_bias"])
        augmented = dropout(augmented, self.config.dropout, dropout_key)
        return tf.matmul(augmented, parts["head_kernel"]) + parts["head_bias"]
