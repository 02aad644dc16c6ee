"""Sequences: data sets as the variant tensors that compiled graphs take and give."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.types import computation_types, type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from tffcl import errors


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A data set as the tensor that stands for it in a graph, and what has to live as long as it does."""

    variant: tf.Tensor
    owner: Any = None


def sequence_of(value: Any, element: tff.Type, where: str) -> Sequence:
    """A sequence.

    Args:
      value: A `tf.data.Dataset`, or a list of elements.
      element: Type of the elements.
      where: Names the value in errors.

    Raises:
      ArgumentError: If the value is no such sequence.
    """
    with tf.device("CPU:0"):
        try:
            if isinstance(value, list):
                value = tensorflow_utils.make_data_set_from_elements(None, value, element)
            found = tff.SequenceType(computation_types.tensorflow_to_type(value.element_spec))
        except (AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
            raise errors.ArgumentError(
                f"{where}: expected a tf.data.Dataset or a list with elements of type {element}, "
                f"found {type(value).__name__}"
            ) from error
        if not tff.SequenceType(element).is_assignable_from(found):
            raise errors.ArgumentError(f"{where}: expected elements of type {element}, found {found.element}")
        return Sequence(tf.data.experimental.to_variant(value), owner=value)


def dataset_of(sequence: Sequence, element: tff.Type) -> tf.data.Dataset:
    """The data set behind a sequence, its elements in containers as TFF gives them."""
    with tf.device("CPU:0"):
        spec = type_conversions.type_to_py_container(
            type_conversions.type_to_tf_structure(_with_containers(element)), element
        )
        dataset = tf.data.experimental.from_variant(sequence.variant, spec)
        coerced = tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(dataset, element)
    coerced.tffcl_owner = sequence.owner
    return coerced


def elements_of(sequence: Sequence, element: tff.Type) -> Iterator[Any]:
    """The elements, each a tensor or nested tuples of tensors."""
    for item in dataset_of(sequence, element):
        yield _as_tuples(item, element)


def sequence_from(elements: list, element: tff.Type) -> Sequence:
    """A sequence of elements in the form of `elements_of`."""
    with tf.device("CPU:0"):
        datasets = [tf.data.Dataset.from_tensors(_in_containers(item, element)) for item in elements]
        if not datasets:
            dataset = tensorflow_utils.make_data_set_from_elements(None, [], element)
        else:
            dataset = datasets[0]
            for other in datasets[1:]:
                dataset = dataset.concatenate(other)
        return Sequence(tf.data.experimental.to_variant(dataset), owner=dataset)


def _with_containers(kind: tff.Type) -> tff.Type:
    """The type with the containers that TensorFlow needs: an `OrderedDict` where there are names, else a tuple."""
    if not isinstance(kind, tff.StructType):
        return kind
    items = [(name, _with_containers(each)) for name, each in tff.structure.iter_elements(kind)]
    container = OrderedDict if items and items[0][0] else tuple
    return tff.StructWithPythonType(items, container)


def _as_tuples(item: Any, kind: tff.Type) -> Any:
    if not isinstance(kind, tff.StructType):
        return item
    parts = tff.structure.iter_elements(kind)
    return tuple(_as_tuples(item[name] if name else item[index], each) for index, (name, each) in enumerate(parts))


def _in_containers(item: Any, kind: tff.Type) -> Any:
    if not isinstance(kind, tff.StructType):
        return item
    names = tff.structure.name_list_with_nones(kind)
    values = [_in_containers(value, each) for value, each in zip(item, kind)]
    return OrderedDict(zip(names, values)) if names and names[0] else tuple(values)
