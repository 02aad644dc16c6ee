"""Named tensors in files, written and read by TensorFlow operations, so that it happens where a computation runs.

A file is a TensorFlow checkpoint: `PREFIX.index` and `PREFIX.data-00000-of-00001`. It carries names, dtypes, shapes and
a checksum of every tensor; TensorFlow writes both parts under other names and renames them, the index last. So a reader
finds a file whole or not at all, and one that was damaged later is an error. Outside of TensorFlow graphs
`tf.train.load_checkpoint(PREFIX)` reads the same files. TFF's worker has all operations that are used here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.templates.tff_types import as_type


def write(prefix: tf.Tensor, tensors: Mapping[str, tf.Tensor]) -> tf.Operation:
    """Writes a file whole or not at all, over one that is there.

    Args:
      prefix: string, the path without its ending; its folder must be there (`make_folder`).
      tensors: what it is to hold, of any dtypes and shapes.
    """
    return tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(tensors), shape_and_slices=[""] * len(tensors), tensors=list(tensors.values())
    )


def read(prefix: tf.Tensor, types: Mapping[str, tff.TensorType]) -> OrderedDict[str, tf.Tensor]:
    """Some of the tensors of a file; the others are not touched.

    Args:
      prefix: as for `write`.
      types: name -> type of those that are wanted.
    """
    if not types:
        return OrderedDict()
    found = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=list(types),
        shape_and_slices=[""] * len(types),
        dtypes=[tf.dtypes.as_dtype(kind.dtype) for kind in types.values()],
    )
    return OrderedDict((name, as_type("read", name, value, kind)) for (name, kind), value in zip(types.items(), found))


def remove(prefix: tf.Tensor, scrap: tf.Tensor) -> Any:
    """Removes a file if it is there.

    TensorFlow has no operation that deletes a file, but one that renames checkpoints: what is removed becomes `scrap`,
    in the place of what was removed before.
    """
    present = tf.size(tf.io.matching_files(tf.strings.join([prefix, ".index"]))) > 0

    def rename() -> tf.Tensor:
        renamed = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefix[None], destination_prefix=scrap, delete_old_dirs=False, allow_missing_files=True
        )
        with tf.control_dependencies([renamed]):
            return tf.constant(True)

    return tf.cond(present, rename, lambda: tf.constant(False))


def make_folder(folder: tf.Tensor, text: tf.Tensor) -> tf.Operation:
    """Makes a folder, with all above it, and in it `about.txt` with some text."""
    return tf.io.write_file(tf.strings.join([folder, "/about.txt"]), text)
