"""How rows of the knowledge base reach the clients: each gets its own by `tff.federated_select`."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.templates.placed import at_clients, at_server


class Incoming:
    """Rows that clients receive at the start of a task.

    Args:
      knowledge_size: values in a row.
      num_foreign: K, the most rows of a client.

    Attributes:
      type: what the knowledge base sends: rows at the server, and for each client the keys and number of its own.
    """

    def __init__(self, knowledge_size: int, num_foreign: int):
        self._size, self._most = knowledge_size, num_foreign
        self.rows_type = tff.TensorType(np.float32, [None, knowledge_size])
        self.type = tff.to_type(
            OrderedDict(
                rows=at_server(self.rows_type),
                keys=at_clients(tff.TensorType(np.int32, [num_foreign])),
                count=at_clients(np.int32),
            )
        )

    def received(self, transfer_in: tff.Value) -> tff.Value:
        """Each client's own rows, `{float32[k, knowledge_size]}@CLIENTS`, k <= K."""
        size, most = self._size, self._most
        if most == 0:
            nothing = tff.tensorflow.computation(lambda count: tf.zeros([0, size]), tff.TensorType(np.int32))
            return tff.federated_map(nothing, transfer_in.count)

        @tff.tensorflow.computation(self.rows_type, tff.TensorType(np.int32))
        def one_row(rows: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.gather(rows, key), [size])

        @tff.tensorflow.computation(self.rows_type)
        def last_key(rows: tf.Tensor) -> tf.Tensor:
            return tf.shape(rows)[0] - 1

        row_type = tff.TensorType(np.float32, [size])

        @tff.tensorflow.computation(tff.SequenceType(row_type), tff.TensorType(np.int32))
        def stack(rows: tf.data.Dataset, count: tf.Tensor) -> tf.Tensor:
            stacked = rows.batch(most).reduce(tf.zeros([0, size]), lambda _, batch: batch)
            return stacked[:count]

        largest = tff.federated_map(last_key, transfer_in.rows)
        chosen = tff.federated_select(transfer_in.keys, largest, transfer_in.rows, one_row)
        return tff.federated_map(stack, (chosen, transfer_in.count))
