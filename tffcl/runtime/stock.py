"""TFF's own default context, out of the way before the interpreter takes its modules down.

That context's destructor looks for `subprocess` among its globals; left to the very end of the process it finds None,
and Python prints a traceback that says nothing.
"""

from __future__ import annotations

import atexit
import functools
import gc
from typing import Any

import tensorflow_federated as tff


class _Ended(tff.framework.SyncContext):
    def invoke(self, comp: Any, arg: Any) -> Any:
        raise RuntimeError("the process is ending: nothing is computed any more")


def _drop() -> None:
    tff.framework.set_default_context(_Ended())
    gc.collect()


@functools.cache
def drop_at_exit() -> None:
    """Lets go of TFF's default context when the process ends; once, however often it is called."""
    atexit.register(_drop)
