"""The in-process runtime: TFF computations as TensorFlow functions of this process, on any device that it sees.

A computation that TFF has compiled is a list of calls: of TensorFlow graphs, and of a dozen intrinsics that say where
and how often. Its plan is a Python closure, made once: a graph is a `GraphFunction`, and an intrinsic a small Python
function. Clients run in threads, results stand in the order of the clients, and aggregates are formed in that order.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context as eager_context
from tensorflow_federated.python.core.impl.types import type_conversions

from tffcl import errors
from tffcl.runtime import values
from tffcl.runtime.graphs import GraphFunction
from tffcl.runtime.runtime import Runtime, compile_to_native, native_block, operation_error
from tffcl.runtime.values import Clients, Everyone

# From what the intrinsics of a call share (here a `Scope`), and the values of references, to a value.
Plan = Callable[[Any, Mapping[str, Any]], Any]

# TensorFlow keeps the canceller in use in a variable of the whole process, not of a thread. So it is set around all
# clients together, by one runtime at a time: a client that set it for itself would take it from the others.
_cohort_lock = threading.Lock()


class ClientThreads:
    """A pool of threads whose TensorFlow operations run on one device (None: TensorFlow's own choice)."""

    def __init__(self, device: Optional[str], at_once: int) -> None:
        self.device, self.at_once = device, at_once
        self._pool = concurrent.futures.ThreadPoolExecutor(at_once, "tffcl-client")

    def run_each(
        self, function: Callable[[Any], Any], members: Sequence[Any], take: Callable[[Any], Any] = lambda result: None
    ) -> list:
        """The function's results, in the order of the clients' values; `take` gets them one by one in that order.

        The first error, Ctrl-C included, stops the operations that still run and is raised. Therefore a single
        client has a thread of its own, too: Python hears of no signal while the main thread is in TensorFlow.
        """

        def run(member: Any) -> Any:
            with tf.device(self.device):
                return function(member)

        canceller = cancellation.CancellationManager()
        with _cohort_lock, cancellation.CancellationManagerContext(canceller):
            futures = [self._pool.submit(run, member) for member in members]
            try:
                self._take_in_order(futures, take)
            finally:  # also of Ctrl-C
                if not all(future.done() and future.exception() is None for future in futures):
                    for future in futures:
                        future.cancel()
                    canceller.start_cancel()
                    concurrent.futures.wait(futures)
        raised = [error for error in (future.exception() for future in futures if not future.cancelled()) if error]
        if raised:  # a client's own error before those of the clients that it stopped
            raise next((error for error in raised if not isinstance(error, tf.errors.CancelledError)), raised[0])
        return [future.result() for future in futures]

    @staticmethod
    def _take_in_order(futures: list[concurrent.futures.Future], take: Callable[[Any], Any]) -> None:
        """Waits until all are done, or one has failed."""
        running, taken = set(futures), 0
        while running:
            _, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            if any(future.done() and future.exception() is not None for future in futures):
                return
            while taken < len(futures) and futures[taken].done():
                take(futures[taken].result())
                taken += 1

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


class Later(Clients):
    """Values that clients compute when the first of them is asked for, each once.

    A chain of such values is one task for a client's thread: no client waits for others between its steps.

    Args:
      threads: in which clients compute.
      compute: index of a client -> its value.
      count: of clients.
      source: what `compute` takes.
      computes: False if `compute` only rearranges its source.
    """

    def __init__(
        self, threads: ClientThreads, compute: Callable[[int], Any], count: int, source: Any = (), computes: bool = True
    ) -> None:
        self._threads, self._compute, self._source, self._computes = threads, compute, source, computes
        self._found: list = [None] * count

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """Whether the values are there, but for rearranging what is there."""
        return all(self._found) or not (self._computes and self._found) and values.is_ready(self._source)

    @property
    def members(self) -> list:  # type: ignore[override]
        """The values, in the order of the clients."""
        every = range(len(self._found))
        return [self.member(index) for index in every] if self.ready else self._threads.run_each(self.member, every)

    def each(self, take: Callable[[Any], Any]) -> None:
        """Hands on one value after the other, in the order of the clients, while others may still compute."""
        if self.ready:
            super().each(take)
        else:
            self._threads.run_each(self.member, range(len(self._found)), take)

    def member(self, index: int) -> Any:
        """A client's value; what it comes from is computed in the same thread."""
        waiting = [self]  # in place of recursion, for which a long chain has too many steps
        while waiting:
            last = waiting.pop()
            if last._found[index] is None:
                before = [each for each in _later(last._source) if each._found[index] is None]
                if before:
                    waiting += [last, *before]
                else:
                    last._found[index] = (last._compute(index),)
        return self._found[index][0]


def _later(source: Any) -> Iterator[Later]:
    """The parts of a value at the clients that these compute when they are asked for."""
    for part in source if isinstance(source, tuple) else (source,):
        if isinstance(part, tuple):
            yield from _later(part)
        elif isinstance(part, Later):
            yield part


@dataclasses.dataclass(frozen=True)
class Function:
    """A functional value: `call` takes the argument, if any; `computes` is False if it only rearranges structures."""

    call: Callable[..., Any]
    type_signature: tff.FunctionType
    computes: bool = True


class Planner:
    """Makes plans of building blocks, each by the method that is named after its class."""

    runtime = "the in-process runtime"  # for errors

    def __init__(self) -> None:
        # Those that are imported already, by their bytes, for as long as a plan holds them.
        self.graphs: weakref.WeakValueDictionary[str, GraphFunction] = weakref.WeakValueDictionary()

    def plan(self, block: Any) -> Plan:
        """The plan of a compiled `tff.framework.ComputationBuildingBlock`; a RunError where it cannot be run here."""
        make = getattr(self, f"_{type(block).__name__}", None)
        if make is None:
            raise errors.RunError(f"{self.runtime} cannot run a {type(block).__name__}")
        return make(block)

    def _Block(self, block: Any) -> Plan:
        steps = [(name, self.plan(value)) for name, value in block.locals]
        result = self.plan(block.result)

        def run(scope: Any, names: Mapping[str, Any]) -> Any:
            inner = dict(names)
            for name, step in steps:
                inner[name] = step(scope, inner)
            return result(scope, inner)

        return run

    def _Call(self, block: Any) -> Plan:
        function = self.plan(block.function)
        if block.argument is None:
            return lambda scope, names: function(scope, names).call()
        argument = self.plan(block.argument)
        return lambda scope, names: function(scope, names).call(argument(scope, names))

    def _CompiledComputation(self, block: Any) -> Plan:
        language = block.proto.WhichOneof("computation")
        if language != "tensorflow":
            raise errors.RunError(f"{self.runtime} runs TensorFlow computations, not {language} ones")
        proto = block.proto.tensorflow
        key = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = GraphFunction(proto, key[:16])
        function = Function(graph, block.type_signature)
        return lambda scope, names: function

    def _Intrinsic(self, block: Any) -> Plan:
        uri, type_spec = block.uri, block.type_signature
        if uri in UNPLACED_INTRINSICS:
            function = Function(UNPLACED_INTRINSICS[uri], type_spec)
            return lambda scope, names: function
        if uri not in _INTRINSICS:
            raise errors.RunError(f"{self.runtime} has no {uri}")
        return lambda scope, names: Function(functools.partial(_INTRINSICS[uri], scope), type_spec)

    def _Lambda(self, block: Any) -> Plan:
        result, name, type_spec = self.plan(block.result), block.parameter_name, block.type_signature
        computes = _computes(block)

        def run(scope: Any, names: Mapping[str, Any]) -> Function:
            def call(*argument: Any) -> Any:
                return result(scope, names if name is None else {**names, name: argument[0]})

            return Function(call, type_spec, computes)

        return run

    def _Literal(self, block: Any) -> Plan:
        value = tf.constant(block.value, tf.dtypes.as_dtype(block.type_signature.dtype))
        return lambda scope, names: value

    def _Reference(self, block: Any) -> Plan:
        return lambda scope, names: names[block.name]

    def _Selection(self, block: Any) -> Plan:
        source, index = self.plan(block.source), block.as_index()
        return lambda scope, names: source(scope, names)[index]

    def _Struct(self, block: Any) -> Plan:
        elements = [self.plan(element) for element in block]
        return lambda scope, names: tuple(element(scope, names) for element in elements)


def _computes(block: Any) -> bool:
    """Whether a block does more than to take structures apart and put them together."""
    if isinstance(block, tff.framework.Lambda):
        return _computes(block.result)
    if isinstance(block, tff.framework.Selection):
        return _computes(block.source)
    if isinstance(block, tff.framework.Struct):
        return any(map(_computes, block))
    return not isinstance(block, (tff.framework.Reference, tff.framework.Literal))


@dataclasses.dataclass(frozen=True)
class Scope:
    """What the intrinsics of one call share: how clients run, and how many there are."""

    threads: ClientThreads
    num_clients: int

    def members(self, placed: Any) -> list:
        """The value of each client."""
        return [placed.member] * self.num_clients if isinstance(placed, Everyone) else placed.members


def _aggregate(scope: Scope, argument: tuple) -> Any:
    """In the order of the clients; merging is for hierarchies, and there is none here."""
    placed, total, accumulate, _, report = argument

    def add(member: Any) -> None:
        nonlocal total
        total = accumulate.call((total, member))

    (Clients(scope.members(placed)) if isinstance(placed, Everyone) else placed).each(add)
    return report.call(total)


def _eval_at_clients(scope: Scope, function: Function) -> Clients:
    return Later(scope.threads, lambda _: function.call(), scope.num_clients)


def _map(scope: Scope, argument: tuple) -> Clients:
    function, placed = argument

    def compute(index: int) -> Any:
        return function.call(values.of_client(placed, index))

    return Later(scope.threads, compute, scope.num_clients, placed, function.computes)


def _select(scope: Scope, argument: tuple) -> Clients:
    """Every key is looked up once, however many clients ask for it."""
    keys, _, server_value, function = argument
    wanted = [np.asarray(member).tolist() for member in scope.members(keys)]
    distinct = sorted({key for own in wanted for key in own})
    selected = {key: function.call((server_value, tf.constant(key, tf.int32))) for key in distinct}
    element = function.type_signature.result
    return Clients([values.sequence_from([selected[key] for key in own], element) for own in wanted])


def _sequence_map(scope: Scope, argument: tuple) -> Any:
    function, sequence = argument
    type_spec = function.type_signature
    mapped = [function.call(element) for element in values.elements_of(sequence, type_spec.parameter)]
    return values.sequence_from(mapped, type_spec.result)


def _sequence_reduce(scope: Scope, argument: tuple) -> Any:
    sequence, total, function = argument
    for element in values.elements_of(sequence, function.type_signature.parameter[1]):
        total = function.call((total, element))
    return total


def _zip_at_clients(scope: Scope, argument: Any) -> Any:
    if values.is_all_equal(argument):
        return Everyone(values.of_client(argument, 0))
    return Later(scope.threads, lambda index: values.of_client(argument, index), scope.num_clients, argument, False)


# Those that no client computes: values at the server are plain values, and a structure of them is one too.
UNPLACED_INTRINSICS: dict[str, Callable[[Any], Any]] = {
    "federated_apply": lambda argument: argument[0].call(argument[1]),
    "federated_broadcast": Everyone,
    "federated_eval_at_server": lambda function: function.call(),
    "federated_map_all_equal": lambda argument: Everyone(argument[0].call(argument[1].member)),
    "federated_value_at_clients": Everyone,
    "federated_value_at_server": lambda value: value,
    "federated_zip_at_server": lambda value: value,
}

_INTRINSICS: dict[str, Callable[..., Any]] = {
    "federated_aggregate": _aggregate,
    "federated_eval_at_clients": _eval_at_clients,
    "federated_map": _map,
    "federated_select": _select,
    "federated_zip_at_clients": _zip_at_clients,
    "sequence_map": _sequence_map,
    "sequence_reduce": _sequence_reduce,
}


logger = logging.getLogger(__name__)

# A process has a handful of computations; the graphs of those that are dropped are freed with them.
_MAX_KEPT_PLANS = 128

# Measured (docs/runtime.md): with two clients or more, operations of one thread and a client on each core are faster
# for all networks here, and TensorFlow's sums are then the same on any number of cores.
_THREADS_PER_CLIENT = 1
_THREADS_VARIABLE = "TF_NUM_INTRAOP_THREADS"  # TensorFlow's own

_planner = Planner()
_planner_lock = threading.Lock()
_known_plans = values.ByIdentity()


@functools.lru_cache(maxsize=_MAX_KEPT_PLANS)
def _plan(computation: Any) -> Plan:
    """Equal computations are compiled and imported once in a process, whichever runtimes come and go."""
    if not tf.config.list_physical_devices("GPU"):  # no GPU knows of data sets, which the optimiser keeps from it
        with contextlib.suppress(errors.RunError):  # a table in a function: the optimiser takes it out
            return _planner.plan(native_block(computation))
    return _planner.plan(compile_to_native(computation).to_building_block())


def _plan_of(computation: Any) -> Plan:
    """As `_plan`, without a look through all bytes of a computation that has been called before."""
    plan = _known_plans.get(computation)
    if plan is None:
        with _planner_lock:
            plan = _plan(computation)
        _known_plans.note(computation, plan)
    return plan


class InProcessRuntime(Runtime, tff.framework.SyncContext):
    """Runs computations in threads of this process: `with tffcl.runtime.in_process("/GPU:0"): ...`.

    Leaving the `with` block restores the context before it.

    Shown with `set_in_process`.

    Attributes:
      context: The TFF context, which is this object.
      device: Full name of the device, or None where TensorFlow places operations itself.
    """

    def __init__(
        self,
        device: Optional[str] = None,
        clients_at_once: Optional[int] = None,
        *,
        threads_per_client: Optional[int] = None,
        default_num_clients: int = 0,
    ) -> None:
        """Starts no process.

        Args:
          device: A TensorFlow device such as "/GPU:0"; None leaves placement to TensorFlow.
          clients_at_once: How many clients run at the same time; None for one more than there are cores, or as many as
            these have room for where an operation has several threads. The results do not depend on it, the memory that
            is needed does.
          threads_per_client: Threads within one operation. TensorFlow keeps the number that it begins with in a
            process. None for 1; or for what is set in `tf.config.threading` or TF_NUM_INTRAOP_THREADS, or has begun.
            Gradients of the kernels of two-dimensional convolutions, and norms, depend on it in their last digits.
          default_num_clients: See `tffcl.runtime.local`.

        Raises:
          InputError: If there is no such device, no such number of clients or threads, or TensorFlow has begun in this
            process with another number of threads.
        """
        self._threads_each = _set_threads(threads_per_client)
        if clients_at_once is None:
            cores = len(os.sched_getaffinity(0))
            # One more than cores: an odd client is not left alone at the end, and a core has work while a client's
            # Python runs on another (measured: docs/runtime.md).
            clients_at_once = cores + 1 if self._threads_each == 1 else max(1, cores // (self._threads_each or 1))
        errors.check_whole("clients_at_once", clients_at_once, 1)
        self.default_num_clients = errors.check_whole("default_num_clients", default_num_clients, 0)
        self.device = None if device is None else _find_device(device)
        self._threads = ClientThreads(self.device, clients_at_once)
        self._closed = self._logged = False
        super().__init__(self)

    def close(self) -> None:
        """Ends the threads; computations in this runtime's context then raise `RunError`."""
        self._closed = True
        self._threads.close()

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation by its plan; an error of `tffcl.errors` for what is wrong with it or its argument."""
        if self._closed:
            raise errors.RunError("this in-process runtime is closed: enter a new one")
        with eager_context.eager_mode(), tf.device(self.device):
            try:
                return self._invoke(comp, arg)
            except tf.errors.OpError as error:
                raise operation_error("a TensorFlow operation failed", str(error.message)) from None

    def _invoke(self, comp: Any, arg: Any) -> Any:
        plan = _plan_of(comp)
        type_spec, ingestion = comp.type_signature, values.Ingestion()
        argument = () if type_spec.parameter is None else (ingestion.take(arg, type_spec.parameter),)
        num_clients = self.default_num_clients if ingestion.num_clients is None else ingestion.num_clients
        result = plan(Scope(self._threads, num_clients), {}).call(*argument)
        device = values.device_of(result)
        if device is not None and not self._logged:
            self._logged = True
            name = device.split("device:")[-1]
            several = f"{self._threads_each} threads each" if self._threads_each else "which share all threads"
            each = "a thread each" if self._threads_each == 1 else several
            logger.info("runs in this process on %s, up to %d clients at once, %s", name, self._threads.at_once, each)
        result = values.to_python(result, type_spec.result, num_clients)
        return type_conversions.type_to_py_container(result, type_spec.result)


def _set_threads(wanted: Optional[int]) -> int:
    """Sets how many threads an operation has, where there is a choice; returns them, 0 for those of all cores."""
    if wanted is not None:
        errors.check_whole("threads_per_client", wanted, 1)
    given = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get(_THREADS_VARIABLE) or 0)
    if wanted is None and given:
        return given
    try:
        tf.config.threading.set_intra_op_parallelism_threads(wanted or _THREADS_PER_CLIENT)
    except RuntimeError:
        if wanted is not None:
            has = given or "all cores'"
            raise errors.InputError(
                f"threads_per_client: TensorFlow has begun in this process with {has} threads for an operation, and "
                f"keeps them; enter the runtime before anything is computed, or set {_THREADS_VARIABLE}={wanted}"
            ) from None
        return 0
    return wanted or _THREADS_PER_CLIENT


def _find_device(name: str) -> str:
    present = [device.name for device in tf.config.list_logical_devices()]
    try:
        wanted = tf.DeviceSpec.from_string(name)
    except ValueError:
        wanted = tf.DeviceSpec()
    for device in present:
        spec = tf.DeviceSpec.from_string(device)
        if wanted.device_type == spec.device_type and (wanted.device_index or 0) == spec.device_index:
            return device
    short = [device.split("device:")[-1] for device in present]
    raise errors.InputError(f"device: TensorFlow sees no {name!r} here, only {', '.join(short)}")


in_process = InProcessRuntime


def set_in_process(
    device: Optional[str] = None,
    clients_at_once: Optional[int] = None,
    *,
    threads_per_client: Optional[int] = None,
    default_num_clients: int = 0,
) -> InProcessRuntime:
    """Makes this process TFF's default context, for scripts and notebooks; arguments and errors as `in_process`.

    Shown in docs/runtime.md.
    """
    return in_process(
        device, clients_at_once, threads_per_client=threads_per_client, default_num_clients=default_num_clients
    ).set_default()
