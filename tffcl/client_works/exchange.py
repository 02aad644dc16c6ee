"""What passes between the server and the decomposed client work: the base and, with DLS, dense local parts.

The server holds one flat vector: the base B, then the shared local parts one after the other.
"""

from __future__ import annotations

import tensorflow as tf

from tffcl.client_works.options import Decomposition
from tffcl.models.network import Network


class Exchange:
    """Takes the server's vector apart and puts a client's update together.

    Args:
      network: whose kernels and local parts travel.
      options: which of them, and how.

    Attributes:
      size: entries of the server's vector.
    """

    def __init__(self, network: Network, options: Decomposition):
        self._kernels, self._local, self._options = network.kernels, network.local, options
        self._dense = network.shareable if options.share_dense and options.exchange else ()
        self._slices = {name: network.local.slice_of(name) for name in self._dense}
        self.size = self._kernels.size + sum(part.stop - part.start for part in self._slices.values())

    def join(self, base: tf.Tensor, local: tf.Tensor) -> tf.Tensor:
        """The vector of a base and the shared ones among local parameters, float32 `[size]`."""
        return tf.concat([base, *[local[part] for part in self._slices.values()]], 0)

    def base_in(self, base: tf.Tensor, shared: tf.Tensor) -> tf.Tensor:
        """B takes the non-zero entries of the server's base and keeps its own elsewhere (section 2.2)."""
        if not self._options.exchange:
            return base
        theirs = shared[: self._kernels.size]
        return tf.where(tf.not_equal(theirs, 0.0), theirs, base)

    def local_in(self, local: tf.Tensor, shared: tf.Tensor) -> tf.Tensor:
        """Local parameters with the shared ones (DLS) in their place."""
        if not self._dense:
            return local
        parts, start = self._local.split(local), self._kernels.size
        for name, part in self._slices.items():
            stop = start + part.stop - part.start
            parts[name] = shared[start:stop]
            start = stop
        return self._local.join(parts)

    def gate(self, mask_logits: tf.Tensor) -> tf.Tensor:
        """Which units the mask lets through, bool `[mask_size]`."""
        return tf.sigmoid(mask_logits) > self._options.gate_cutoff

    def outgoing(
        self,
        base: tf.Tensor,
        mask_logits: tf.Tensor,
        local: tf.Tensor,
        shared: tf.Tensor,
        support: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The vector as a client sends it, and which of its entries it sends: float32 and bool `[size]`.

        Entries outside `support`, float32 `[kernels.size]` of zeros and ones, are not sent.
        """
        if not self._options.exchange:
            return shared, tf.zeros([self.size], tf.bool)
        if self._options.base_upload == "scaled":
            base = base * self._kernels.spread(tf.sigmoid(mask_logits))
            sent = tf.ones([self._kernels.size], tf.bool)
        else:
            sent = self._kernels.spread(tf.cast(self.gate(mask_logits), tf.float32)) > 0.5
        if support is not None:
            sent = tf.logical_and(sent, support > 0.5)
        dense = tf.ones([self.size - self._kernels.size], tf.bool)
        return self.join(base, local), tf.concat([sent, dense], 0)
