"""The in-process runtime: TFF computations as TensorFlow functions of this process, on any device that it sees."""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context
from tensorflow_federated.python.core.impl.types import type_conversions

from tffcl import errors
from tffcl.runtime import values
from tffcl.runtime.plans import ClientThreads, Plan, Planner, Scope
from tffcl.runtime.runtime import Runtime, check_default_num_clients, compile_to_native, operation_error

logger = logging.getLogger(__name__)

# A process has a handful of computations; the graphs of those that are dropped are freed with them.
_MAX_KEPT_PLANS = 128

# Measured: one client's training uses 1.8 of two cores, and two clients at once are no faster there.
_CORES_OF_A_CLIENT = 2

_planner = Planner()
_planner_lock = threading.Lock()


@functools.lru_cache(maxsize=_MAX_KEPT_PLANS)
def _plan(computation: Any) -> Plan:
    """Equal computations are compiled and imported once in a process, whichever runtimes come and go."""
    return _planner.plan(compile_to_native(computation).to_building_block())


class InProcessRuntime(Runtime, tff.framework.SyncContext):
    """Runs computations in threads of this process: `with tffcl.runtime.in_process("/GPU:0"): ...`.

    Leaving the `with` block restores the context before it.

    Attributes:
      context: The TFF context, which is this object.
      device: Full name of the device, or None where TensorFlow places operations itself.
    """

    def __init__(
        self, device: Optional[str] = None, clients_at_once: Optional[int] = None, *, default_num_clients: int = 0
    ) -> None:
        """Starts no process.

        Args:
          device: A TensorFlow device such as "/GPU:0"; None leaves placement to TensorFlow.
          clients_at_once: How many clients run at the same time; None for one on every two cores, which it keeps busy
            by itself. The results do not depend on it, the memory that is needed does.
          default_num_clients: See `tffcl.runtime.local`.

        Raises:
          InputError: If there is no such device, or no such number of clients.
        """
        if clients_at_once is None:
            clients_at_once = max(1, len(os.sched_getaffinity(0)) // _CORES_OF_A_CLIENT)
        if clients_at_once < 1:
            raise errors.InputError(f"clients_at_once: expected at least 1, or None; found {clients_at_once}")
        self.default_num_clients = check_default_num_clients(default_num_clients)
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
        with _planner_lock:
            plan = _plan(comp)
        type_spec, ingestion = comp.type_signature, values.Ingestion()
        argument = () if type_spec.parameter is None else (ingestion.take(arg, type_spec.parameter),)
        num_clients = self.default_num_clients if ingestion.num_clients is None else ingestion.num_clients
        result = plan(Scope(self._threads, num_clients), {}).call(*argument)
        device = values.device_of(result)
        if device is not None and not self._logged:
            self._logged = True
            name = device.split("device:")[-1]
            logger.info("runs in this process on %s, up to %d clients at once", name, self._threads.at_once)
        result = values.to_python(result, type_spec.result, num_clients)
        return type_conversions.type_to_py_container(result, type_spec.result)


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
    device: Optional[str] = None, clients_at_once: Optional[int] = None, *, default_num_clients: int = 0
) -> InProcessRuntime:
    """Makes this process TFF's default context, for scripts and notebooks; arguments and errors as `in_process`."""
    return in_process(device, clients_at_once, default_num_clients=default_num_clients).set_default()
