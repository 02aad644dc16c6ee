"""What every runtime of this library is: a TFF context that is installed for a while, or as the default."""

from __future__ import annotations

import abc
from typing import Any, TypeVar

import tensorflow_federated as tff

_Self = TypeVar("_Self", bound="Runtime")


class Runtime(abc.ABC):
    """A TFF context and what it needs to run.

    As a context manager it installs its context in the current thread, and on leaving takes it away and closes. TFF's
    contexts belong to threads: another thread has to enter a runtime of its own.

    Args:
      context: The TFF context.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self._installed: list[Any] = []

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what the context needs; computations in it then raise `RunError`."""

    def set_default(self: _Self) -> _Self:
        """Makes the context TFF's default, for scripts and notebooks; returns this runtime."""
        tff.framework.set_default_context(self.context)
        return self

    def __enter__(self: _Self) -> _Self:
        installed = tff.framework.get_context_stack().install(self.context)
        installed.__enter__()
        self._installed.append(installed)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        try:
            self._installed.pop().__exit__(*exc_info)
        finally:
            self.close()
