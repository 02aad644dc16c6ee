"""TensorFlow computations as functions of eager tensors, made once from the graph that TFF compiled.

Two functions come out of one graph: the initializer, which has to run first, and the rest. The graph's variables and
tables are inputs to both: every call makes its own, so that calls may overlap and none sees what another left behind.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as PySequence
from typing import Any, Optional

import tensorflow as tf

from tffcl import errors
from tffcl.runtime import graph_defs
from tffcl.runtime.sequences import Sequence

# The name that makes TensorFlow create a nameless variable, freed together with its last handle.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"

Values = Any  # a tensor or a sequence, or nested tuples of them


class _Sequence(str):
    """The name of a tensor that stands for a data set."""


class GraphFunction:
    """One TensorFlow computation; a call costs little more than the call of a `tf.function`."""

    def __init__(self, proto: Any, prefix: str) -> None:
        """Imports the graph.

        Args:
          proto: A `computation_pb2.TensorFlow`.
          prefix: Keeps the functions of one graph apart from those of all others.

        Raises:
          RunError: It cannot be imported, or holds what would stay from call to call.
        """
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        graph_defs.set_apart(graph_def, prefix)
        nodes = {node.name: node for node in graph_def.node}
        self._variables = graph_defs.free_variables(nodes)
        tables = graph_defs.free_tables(nodes)
        self._parameter = _names(proto.parameter) if proto.HasField("parameter") else ()
        self._result = _names(proto.result)
        inputs = list(_flat(self._parameter))
        self._session_token = proto.session_token_tensor_name
        if self._session_token.split(":")[0] not in nodes:
            self._session_token = ""
        inputs += [self._session_token] if self._session_token else []
        inputs += self._variables
        self._make_tables = None
        if tables:
            makers = {**nodes, **{maker.name: maker for maker in tables.values()}}
            self._make_tables = _import(graph_def, makers, inputs, list(tables), "")
        part = functools.partial(_import, graph_def, nodes, [*inputs, *tables])
        self._initialize = part([], proto.initialize_op) if proto.initialize_op else None
        self._run = part(list(_flat(self._result)), "")
        self._first_call = threading.Lock()
        self._called = False

    def __call__(self, argument: Values = ()) -> Values:
        """Runs the computation.

        Args:
          argument: Tensors or arrays, structured as the computation's parameter; nothing where it has none.

        Returns:
          Tensors, structured as its result.
        """
        if self._called:
            return self._call(argument)
        # TensorFlow optimises the graph now: once, not in all threads at the same time, also where the call fails.
        with self._first_call:
            try:
                return self._call(argument)
            finally:
                self._called = True

    def _call(self, argument: Values) -> Values:
        tensors = [tf.convert_to_tensor(each) for each in _flat(argument)] if self._parameter != () else []
        if self._session_token:
            tensors.append(tf.constant(""))
        handles = [
            tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=_ANONYMOUS)
            for dtype, shape in self._variables.values()
        ]
        tensors += handles
        if self._make_tables is not None:
            tensors += self._make_tables(*tensors)
        if self._initialize is not None:
            self._initialize(*tensors)
        outputs = iter(self._run(*tensors))
        return self._structured(self._result, outputs)

    def _structured(self, names: Values, outputs: Iterator[tf.Tensor]) -> Values:
        if isinstance(names, tuple):
            return tuple(self._structured(part, outputs) for part in names)
        tensor = next(outputs)
        # The functions that a data set calls live as long as the graph that has made it.
        return Sequence(tensor, owner=self) if isinstance(names, _Sequence) else tensor


class GraphCache:
    """Graph functions by the bytes of their computations, for as long as somebody holds them."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[bytes, GraphFunction] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, proto: Any) -> GraphFunction:
        """The function of a `computation_pb2.TensorFlow`, imported where that has not happened yet."""
        key = hashlib.sha256(proto.SerializeToString(deterministic=True)).digest()
        function = self._known.get(key)
        if function is None:
            function = self._known[key] = GraphFunction(proto, key.hex()[:16])
        return function


def _names(binding: Any) -> Values:
    """Tensor names of a `computation_pb2.TensorFlow.Binding`, in nested tuples."""
    kind = binding.WhichOneof("binding")
    if kind == "struct":
        return tuple(_names(element) for element in binding.struct.element)
    if kind == "sequence":
        return _Sequence(binding.sequence.variant_tensor_name)
    return binding.tensor.tensor_name


def _flat(values: Values) -> Iterable[Any]:
    if isinstance(values, tuple):
        for value in values:
            yield from _flat(value)
    else:
        yield values.variant if isinstance(values, Sequence) else values


def _import(
    graph_def: tf.compat.v1.GraphDef,
    nodes: Mapping[str, Any],
    feeds: PySequence[str],
    outputs: PySequence[str],
    operation: Optional[str],
) -> Callable[..., Any]:
    """A concrete function from some tensors of the graph to others, with an operation run first."""
    targets = [*outputs, *([operation] if operation else [])]
    part = graph_defs.needed(graph_def, nodes, targets, set(map(graph_defs.node_name, feeds)))
    present = {node.name for node in part.node}

    def body(*tensors: tf.Tensor) -> Any:
        given = {name: t for name, t in zip(feeds, tensors) if graph_defs.node_name(name) in present}
        targets = [operation] if operation else list(outputs)
        found = tf.graph_util.import_graph_def(part, given, targets, name="")
        if not operation:
            return found
        with tf.control_dependencies(found):
            return [tf.constant(0)]

    specs = [_spec(nodes[graph_defs.node_name(name)]) for name in feeds]
    try:
        return tf.compat.v1.wrap_function(body, specs)
    except ValueError as error:
        raise errors.RunError(f"cannot import a compiled graph into this process: {error}") from error


def _spec(placeholder: Any) -> tf.TensorSpec:
    shape = tf.TensorShape(placeholder.attr["shape"].shape) if "shape" in placeholder.attr else []
    return tf.TensorSpec(shape, tf.dtypes.as_dtype(placeholder.attr["dtype"].type))
