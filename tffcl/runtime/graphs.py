"""TensorFlow computations as functions of eager tensors, made once from the graph that TFF compiled.

Two functions come out of one graph: the initializer, which has to run first, and the rest. The graph's variables,
tables and queues are inputs to both: every call makes its own, so that calls may overlap and none sees what another
left behind.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tffcl import errors
from tffcl.runtime import values

# The name that makes TensorFlow create a nameless variable, freed together with its last handle.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"

# Tables, and the operations that make one without a name in each call, which is freed with its last handle.
_TABLES = {
    "HashTableV2": "AnonymousHashTable",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableHashTableV2": "AnonymousMutableHashTable",
}
_NAMING = ("container", "shared_name", "use_node_name_sharing", "_class")  # attributes that no nameless table has

# These always have a name, by which others could find them: they are destroyed after the call.
_QUEUES = ("FIFOQueueV2", "PaddingFIFOQueueV2", "PriorityQueueV2", "RandomShuffleQueueV2")

Values = Any  # a tensor or a sequence, or nested tuples of them


class _SequenceName(str):
    """The name of a tensor that stands for a data set."""


class GraphFunction:
    """One TensorFlow computation; a call costs little more than the call of a `tf.function`."""

    def __init__(self, proto: Any, prefix: str) -> None:
        """Imports the graph of a `computation_pb2.TensorFlow`, whose functions get names that begin with `prefix`.

        It is a RunError if it cannot be imported, or has contents that would stay from call to call.
        """
        graph_def = tf.compat.v1.GraphDef()
        proto.graph_def.Unpack(graph_def)
        _prefix_functions(graph_def, prefix)
        nodes = {node.name: node for node in graph_def.node}
        self._variables = _free_variables(nodes)
        makers = _free_tables_and_queues(nodes)
        self._parameter = _names(proto.parameter) if proto.HasField("parameter") else ()
        self._result = _names(proto.result)
        token = proto.session_token_tensor_name
        self._session_token = [token] if _node_name(token) in nodes else []
        inputs = [*_flat(self._parameter), *self._session_token, *self._variables]
        self._tables_and_queues = _TablesAndQueues(graph_def, nodes, inputs, makers, prefix) if makers else None
        import_part = functools.partial(_import, graph_def, nodes, [*inputs, *makers])
        self._initialize = import_part([], proto.initialize_op) if proto.initialize_op else None
        self._run = import_part(list(_flat(self._result)))
        parts = [self._run, *filter(None, [self._initialize])]
        everything = range(len(inputs)) if self._tables_and_queues else ()
        self._read = {*everything, *(place for part in parts for place in part.reads)}
        self._first_call = threading.Lock()
        self._called = False

    def __call__(self, argument: Values = ()) -> Values:
        """Results as tensors, for tensors or arrays in the structure of the computation's parameter, if it has one."""
        if self._called:
            return self._call(argument)
        # TensorFlow optimises the graph now: once, not in all threads at the same time, also where the call fails.
        with self._first_call:
            try:
                return self._call(argument)
            finally:
                self._called = True

    def _call(self, argument: Values) -> Values:
        # What the graph does not read is no tensor yet, and need not become one.
        given = enumerate(_flat(argument)) if self._parameter != () else ()
        tensors = [tf.convert_to_tensor(each) if place in self._read else None for place, each in given]
        tensors += [tf.constant("") for _ in self._session_token]
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
        return values.Sequence(tensor, owner=self) if isinstance(names, _SequenceName) else tensor


