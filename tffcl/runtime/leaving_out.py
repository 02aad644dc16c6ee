"""Calls that end without the clients of a worker that gets lost in their midst."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow_federated as tff

from tffcl.runtime import composed_values as values
from tffcl.runtime.composed_executor import ComposedExecutor, ComposedValue
from tffcl.runtime.composed_values import Cohort, PartExecutor
from tffcl.runtime.plans import Plan
from tffcl.runtime.remote_workers import Deadline, RemoteWorker, WorkerLost

logger = logging.getLogger(__name__)


class LeavingOutExecutor(ComposedExecutor):
    """Runs one call; when a worker gets lost, all that hangs from its clients is made anew without them.

    What the others' clients have done is not done again: each part knows what it was asked in this call. So the
    aggregate, and whatever follows from it, is that of the clients whose results are returned, and of no others.

    Where no client would be left, `WorkerLost` lets TFF call the computation again, with all clients on other workers.
    The same holds for a worker that is lost before its clients have begun.

    Args:
      cohort: Workers and clients.
      plan: The plan of a computation.
      workers: The worker of each part, and perhaps others after them.
      deadline: Of the call; begins again for what is left to do without a lost worker.
      missing: Becomes the places, among the clients of the call, of those that it has ended without.
    """

    def __init__(
        self,
        cohort: Cohort,
        plan: Callable[[Any], Plan],
        workers: Sequence[RemoteWorker],
        deadline: Deadline,
        missing: list[int],
    ) -> None:
        super().__init__(dataclasses.replace(cohort, parts=list(map(_Part, cohort.parts))), plan)
        self._workers, self._deadline, self._missing = workers, deadline, missing

    async def create_value(self, value: Any, type_spec: Any = None) -> ComposedValue:
        """A value spread over the workers, or a computation, whose plan waits for the call."""
        if isinstance(value, tff.framework.ConcreteComputation):
            return ComposedValue(self.plan(value), value.type_signature, self)
        return await super().create_value(value, type_spec)

    async def create_call(self, comp: ComposedValue, arg: Any = None) -> _Result:
        """Runs a computation to its end, with all clients or with those that are left."""
        given = () if arg is None else (arg.value,)
        kind, places = comp.type_signature.result, list(range(len(self.cohort.parts)))
        while True:
            try:
                cohort = self._cohort_of(places)
                called = comp.value(cohort, {}).call(*[values.of_parts(each, places) for each in given])
                result = values.to_python(cohort, called, kind)
                break
            except WorkerLost:
                left = [place for place in places if self._workers[place].reason is None]
                if not left or left == places:
                    raise
                places = left
                self._deadline.start()
        self._missing[:] = self._clients_but_of(places)
        return _Result(result, kind, self)

    def _cohort_of(self, places: Sequence[int]) -> Cohort:
        whole = self.cohort
        if len(places) == len(whole.parts):
            return whole
        parts, sizes = [[each[place] for place in places] for each in (whole.parts, whole.sizes)]
        return Cohort(self._workers[places[0]].executor(0), parts, sizes, whole.pool)

    def _clients_but_of(self, places: Sequence[int]) -> list[int]:
        sizes = self.cohort.sizes
        ends = itertools.accumulate(sizes)
        clients = [range(end - size, end) for size, end in zip(sizes, ends)]
        missing = [one for place, own in enumerate(clients) if place not in places for one in own]
        if missing:
            logger.warning("%d of %d clients are left out: their worker got lost", len(missing), sum(sizes))
        return missing


class _Result(ComposedValue):
    """What a call has given, as TFF's executors give it."""

    async def compute(self) -> Any:
        return self.value


class _Part:
    """A part of the clients whose worker is asked everything once in a call: the same question has the same answer.

    It keeps every value of the call in the worker until the call ends.
    """

    def __init__(self, executor: PartExecutor) -> None:
        self._executor = executor
        self.create, self.fetch = executor.create, executor.fetch
        self._known: dict[Hashable, tuple[Any, Any]] = {}

    def create_encoded(self, value: bytes, type_spec: tff.Type) -> Any:
        key = ("value", hashlib.blake2b(value).digest(), type_spec)
        return self._once(key, None, lambda: self._executor.create_encoded(value, type_spec))

    def call(self, computation: Any, *argument: Any) -> Any:
        key = ("call", id(computation), *map(id, argument))
        return self._once(key, (computation, argument), lambda: self._executor.call(computation, *argument))

    def struct(self, elements: Sequence[Any]) -> Any:
        key = ("struct", *map(id, elements))
        return self._once(key, elements, lambda: self._executor.struct(elements))

    def _once(self, key: Hashable, held: Any, make: Callable[[], Any]) -> Any:
        """What stands under a key; `held` lives as long as the entry, so that no other object gets its id."""
        if key not in self._known:
            self._known[key] = make(), held
        return self._known[key][0]
