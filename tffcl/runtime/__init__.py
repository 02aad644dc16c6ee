"""Where TFF computations run: local workers that this library starts, and always ends, itself; or this process.

Importing this package does not import TensorFlow, so that `tffcl.runtime.quiet` can still silence it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tffcl.runtime.quiet import quiet_logs
from tffcl.runtime.worker import Worker

if TYPE_CHECKING:
    from tffcl.runtime.contexts import LocalRuntime, local, set_local
    from tffcl.runtime.in_process_runtime import InProcessRuntime as InProcessRuntime
    from tffcl.runtime.in_process_runtime import in_process as in_process
    from tffcl.runtime.in_process_runtime import set_in_process as set_in_process

__all__ = ["LocalRuntime", "Worker", "local", "quiet_logs", "set_local"]


# Not in `__all__` as long as the list of public names, in tests/test_public_api.py, does not have them.
_IN_PROCESS = ("InProcessRuntime", "in_process", "set_in_process")


def __getattr__(name: str) -> Any:
    if name in _IN_PROCESS:
        from tffcl.runtime import in_process_runtime

        return getattr(in_process_runtime, name)
    if name in __all__:
        from tffcl.runtime import contexts

        return getattr(contexts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
