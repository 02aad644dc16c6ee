"""Exceptions for wrong input: one clear line that names what, where, and what would be right."""


class TffclError(Exception):
    """Base of every error that tffcl raises on purpose; its message is one line for the user."""


class InputError(TffclError, ValueError):
    """An argument, flag, shape or value that cannot be used as given."""


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
    """A TensorFlow operation that failed where a computation ran: a file that is not there, for example."""


def run_exists(folder: object) -> RunError:
    """The error for a run directory that may not be written over."""
    return RunError(f"{folder} holds a run already: go on with it (--resume), or give another directory")
