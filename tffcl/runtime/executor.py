"""One worker, seen from the program: the gRPC stub, TFF's remote executor over it, and whether the worker answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, Optional, TypeVar

import grpc
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2, executor_pb2_grpc
from tensorflow_federated.python.core.impl.executors import remote_executor

from tffcl.runtime import wire
from tffcl.runtime import worker as worker_lib
from tffcl.runtime.runtime import operation_error

_Value = TypeVar("_Value")

_PROBE_SECONDS = 10.0  # for a worker's answer when a request failed in a way that says nothing of the worker
_DISPOSE_SECONDS = 5.0  # a worker that stands still while values are freed is noticed elsewhere
_MAX_EXECUTORS = 10  # one for each number of clients that was seen lately
_MAX_COMPUTATIONS = 16  # each is a graph that the worker keeps in memory; a process has a handful
_MAX_STEPS = 256  # of computations that are spread over workers, each a computation; the graphs in them are the same

# Status codes with which a worker, or the connection to it, is gone; a wrong computation has others.
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,  # it does not know an executor: another process has its address now
    grpc.StatusCode.CANCELLED,  # its channel was closed here, since it does not answer
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
_FAILED = "Failed to run computation: "  # the worker's words before those of TensorFlow


class Recent(Generic[_Value]):
    """The values that were used last, by key; `drop` is called with each that is not kept any more."""

    def __init__(self, size: int, drop: Callable[[_Value], object] = lambda _: None) -> None:
        self._size, self._drop = size, drop
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """The value of a key, made where there is none."""
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._size:
                self._drop(self._values.popitem(last=False)[1])
        self._values.move_to_end(key)
        return self._values[key]

    def forget(self, key: Hashable) -> None:
        if key in self._values:
            self._drop(self._values.pop(key))

    def clear(self) -> None:
        for key in list(self._values):
            self.forget(key)


class Deadline:
    """The time by which the call that runs now has to be done; None for as long as it takes."""

    def __init__(self, seconds: Optional[float] = None) -> None:
        self._seconds = seconds
        self._end = float("inf")

    def start(self) -> None:
        """A call begins, or begins again."""
        if self._seconds is not None:
            self._end = time.monotonic() + self._seconds

    def left(self) -> Optional[float]:
        """Seconds for one request; None without a deadline."""
        return None if self._seconds is None else max(self._end - time.monotonic(), 0.001)


def _remote_method(name: str) -> Callable[[WorkerStub, Any], Any]:
    return lambda stub, request: stub._request(getattr(stub._stub, name), request)


class WorkerStub(tff.framework.RemoteExecutorGrpcStub):
    """TFF's stub, but for a lost worker it raises `lost(reason)`, where TFF's would try again for ever."""

    def __init__(self, address: str, lost: Callable[[str], Exception], deadline: Optional[Deadline] = None) -> None:
        # Not TFF's own: it has a thread watch the channel, which ends in an exception when the channel is closed.
        self.address, self._lost, self._deadline = address, lost, deadline or Deadline()
        self._channel = grpc.insecure_channel(address, options=worker_lib.CHANNEL_OPTIONS)
        self._stub = executor_pb2_grpc.ExecutorGroupStub(self._channel)
        self._create_encoded_value = self._channel.unary_unary(
            "/tensorflow_federated.v0.ExecutorGroup/CreateValue",
            response_deserializer=executor_pb2.CreateValueResponse.FromString,
        )

    def close(self) -> None:
        """Closes the connection; computations over it then end with the error for a lost worker."""
        self._channel.close()

    def _request(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            return method(request, timeout=self._deadline.left())
        except (grpc.RpcError, ValueError) as error:  # a closed channel is a ValueError
            text = str(error.details()) if isinstance(error, grpc.Call) else ""
            if text.startswith(_FAILED):  # whatever the code: the worker is there
                raise operation_error("a TensorFlow operation failed in the worker", text[len(_FAILED) :]) from error
            # gRPC also has UNKNOWN ("Stream removed") and INTERNAL for a connection that breaks under a request.
            says_nothing = isinstance(error, grpc.Call) and error.code() not in _LOST
            if says_nothing and worker_lib.probe(self.address, _PROBE_SECONDS) is None:
                raise
            reason = worker_lib.describe_rpc_error(error, "not done within the time for a call")
            raise self._lost(reason) from error

    get_executor = _remote_method("GetExecutor")
    create_value = _remote_method("CreateValue")
    create_struct = _remote_method("CreateStruct")
    create_call = _remote_method("CreateCall")
    create_selection = _remote_method("CreateSelection")
    compute = _remote_method("Compute")

    def create_encoded_value(self, request: bytes) -> executor_pb2.CreateValueResponse:
        """As `create_value`, for a request that is already in bytes."""
        return self._request(self._create_encoded_value, request)

    def dispose(self, request: Any) -> None:
        """Frees values in the worker; one that is gone has nothing left to free, and one that is busy will do so."""
        self._free(self._stub.Dispose, request)

    def dispose_executor(self, request: Any) -> None:
        """Frees an executor and all its values, as `dispose`."""
        self._free(self._stub.DisposeExecutor, request)

    def _free(self, method: Callable[..., Any], request: Any) -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):
            method(request, timeout=_DISPOSE_SECONDS)


class WorkerExecutor(tff.framework.RemoteExecutor):
    """TFF's remote executor, which moves large arrays in one copy and sends a computation to its worker once.

    Its coroutines never wait for an event loop; the methods without `async` call them without one, from any thread.
    """

    def __init__(self, stub: WorkerStub, max_computations: int = _MAX_COMPUTATIONS) -> None:
        super().__init__(stub)
        self._computations: Recent[tuple[Any, Any]] = Recent(max_computations)

    async def create_value(self, value: Any, type_spec: Any = None) -> Any:
        """Creates a value of a type, or a computation, in the worker; raises as `wire.encode_create_value`."""
        self._check_has_executor_id()
        if isinstance(value, tff.framework.ConcreteComputation):
            # An entry holds its computation, so that no other object gets the same id.
            send = super().create_value
            return self._computations.get(id(value), lambda: (value, _run(send(value, type_spec))))[1]
        if type_spec is None or isinstance(type_spec, tff.FunctionType):
            return await super().create_value(value, type_spec)
        try:
            request = wire.encode_create_value(self._executor_id, value, type_spec)
        except wire.MessageTooLarge:
            if not isinstance(type_spec, tff.StructType):
                raise
            values, elements = tff.structure.from_container(value), tff.structure.to_elements(type_spec)
            parts = [(name, await self.create_value(values[n], element)) for n, (name, element) in enumerate(elements)]
            return await self.create_struct(tff.structure.Struct(parts))
        return self._remote_value(request, type_spec)

    def _remote_value(self, request: bytes, type_spec: tff.Type) -> Any:
        response = self._stub.create_encoded_value(request)
        return remote_executor.RemoteValue(response.value_ref, type_spec, self)

    def create(self, value: Any, type_spec: tff.Type) -> Any:
        return _run(self.create_value(value, type_spec))

    def create_encoded(self, value: bytes, type_spec: tff.Type) -> Any:
        """A value in the worker, from the bytes of an `executor_pb2.Value`."""
        self._check_has_executor_id()
        wire.check_message(len(value), type_spec)
        return self._remote_value(wire.encode_request(self._executor_id, [value]), type_spec)

    def call(self, computation: Any, *argument: Any) -> Any:
        """The result of a computation in the worker, for an argument there; it need not be ready yet."""
        return _run(self.create_call(self.create(computation, computation.type_signature), *argument))

    def struct(self, elements: Sequence[Any]) -> Any:
        return _run(self.create_struct(elements))

    def select(self, source: Any, index: int) -> Any:
        return _run(self.create_selection(source, index))

    def fetch(self, value_ref: Any) -> executor_pb2.Value:
        """A value that is in the worker; waits until it is ready."""
        self._check_has_executor_id()
        return self._stub.compute(executor_pb2.ComputeRequest(executor=self._executor_id, value_ref=value_ref)).value

    async def _compute(self, value_ref: Any, type_spec: tff.Type) -> Any:
        if wire.comes_in_parts(type_spec):
            return await self._compute_stream_structs(value_ref, type_spec)
        return wire.decode_value(self.fetch(value_ref), type_spec)

    def _dispose(self, value_ref: Any, value_executor_id: Any) -> None:
        """Frees a value at once: TFF's batches keep megabytes each, in a list that threads would share."""
        if value_executor_id == self._executor_id and value_executor_id is not None:
            self._stub.dispose(executor_pb2.DisposeRequest(executor=value_executor_id, value_ref=[value_ref]))

    def close(self) -> None:
        self._computations.clear()
        super().close()


