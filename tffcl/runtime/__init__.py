"""Where TFF computations run: local workers that this library starts, and always ends, itself; or this process.

Importing this package does not import TensorFlow, so that `tffcl.runtime.quiet` can still silence it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tffcl.runtime.quiet import quiet_logs
from tffcl.runtime.worker import Worker

if TYPE_CHECKING:
    from tffcl.runtime.contexts import LocalRuntime, local, set_local
    from tffcl.runtime.in_process_runtime import InProcessRuntime, in_process, set_in_process
    from tffcl.runtime.remote_runtime import (
        LocalWorkers,
        RemoteRuntime,
        allow_missing_clients,
        remote,
        take_worker_failures,
    )

__all__ = [
    "InProcessRuntime",
    "LocalRuntime",
    "LocalWorkers",
    "RemoteRuntime",
    "Worker",
    "allow_missing_clients",
    "in_process",
    "local",
    "quiet_logs",
    "remote",
    "set_in_process",
    "set_local",
    "take_worker_failures",
]

_IN_PROCESS = ("InProcessRuntime", "in_process", "set_in_process")
_REMOTE = ("LocalWorkers", "RemoteRuntime", "allow_missing_clients", "remote", "take_worker_failures")


def __getattr__(name: str) -> Any:
    if name in _IN_PROCESS:
        from tffcl.runtime import in_process_runtime

        return getattr(in_process_runtime, name)
    if name in _REMOTE:
        from tffcl.runtime import remote_runtime

        return getattr(remote_runtime, name)
    if name in __all__:
        from tffcl.runtime import contexts

        return getattr(contexts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
