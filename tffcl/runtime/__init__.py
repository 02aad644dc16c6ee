"""Where TFF computations run: local workers that this library starts, and always ends, itself.

Importing this package does not import TensorFlow, so that `tffcl.runtime.quiet` can still silence it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tffcl.runtime.quiet import quiet_logs
from tffcl.runtime.worker import Worker

if TYPE_CHECKING:
    from tffcl.runtime.contexts import LocalRuntime, local, set_local

__all__ = ["LocalRuntime", "Worker", "local", "quiet_logs", "set_local"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tffcl.runtime import contexts

        return getattr(contexts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
