"""Exceptions for wrong input: one clear line that names what, where, and what would be right."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import re
import typing


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
    """A TensorFlow operation that failed where a computation ran, in TensorFlow's `words`: a file is not there."""

    def __init__(self, where: str, words: str):
        super().__init__(where, words)
        self.words = words

    def __str__(self) -> str:
        return ": ".join(self.args)


# Where what is wrong is explained: the class of an error, words of its message, the page. The first that fits counts.
PAGES = (
    (WordVectorError, "", "docs/how-to.md#word-vectors"),
    (StreamError, "", "docs/explained.md#what-can-differ-from-task-to-task"),
    (DatasetError, "TFFCL_DATA_DIR|download|checksum", "docs/how-to.md#data-without-internet"),
    (DatasetError, "", "docs/how-to.md#data-of-ones-own"),
    (InputError, "no data set is called", "docs/how-to.md#data-of-ones-own"),
    (ContractError, "", "docs/contract.md#writing-a-new-method"),
    (RunError, "[Ww]orker", "docs/runtime.md#when-a-worker-gets-lost"),
    (RunError, "holds a run|resume|another process", "docs/how-to.md#resume"),
    (RunError, "allow-code|older tffcl|no run here", "docs/from-run-to-use.md"),
    (InputError, r"\bmodel: ", "docs/contract.md#writing-a-new-method"),
    (InputError, r"\.py\b|\.py:", "docs/own_parts.md"),
)


def page_of(error: Exception) -> typing.Optional[str]:
    """The page of the documentation that explains an error; None where none does.

    >>> page_of(StreamError("label 3 has too few documents"))
    'docs/explained.md#what-can-differ-from-task-to-task'
    """
    for kind, words, page in PAGES:
        if isinstance(error, kind) and re.search(words, str(error)):
            return page
    return None


def check_above_zero(name: str, value: float) -> None:
    """Raises InputError for what is no finite number above 0."""
    if not is_number(value) or value <= 0:
        raise InputError(f"{name}: expected a number above 0, found {value!r}")


def check_between_0_and_1(name: str, value: float) -> None:
    """Raises InputError for what is no number between 0 and 1, both left out."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(f"{name}: expected a number between 0 and 1, found {value!r}")


def is_number(value: object) -> bool:
    """Whether a value is a finite number; True and False are not."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def check_whole(name: str, value: object, least: int, error: type[InputError] = InputError) -> int:
    """The value as an int; raises `error` for what is no whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise error(f"{name} must be a whole number, {least} or more; got {value!r}")
    return int(value)


def check_choice(name: str, value: str, known: typing.Iterable[str]) -> str:
    """The value; raises InputError where it is not among the known ones."""
    choices = list(known)
    if value not in choices:
        raise InputError(f"{name}: expected one of {', '.join(choices)}, found {value!r}")
    return value


def run_exists(folder: object) -> RunError:
    """The error for a run directory that may not be written over."""
    return RunError(f"{folder} holds a run already: go on with it (--resume), or give another directory")


# What to give in the place of what is often given, by argument.
_INSTEAD = {
    "network": "tffcl.models.KerasNetwork(model) makes one of a Keras model",
    "server_optimizer": "those of Keras keep their state in variables; take tff.learning.optimizers.build_adam(...)",
    "optimizer": "those of Keras keep their state in variables; take tff.learning.optimizers.build_adam(...)",
    "aggregator": "give an instance, as tff.aggregators.MeanFactory(), or the .factory() of a ClientPrivacy",
}
_Function = typing.TypeVar("_Function", bound=typing.Callable)


def checked_arguments(function: _Function) -> _Function:
    """Decorator: what its annotations do not allow is one InputError that names the argument.

    Annotations are texts: alternatives between bars, classes or unions of them. What stands in brackets is not looked
    at, nor what has no annotation.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checking(*args: typing.Any, **given: typing.Any) -> typing.Any:
        try:
            found = signature.bind(*args, **given).arguments
        except TypeError as error:
            raise InputError(f"{function.__name__}: {error}") from None
        for name, value in found.items():
            parameter = signature.parameters[name]
            variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not variable and parameter.annotation is not parameter.empty:
                _check_kind(name, value, parameter.annotation, function.__globals__)
        return function(*args, **given)

    return typing.cast(_Function, checking)


def _check_kind(name: str, value: object, annotation: str, scope: dict[str, typing.Any]) -> None:
    # One alternative at a time: Python 3.9 knows no `X | None`.
    if "tff." in annotation and "tff" not in scope:  # imported where it is used, for help without TensorFlow
        import tensorflow_federated as tff

        scope = {**scope, "tff": tff}
    kinds = [kind for part in annotation.split("|") for kind in _classes(eval(part, scope))]
    if isinstance(value, tuple(kinds)):
        return
    found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    words = {numbers.Integral: "a whole number", numbers.Real: "a number", type(None): "None"}
    wanted = " or ".join(dict.fromkeys(words.get(kind, kind.__name__) for kind in kinds))
    instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise InputError(f"{name}: expected {wanted}, found {words.get(type(value), found)}{instead}")


def _classes(kind: typing.Any) -> tuple[typing.Any, ...]:
    """The classes of which something is an instance if it is of an annotated kind."""
    if typing.get_origin(kind) is typing.Union:
        return tuple(one for part in typing.get_args(kind) for one in _classes(part))
    numeric = {int: numbers.Integral, float: numbers.Real, None: type(None)}
    return (numeric.get(kind) or typing.get_origin(kind) or kind,)
