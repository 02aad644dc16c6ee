"""TensorFlow computations as functions of eager tensors, made once from the graph that TFF compiled.

Two functions come out of one graph: the initializer, which has to run first, and the rest. The graph's variables,
tables and queues are inputs to both: every call makes its own, so that calls may overlap and none sees what another
left behind.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as PySequence
from collections.abc import Set as AbstractSet
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
        makers = graph_defs.free_tables_and_queues(nodes)
        self._parameter = _names(proto.parameter) if proto.HasField("parameter") else ()
        self._result = _names(proto.result)
        inputs = list(_flat(self._parameter))
        self._session_token = proto.session_token_tensor_name
        if self._session_token.split(":")[0] not in nodes:
            self._session_token = ""
        inputs += [self._session_token] if self._session_token else []
        inputs += self._variables
        self._tables_and_queues = _TablesAndQueues(graph_def, nodes, inputs, makers, prefix) if makers else None
        part = functools.partial(_import, graph_def, nodes, [*inputs, *makers])
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
        made = self._tables_and_queues.made(tensors) if self._tables_and_queues else contextlib.nullcontext([])
        with made as others:
            if self._initialize is not None:
                self._initialize(*tensors, *others)
            outputs = iter(self._run(*tensors, *others))
        return self._structured(self._result, outputs)

    def _structured(self, names: Values, outputs: Iterator[tf.Tensor]) -> Values:
        if isinstance(names, tuple):
            return tuple(self._structured(part, outputs) for part in names)
        tensor = next(outputs)
        # The functions that a data set calls live as long as the graph that has made it.
        return Sequence(tensor, owner=self) if isinstance(names, _Sequence) else tensor


class _TablesAndQueues:
    """Makes those of a graph for each call.

    A table has no name, and is freed with its last handle, which a data set may hold. A queue has one, and is destroyed
    after the call; calls at the same time have functions of their own that make theirs under other names.
    """

    def __init__(
        self,
        graph_def: tf.compat.v1.GraphDef,
        nodes: Mapping[str, Any],
        feeds: PySequence[str],
        makers: Mapping[str, Any],
        prefix: str,
    ) -> None:
        self._graph_def, self._nodes, self._feeds, self._makers = graph_def, nodes, feeds, makers
        self._prefix, self._count, self._lock = prefix, 0, threading.Lock()
        self._free: list[Callable[..., Any]] = []

    @contextlib.contextmanager
    def made(self, tensors: PySequence[tf.Tensor]) -> Iterator[PySequence[tf.Tensor]]:
        """The handles, in the order of the makers."""
        with self._lock:
            make = self._free.pop() if self._free else self._import()
        handles: PySequence[tf.Tensor] = []
        try:
            handles = make(*tensors)
            yield handles
        finally:
            for handle, maker in zip(handles, self._makers.values()):
                if graph_defs.has_a_name(maker):
                    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
            self._free.append(make)

    def _import(self) -> Callable[..., Any]:
        self._count += 1
        named = [graph_defs.named(maker, f"{self._prefix}_{self._count}") for maker in self._makers.values()]
        own = {maker.name: maker for maker in named}
        return _import(self._graph_def, {**self._nodes, **own}, self._feeds, list(self._makers), "", own.keys())


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
    makers: AbstractSet[str] = frozenset(),
) -> Callable[..., Any]:
    """A concrete function from some tensors of the graph to others, with an operation run first."""
    targets = [*outputs, *([operation] if operation else [])]
    part = graph_defs.needed(graph_def, nodes, targets, set(map(graph_defs.node_name, feeds)), makers)
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
