"""Exceptions for wrong input: one clear line that names what, where, and what would be right."""

import math


class TffclError(Exception):
    """Base of every error that tffcl raises on purpose; its message is one line for the user."""


class InputError(TffclError, ValueError):
    """An argument, flag, shape or value that cannot be used as given."""


class ArgumentError(InputError, TypeError):
    """An argument of a computation that does not fit its type, for which TFF raises a TypeError."""


class DatasetError(InputError):
    """A data file that is missing, truncated, or not in the layout that its loader expects."""


class WordVectorError(InputError):
    """A word-vector file or source that is missing, malformed, or holds non-finite values."""


class StreamError(InputError):
    """A split of data over clients and tasks that the data cannot give."""


class ContractError(TffclError, TypeError):
    """Parts of a continual process that do not fit together."""


class RunError(TffclError):
    """A run that cannot start, resume or go on: a foreign run directory, a full disk, a lost worker."""


class OperationError(RunError):
    """A TensorFlow operation that failed where a computation ran: a file that is not there, for example.

    Attributes:
      words: what TensorFlow says of it.
    """

    def __init__(self, where: str, words: str):
        super().__init__(where, words)
        self.words = words

    def __str__(self) -> str:
        return ": ".join(self.args)


def check_above_zero(name: str, value: float) -> None:
    """Raises InputError for what is no finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name}: expected a number above 0, found {value!r}")


def check_between_0_and_1(name: str, value: float) -> None:
    """Raises InputError for what is no number between 0 and 1, both left out."""
    if not 0 < value < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, found {value!r}")


def run_exists(folder: object) -> RunError:
    """The error for a run directory that may not be written over."""
    return RunError(f"{folder} holds a run already: go on with it (--resume), or give another directory")