class _Part:
    """A concrete function of those of a graph's inputs that it reads, whose places among all are `reads`."""

    def __init__(self, function: Any, reads: Sequence[int]) -> None:
        self._function, self.reads = function, reads
        # What the function calls at last: from tensors to tensors, in half the time of finding out how it was called.
        self._call = function._inference_function

    def __call__(self, *inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        return self._call(*[inputs[place] for place in self.reads]) or ()  # None of no outputs


class _TablesAndQueues:
    """Makes those of a graph for each call.

    A table has no name, and is freed with its last handle, which a data set may hold. A queue has one, and is destroyed
    after the call; calls at the same time have functions of their own that make theirs under other names.
    """

    def __init__(
        self,
        graph_def: tf.compat.v1.GraphDef,
        nodes: Mapping[str, Any],
        feeds: Sequence[str],
        makers: Mapping[str, Any],
        prefix: str,
    ) -> None:
        self._graph_def, self._nodes, self._feeds, self._makers = graph_def, nodes, feeds, makers
        self._prefix, self._count, self._lock = prefix, 0, threading.Lock()
        self._free: list[Callable[..., Any]] = []

    @contextlib.contextmanager
    def made(self, tensors: Sequence[tf.Tensor]) -> Iterator[Sequence[tf.Tensor]]:
        """The handles, in the order of the makers."""
        with self._lock:
            make = self._free.pop() if self._free else self._import()
        handles: Sequence[tf.Tensor] = []
        try:
            handles = make(*tensors)
            yield handles
        finally:
            for handle, maker in zip(handles, self._makers.values()):
                if maker.op in _QUEUES:
                    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
            self._free.append(make)

    def _import(self) -> Callable[..., Any]:
        self._count += 1
        own = {}
        for maker in self._makers.values():
            own[maker.name] = node = tf.compat.v1.NodeDef()
            node.CopyFrom(maker)
            if node.op in _QUEUES:
                node.attr["shared_name"].s = f"{self._prefix}_{self._count}_{node.name}".encode()
        nodes = {**self._nodes, **own}
        return _import(self._graph_def, nodes, self._feeds, list(self._makers), makers=own.keys())


def _names(binding: Any) -> Values:
    """Tensor names of a `computation_pb2.TensorFlow.Binding`, in nested tuples."""
    form = binding.WhichOneof("binding")
    if form == "struct":
        return tuple(_names(element) for element in binding.struct.element)
    if form == "sequence":
        return _SequenceName(binding.sequence.variant_tensor_name)
    return binding.tensor.tensor_name


def _flat(nested: Values) -> Iterable[Any]:
    if isinstance(nested, tuple):
        for value in nested:
            yield from _flat(value)
    else:
        yield nested.variant if isinstance(nested, values.Sequence) else nested


def _node_name(tensor: str) -> str:
    """The node of a tensor ("x:0") or of a control edge ("^x")."""
    return tensor.lstrip("^").split(":")[0]


# -- graphs as TensorFlow writes them down, made fit for a process that has others -----------------------------


def _prefix_functions(graph_def: tf.compat.v1.GraphDef, prefix: str) -> None:
    """Gives a graph's functions names that no other graph has.

    A process has one name space for them, and TFF's optimiser leaves functions of one name with several bodies.
    """
    library = graph_def.library
    names = {function.signature.name: f"{prefix}_{function.signature.name}" for function in library.function}
    for function in library.function:
        function.signature.name = names[function.signature.name]
    for gradient in library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for nodes in (graph_def.node, *(function.node_def for function in library.function)):
        for node in nodes:
            node.op = names.get(node.op, node.op)
            for called in _called_by(node):
                called.name = names.get(called.name, called.name)


def _free_variables(nodes: Mapping[str, Any]) -> dict[str, tuple[tf.DType, tf.TensorShape]]:
    """Turns a graph's variables into placeholders; returns the type and shape of each, by the name of its handle."""
    variables = {}
    for node in nodes.values():
        if node.op == "VarHandleOp":
            dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
            variables[f"{node.name}:0"] = dtype, tf.TensorShape(node.attr["shape"].shape)
            _become_handle(node)
    return variables


def _free_tables_and_queues(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a graph's tables and queues into placeholders; returns nodes that make new ones, by the handle's name."""
    makers = {}
    for node in nodes.values():
        if node.op in _TABLES or node.op in _QUEUES:
            maker = makers[f"{node.name}:0"] = tf.compat.v1.NodeDef()
            maker.CopyFrom(node)
            maker.op = _TABLES.get(node.op, node.op)
            for name in _NAMING:
                maker.attr.pop(name, None)
            _become_handle(node)
    return makers


def _become_handle(node: Any) -> None:
    node.op = "Placeholder"
    node.ClearField("input")
    node.ClearField("attr")
    node.attr["dtype"].type = tf.resource.as_datatype_enum


def _import(
    graph_def: tf.compat.v1.GraphDef,
    nodes: Mapping[str, Any],
    feeds: Sequence[str],
    outputs: Sequence[str],
    operation: str = "",
    makers: AbstractSet[str] = frozenset(),
) -> _Part:
    """The part of a graph from some tensors to others, or one that runs an operation.

    `nodes` are the graph's, some of them changed. The contents of `makers`, nodes by name, do not outlive the call.
    """
    targets = [operation] if operation else list(outputs)
    part = _needed(graph_def, nodes, targets, set(map(_node_name, feeds)))
    functions = {function.signature.name for function in part.library.function}
    for held in ([node for node in part.node if node.name not in makers], *(f.node_def for f in part.library.function)):
        _refuse_shared(held, functions)
    present = {node.name for node in part.node}
    reads = [place for place, name in enumerate(feeds) if _node_name(name) in present]

    def body(*tensors: tf.Tensor) -> Any:
        fed = {feeds[place]: tensor for place, tensor in zip(reads, tensors)}
        imported = tf.graph_util.import_graph_def(part, fed, targets, name="")
        if not operation:
            return imported
        with tf.control_dependencies(imported):
            return [tf.constant(0)]

    def spec(placeholder: Any) -> tf.TensorSpec:
        shape = tf.TensorShape(placeholder.attr["shape"].shape) if "shape" in placeholder.attr else []
        return tf.TensorSpec(shape, tf.dtypes.as_dtype(placeholder.attr["dtype"].type))

    try:
        specs = [spec(nodes[_node_name(feeds[place])]) for place in reads]
        return _Part(tf.compat.v1.wrap_function(body, specs), reads)
    except ValueError as error:
        raise errors.RunError(f"cannot import a compiled graph into this process: {error}") from error


def _needed(
    graph_def: tf.compat.v1.GraphDef, nodes: Mapping[str, Any], targets: Iterable[str], feeds: AbstractSet[str]
) -> tf.compat.v1.GraphDef:
    """The nodes that some targets need, as a session would run them, in the order of the graph.

    Nodes wait for no feed by a control edge: nothing stands in the feed's place once it is an argument.
    """
    reached: set[str] = set()
    waiting = [_node_name(target) for target in targets]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            kept = [each for each in nodes[name].input if each[0] != "^" or each[1:] not in feeds]
            nodes[name].ClearField("input")
            nodes[name].input.extend(kept)
            waiting += map(_node_name, kept)
    needed = [node for name, node in nodes.items() if name in reached]
    return tf.compat.v1.GraphDef(
        node=needed, library=_called_functions(graph_def.library, needed), versions=graph_def.versions
    )


def _called_functions(library: Any, nodes: Iterable[Any]) -> Any:
    """The part of a library that some nodes call, functions that others call included."""
    functions = {function.signature.name: function for function in library.function}
    gradients = {each.function_name: each for each in library.gradient}
    reached: dict[str, Any] = {}
    waiting = [name for node in nodes for name in _calls(node)]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in reached:
            reached[name] = functions[name]
            waiting += [called for node in functions[name].node_def for called in _calls(node)]
            waiting += [gradients[name].gradient_func] if name in gradients else []
    return type(library)(
        function=[each for name, each in functions.items() if name in reached],
        gradient=[each for name, each in gradients.items() if name in reached],
    )


def _calls(node: Any) -> Iterator[str]:
    """What may be names of functions that a node calls."""
    yield node.op
    for called in _called_by(node):
        yield called.name


def _called_by(node: Any) -> Iterator[Any]:
    """The attributes of a node that name functions."""
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        elif value.HasField("list"):
            yield from value.list.func


@functools.cache
def _can_be_shared(operation: str) -> bool:
    """Whether an operation, none of the functions of a graph, makes something that others can find by a name."""
    definition = op_def_registry.get(operation)
    return definition is not None and any(each.name == "shared_name" for each in definition.attr)


def _refuse_shared(nodes: Iterable[Any], functions: AbstractSet[str]) -> None:
    """Whatever can be shared by name, such as an iterator or a reader, outlives the call that has made it."""
    for node in nodes:
        if node.op not in functions and _can_be_shared(node.op):
            raise errors.RunError(
                f"the in-process runtime cannot run {node.op} ({node.name}): its contents would stay from call to "
                "call; runtime.local() runs it"
            )