class WorkerExecutorFactory(tff.framework.ExecutorFactory):
    """Executors by number of clients; unlike in TFF's own factory, one that is dropped is also closed."""

    def __init__(
        self, stub: WorkerStub, default_num_clients: int = 0, max_computations: int = _MAX_COMPUTATIONS
    ) -> None:
        self._stub, self.default_num_clients, self._max_computations = stub, default_num_clients, max_computations
        self._executors: Recent[WorkerExecutor] = Recent(_MAX_EXECUTORS, WorkerExecutor.close)

    def get(self, num_clients: int) -> WorkerExecutor:
        """The executor for a number of clients, made where there is none yet; an error if the worker is gone."""

        def make() -> WorkerExecutor:
            executor = WorkerExecutor(self._stub, self._max_computations)
            executor.set_cardinalities({tff.CLIENTS: num_clients})
            return executor

        return self._executors.get(num_clients, make)

    def forget(self, num_clients: int) -> None:
        self._executors.forget(num_clients)

    def create_executor(self, cardinalities: tff.framework.CardinalitiesType) -> WorkerExecutor:
        return self.get(cardinalities.get(tff.CLIENTS, self.default_num_clients))

    def clean_up_executor(self, cardinalities: tff.framework.CardinalitiesType) -> None:
        self.forget(cardinalities.get(tff.CLIENTS, self.default_num_clients))

    def close(self) -> None:
        self._executors.clear()


