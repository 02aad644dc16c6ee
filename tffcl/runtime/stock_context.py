"""TFF's own default context, which every import of TFF makes, and how it ends."""

from __future__ import annotations

from typing import Any

import tensorflow_federated as tff


class _Ended(tff.framework.SyncContext):
    def invoke(self, comp: Any, arg: Any) -> Any:
        raise RuntimeError("the process is ending: nothing is computed any more")


def drop() -> None:
    """Lets go of it, before the interpreter takes its modules down.

    That context's destructor looks for `subprocess` among its globals; left to the very end of the process it finds
    None, and Python prints a traceback that says nothing.
    """
    tff.framework.set_default_context(_Ended())
