"""Graphs as TensorFlow writes them down, made fit to be imported into a process that has others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tffcl import errors

# Tables, and the operations that make one without a name in each call, which is freed with its last handle.
_TABLES = {
    "HashTableV2": "AnonymousHashTable",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableHashTableV2": "AnonymousMutableHashTable",
}
_NOT_OF_THESE = ("container", "shared_name", "use_node_name_sharing", "_class")  # what has no name, and stands alone

# These always have a name; one that was destroyed is made anew.
_QUEUES = ("FIFOQueueV2", "PaddingFIFOQueueV2", "PriorityQueueV2", "RandomShuffleQueueV2")


def set_apart(graph_def: tf.compat.v1.GraphDef, prefix: str) -> None:
    """Gives a graph's functions names that no other graph has.

    A process has one name space for them, and TFF's optimiser leaves functions of one name with several bodies.
    """
    names = {function.signature.name: f"{prefix}_{function.signature.name}" for function in graph_def.library.function}
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]
        _rename_calls(function.node_def, names)
    for gradient in graph_def.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    _rename_calls(graph_def.node, names)


def _rename_calls(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            functions = [value.func] if value.HasField("func") else value.list.func if value.HasField("list") else ()
            for function in functions:
                function.name = names.get(function.name, function.name)


def free_variables(nodes: Mapping[str, Any]) -> dict[str, tuple[tf.DType, tf.TensorShape]]:
    """Turns a graph's variables into placeholders.

    Returns:
      The type and shape of each variable, by the name of its handle.
    """
    variables = {}
    for node in nodes.values():
        if node.op == "VarHandleOp":
            dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
            variables[f"{node.name}:0"] = dtype, tf.TensorShape(node.attr["shape"].shape)
            _become_handle(node)
    return variables


def free_tables_and_queues(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a graph's tables and queues into placeholders.

    Returns:
      Nodes that make new ones, by the name of the handle; `named` gives queues a name.
    """
    makers = {}
    for node in nodes.values():
        if node.op in _TABLES or node.op in _QUEUES:
            maker = makers[f"{node.name}:0"] = tf.compat.v1.NodeDef()
            maker.CopyFrom(node)
            maker.op = _TABLES.get(node.op, node.op)
            for name in _NOT_OF_THESE:
                maker.attr.pop(name, None)
            _become_handle(node)
    return makers


def named(maker: Any, name: str) -> Any:
    """The node that makes a table, or a queue of that name."""
    if not has_a_name(maker):
        return maker
    found = tf.compat.v1.NodeDef()
    found.CopyFrom(maker)
    found.attr["shared_name"].s = f"{name}_{maker.name}".encode()
    return found


def has_a_name(maker: Any) -> bool:
    """Whether what a node makes has to be destroyed, since others could find it by its name."""
    return maker.op in _QUEUES


def _become_handle(node: Any) -> None:
    node.op = "Placeholder"
    node.ClearField("input")
    node.ClearField("attr")
    node.attr["dtype"].type = tf.resource.as_datatype_enum


def needed(
    graph_def: tf.compat.v1.GraphDef,
    nodes: Mapping[str, Any],
    targets: Iterable[str],
    feeds: AbstractSet[str],
    makers: AbstractSet[str] = frozenset(),
) -> tf.compat.v1.GraphDef:
    """The nodes that some targets need, as a session would run them, in the order of the graph.

    Nodes wait for no feed by a control edge: nothing stands in the feed's place once it is an argument.

    Args:
      graph_def: The graph.
      nodes: Its nodes by name; some may have changed.
      targets: Names of tensors or operations.
      feeds: Names of placeholders.
      makers: Names of nodes that make what is destroyed after the call.

    Raises:
      RunError: One of them has contents that would stay from call to call.
    """
    found: set[str] = set()
    waiting = [node_name(target) for target in targets]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            kept = [each for each in nodes[name].input if each[0] != "^" or each[1:] not in feeds]
            nodes[name].ClearField("input")
            nodes[name].input.extend(kept)
            waiting += map(node_name, kept)
    part = tf.compat.v1.GraphDef(
        node=[node for name, node in nodes.items() if name in found],
        library=graph_def.library,
        versions=graph_def.versions,
    )
    _refuse_what_stays([node for node in part.node if node.name not in makers])
    for function in part.library.function:
        _refuse_what_stays(function.node_def)
    return part


def _refuse_what_stays(nodes: Iterable[Any]) -> None:
    """Whatever can be shared by name, such as an iterator or a reader, outlives the call that has made it."""
    for node in nodes:
        definition = op_def_registry.get(node.op)  # None for a function
        if definition is not None and any(each.name == "shared_name" for each in definition.attr):
            raise errors.RunError(
                f"the in-process runtime cannot run {node.op} ({node.name}): its contents would stay from call to "
                "call; runtime.local() runs it"
            )


def node_name(tensor: str) -> str:
    """The node of a tensor ("x:0") or of a control edge ("^x")."""
    return tensor.lstrip("^").split(":")[0]