class WorkerLost(tff.framework.RetryableError):
    """A worker is gone; TFF's execution context calls the whole computation again, and other workers do it."""


class WorkerConnection:
    """A connection to a worker that may get lost and come back.

    Attributes:
      address: `host:port`.
      reason: Why it is lost; None while it is not.
      executors: By number of clients.
      describe: Tells how the worker ended, if it is a process of this one; a better reason than that of gRPC.
    """

    def __init__(self, address: str, deadline: Deadline, on_loss: Callable[[str, str], None]) -> None:
        """Connects to the worker; `on_loss` is called once, with the address and the reason, when it gets lost."""
        self.address, self._deadline, self._on_loss = address, deadline, on_loss
        self.describe: Optional[Callable[[], str]] = None
        self._lock, self._end = threading.Lock(), threading.Event()
        self._probe = worker_lib.Probe(address)
        self._connect()

    def _connect(self) -> None:
        self.reason: Optional[str] = None
        self._answers_again = False
        self._stub = WorkerStub(self.address, self._lost, self._deadline)
        self.executors = WorkerExecutorFactory(self._stub, max_computations=_MAX_STEPS)

    def _lost(self, reason: str) -> WorkerLost:
        self.lose(reason)
        return WorkerLost(f"{self.address}: {self.reason}")

    def lose(self, reason: str) -> None:
        """Counts the worker as lost; requests that still wait for it end at once."""
        with self._lock:
            if self.reason is not None or self._end.is_set():
                return
            self.reason = self.describe() if self.describe else reason
        self._stub.close()
        self._on_loss(self.address, self.reason)

    def revive(self) -> None:
        """Connects again to a lost worker that answers again."""
        if self.reason is not None and self._answers_again:
            self._connect()

    def watch(self, interval: float, patience: float) -> None:
        """Probes the worker until it is closed, `interval` seconds after each answer, which may take `patience`."""
        while not self._end.wait(interval):
            reason = self._probe.ask(patience)
            self._answers_again = reason is None and self.reason is not None
            if reason is not None:
                self.lose(reason)

    def close(self, reason: str) -> None:
        """Closes the connections, and gives later computations the reason; the worker goes on."""
        self._end.set()
        if self.reason is None:
            self.executors.close()
            self.reason = reason
        self._stub.close()
        self._probe.close()


def _run(coroutine: Coroutine) -> Any:
    """The result of a coroutine of TFF's remote executor, none of which ever waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("a coroutine of TFF's remote executor waits for a loop; this release of TFF is not supported")
