"""An executor, in TFF's sense, that spreads the clients of a call over workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.executors import executor_base, executor_value_base

from tffcl.runtime import composed_values as values
from tffcl.runtime.composed_values import Cohort
from tffcl.runtime.plans import Plan


class ComposedExecutor(executor_base.Executor):
    """Runs computations over one cohort.

    Args:
      cohort: Workers and clients.
      plan: The plan of a computation.
    """

    def __init__(self, cohort: Cohort, plan: Callable[[Any], Plan]) -> None:
        self.cohort, self.plan = cohort, plan

    async def create_value(self, value: Any, type_spec: Any = None) -> ComposedValue:
        """A value spread over the workers, or the plan of a computation."""
        if isinstance(value, tff.framework.ConcreteComputation):
            return ComposedValue(self.plan(value)(self.cohort, {}), value.type_signature, self)
        return ComposedValue(values.ingest(self.cohort, value, type_spec), type_spec, self)

    async def create_call(self, comp: ComposedValue, arg: Any = None) -> ComposedValue:
        """Runs a computation; what does not depend on results that have to move is not waited for."""
        given = () if arg is None else (arg.value,)
        return ComposedValue(comp.value.call(*given), comp.type_signature.result, self)

    async def create_struct(self, elements: Any) -> ComposedValue:
        """A structure of values."""
        items = tff.structure.to_elements(tff.structure.from_container(elements))
        kind = tff.StructType([(name, each.type_signature) if name else each.type_signature for name, each in items])
        return ComposedValue(tuple(each.value for _, each in items), kind, self)

    async def create_selection(self, source: ComposedValue, index: int) -> ComposedValue:
        """An element of a structure."""
        value, kind = source.value, source.type_signature[index]
        chosen = value[index] if isinstance(value, tuple) else value.element(self.cohort, index)
        return ComposedValue(chosen, kind, self)

    def close(self) -> None:
        """Nothing: the workers' executors are their own."""


class ComposedValue(executor_value_base.ExecutorValue):
    """A value of a cohort, or a function."""

    def __init__(self, value: Any, kind: tff.Type, executor: ComposedExecutor) -> None:
        self.value, self._kind, self._executor = value, kind, executor

    @property
    def type_signature(self) -> tff.Type:
        return self._kind

    @property
    def reference(self) -> Any:
        return self.value

    async def compute(self) -> Any:
        return values.to_python(self._executor.cohort, self.value, self._kind)
