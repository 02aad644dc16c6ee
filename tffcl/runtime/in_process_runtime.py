"""The in-process runtime: TFF computations as TensorFlow functions of this process, on any device that it sees."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context
from tensorflow_federated.python.core.impl.types import type_conversions

from tffcl import errors
from tffcl.runtime import compiling, values
from tffcl.runtime.graphs import GraphCache
from tffcl.runtime.ingestion import Ingestion
from tffcl.runtime.intrinsics import Scope
from tffcl.runtime.plans import Plan, Planner
from tffcl.runtime.runtime import Runtime, check_default_num_clients, operation_error
from tffcl.runtime.threads import ClientThreads

logger = logging.getLogger(__name__)

# A process has a handful of computations; the graphs of those that are dropped are freed with them.
_MAX_KEPT_PLANS = 128

# Measured: one client's training uses 1.8 of two cores, and two clients at once are no faster there.
_CORES_OF_A_CLIENT = 2


class PlanCache:
    """Plans of computations by their bytes: what is the same is compiled and imported once in a process."""

    def __init__(self) -> None:
        self._planner = Planner(GraphCache())
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, comp: Any) -> Plan:
        """The plan of a `tff.framework.ConcreteComputation`."""
        with self._lock:
            plan = self._plans.get(comp)
            if plan is None:
                native = compiling.to_native(comp)
                plan = self._plans[comp] = self._planner.plan(native.to_building_block())
                if len(self._plans) > _MAX_KEPT_PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(comp)
            return plan


_plans = PlanCache()


class InProcessContext(tff.framework.SyncContext):
    """Compiles computations as for TFF's native runtime, and runs them by plans.

    Args:
      threads: Where clients run.
      default_num_clients: Number of clients where a computation's argument does not tell it.
    """

    def __init__(self, threads: ClientThreads, default_num_clients: int = 0) -> None:
        self._threads, self.default_num_clients = threads, default_num_clients
        self._told = False
        self.closed = False

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation.

        Args:
          comp: A `tff.framework.ConcreteComputation`.
          arg: Its argument, None where it has none.

        Raises:
          ArgumentError: If the argument does not fit its type.
          OperationError: If an operation fails.
          RunError: If the computation uses what this runtime does not have.
        """
        if self.closed:
            raise errors.RunError("this in-process runtime is closed: enter a new one")
        with eager_context.eager_mode(), tf.device(self._threads.device):
            try:
                return self._invoke(comp, arg)
            except tf.errors.OpError as error:
                raise operation_error("a TensorFlow operation failed", str(error.message)) from None

    def _invoke(self, comp: Any, arg: Any) -> Any:
        plan, kind = _plans.get(comp), comp.type_signature
        ingestion = Ingestion()
        given = () if kind.parameter is None else (ingestion.take(arg, kind.parameter),)
        num_clients = self.default_num_clients if ingestion.num_clients is None else ingestion.num_clients
        result = plan(Scope(self._threads, num_clients), {}).call(*given)
        self._tell(result)
        return type_conversions.type_to_py_container(values.to_python(result, kind.result, num_clients), kind.result)

    def _tell(self, result: Any) -> None:
        """Says once on which device the work is done."""
        device = values.device_of(result)
        if device is not None and not self._told:
            self._told = True
            name = device.split("device:")[-1]
            logger.info("runs in this process on %s, up to %d clients at once", name, self._threads.at_once)


class InProcessRuntime(Runtime):
    """TFF's context for this process; as a context manager it installs it in the current thread.

    Attributes:
      context: The TFF context.
      device: Full name of the device, or None where TensorFlow places operations itself.
    """

    def __init__(
        self, device: Optional[str] = None, clients_at_once: Optional[int] = None, default_num_clients: int = 0
    ) -> None:
        """Starts no process; clients run in threads of this one.

        Args:
          device: A TensorFlow device such as "/GPU:0"; None leaves placement to TensorFlow.
          clients_at_once: How many clients run at the same time; None for one on every two cores, which it keeps
            busy by itself. The results do not depend on it, the memory that is needed does.
          default_num_clients: See `tffcl.runtime.local`.

        Raises:
          InputError: If there is no such device, or no such number of clients.
        """
        if clients_at_once is None:
            clients_at_once = max(1, len(os.sched_getaffinity(0)) // _CORES_OF_A_CLIENT)
        if clients_at_once < 1:
            raise errors.InputError(f"clients_at_once: expected at least 1, or None; found {clients_at_once}")
        self.device = None if device is None else _find_device(device)
        self._threads = ClientThreads(self.device, clients_at_once)
        super().__init__(InProcessContext(self._threads, check_default_num_clients(default_num_clients)))

    def close(self) -> None:
        """Ends the threads; computations in this runtime's context then raise `RunError`."""
        self.context.closed = True
        self._threads.close()


def _find_device(name: str) -> str:
    present = [each.name for each in tf.config.list_logical_devices()]
    try:
        wanted = tf.DeviceSpec.from_string(name)
    except ValueError:
        wanted = tf.DeviceSpec()
    for each in present:
        spec = tf.DeviceSpec.from_string(each)
        if wanted.device_type == spec.device_type and (wanted.device_index or 0) == spec.device_index:
            return each
    short = [each.split("device:")[-1] for each in present]
    raise errors.InputError(f"device: TensorFlow sees no {name!r} here, only {', '.join(short)}")


def in_process(
    device: Optional[str] = None, clients_at_once: Optional[int] = None, *, default_num_clients: int = 0
) -> InProcessRuntime:
    """Runs computations in this process: `with tffcl.runtime.in_process("/GPU:0"): ...`.

    Args:
      device: See `InProcessRuntime`.
      clients_at_once: See `InProcessRuntime`.
      default_num_clients: See `InProcessRuntime`.

    Returns:
      A runtime; leaving its `with` block restores the context before it.

    Raises:
      InputError: If there is no such device, or no such number of clients.
    """
    return InProcessRuntime(device, clients_at_once, default_num_clients)


def set_in_process(
    device: Optional[str] = None, clients_at_once: Optional[int] = None, *, default_num_clients: int = 0
) -> InProcessRuntime:
    """Makes this process TFF's default context, for scripts and notebooks.

    Args:
      device: See `InProcessRuntime`.
      clients_at_once: See `InProcessRuntime`.
      default_num_clients: See `InProcessRuntime`.

    Returns:
      The runtime.

    Raises:
      InputError: If there is no such device, or no such number of clients.
    """
    return InProcessRuntime(device, clients_at_once, default_num_clients).set_default()
