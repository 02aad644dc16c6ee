"""Plans: compiled TFF computations as Python closures, made once and called with the values of this process.

A computation that TFF has compiled is a list of calls: of TensorFlow graphs, and of a dozen intrinsics that say where
and how often. In a plan a graph is a `GraphFunction`, and an intrinsic a small Python function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.runtime import intrinsics
from tffcl.runtime.graphs import GraphCache
from tffcl.runtime.intrinsics import Function

# From what the intrinsics of a call share (here a `Scope`), and the values of references, to a value.
Plan = Callable[[Any, Mapping[str, Any]], Any]


class Planner:
    """Makes plans of building blocks.

    Args:
      cache: Graphs that are imported already; only a subclass that runs them elsewhere has none.

    Attributes:
      runtime: Who runs the plans, for errors.
    """

    runtime = "the in-process runtime"

    def __init__(self, cache: Optional[GraphCache]) -> None:
        self._cache: Any = cache
        self._kinds: dict[type, Callable[[Any], Plan]] = {
            tff.framework.Block: self._block,
            tff.framework.Call: self._call,
            tff.framework.CompiledComputation: self._compiled,
            tff.framework.Intrinsic: self._intrinsic,
            tff.framework.Lambda: self._lambda,
            tff.framework.Literal: self._literal,
            tff.framework.Reference: self._reference,
            tff.framework.Selection: self._selection,
            tff.framework.Struct: self._struct,
        }

    def plan(self, block: Any) -> Plan:
        """The plan of a compiled `tff.framework.ComputationBuildingBlock`.

        Raises:
          RunError: If the block, or something in it, is not known here.
        """
        make = self._kinds.get(type(block))
        if make is None:
            raise errors.RunError(f"{self.runtime} cannot run a {type(block).__name__}")
        return make(block)

    def _block(self, block: Any) -> Plan:
        steps = [(name, self.plan(value)) for name, value in block.locals]
        result = self.plan(block.result)

        def run(scope: Any, names: Mapping[str, Any]) -> Any:
            inner = dict(names)
            for name, step in steps:
                inner[name] = step(scope, inner)
            return result(scope, inner)

        return run

    def _call(self, block: Any) -> Plan:
        function = self.plan(block.function)
        if block.argument is None:
            return lambda scope, names: function(scope, names).call()
        argument = self.plan(block.argument)
        return lambda scope, names: function(scope, names).call(argument(scope, names))

    def _compiled(self, block: Any) -> Plan:
        kind = block.proto.WhichOneof("computation")
        if kind != "tensorflow":
            raise errors.RunError(f"{self.runtime} runs TensorFlow computations, not {kind} ones")
        function = Function(self._cache.get(block.proto.tensorflow), block.type_signature)
        return lambda scope, names: function

    def _intrinsic(self, block: Any) -> Plan:
        implementation = intrinsics.BY_URI.get(block.uri)
        if implementation is None:
            raise errors.RunError(f"{self.runtime} has no {block.uri}")
        kind = block.type_signature
        return lambda scope, names: Function(lambda *given: implementation(scope, *given), kind)

    def _lambda(self, block: Any) -> Plan:
        result, name, kind, works = (self.plan(block.result), block.parameter_name, block.type_signature, _works(block))

        def run(scope: Any, names: Mapping[str, Any]) -> Function:
            def call(*given: Any) -> Any:
                return result(scope, names if name is None else {**names, name: given[0]})

            return Function(call, kind, works)

        return run

    def _literal(self, block: Any) -> Plan:
        value = tf.constant(block.value, tf.dtypes.as_dtype(block.type_signature.dtype))
        return lambda scope, names: value

    def _reference(self, block: Any) -> Plan:
        name = block.name
        return lambda scope, names: names[name]

    def _selection(self, block: Any) -> Plan:
        source, index = self.plan(block.source), block.as_index()
        return lambda scope, names: source(scope, names)[index]

    def _struct(self, block: Any) -> Plan:
        elements = [self.plan(element) for element in block]
        return lambda scope, names: tuple(element(scope, names) for element in elements)


def _works(block: Any) -> bool:
    """Whether a block does more than to take structures apart and put them together."""
    if isinstance(block, tff.framework.Lambda):
        return _works(block.result)
    if isinstance(block, tff.framework.Selection):
        return _works(block.source)
    if isinstance(block, tff.framework.Struct):
        return any(_works(element) for element in block)
    return not isinstance(block, (tff.framework.Reference, tff.framework.Literal))
