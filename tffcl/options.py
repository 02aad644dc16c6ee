"""Options: declared once, on the frozen dataclass that uses them.

A field made by `option` carries its type (the annotation), default, help, range and choices. Command-line flags,
configuration files, `config.json`, the tables of the documentation and the checks of values given in Python all come
from that declaration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

from tffcl.errors import InputError


class OptionError(InputError):
    """A value that an option does not take: the option's `name`, as in Python, and the `reason`."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


@dataclasses.dataclass(frozen=True)
class Option:
    """What a field declares besides its type and default."""

    help: str = ""  # a sentence or two for `--help`
    choices: tuple[str, ...] = ()  # the values that it takes; empty for any
    least: Optional[float] = None  # of numbers: x >= least, x > above, x <= most, x < below
    above: Optional[float] = None
    most: Optional[float] = None
    below: Optional[float] = None
    metavar: Optional[str] = None  # what stands for a value in `--help`
    flag: Optional[str] = None  # where it is not the field's name
    aliases: tuple[str, ...] = ()  # further flags of the same meaning
    parse: Optional[Callable[[str], Any]] = None  # text -> value; by default what the annotation says
    advanced: bool = False  # shown by `--help-all` alone
    recorded: bool = True  # part of what a run is; not so where files lie or where computations run
    sparse: bool = False  # recorded only where its value is not the default
    mark: Optional[Callable[[Any], str]] = None  # the dataclass -> what it adds to the method's name in tables, or ""
    only: tuple[str, ...] = ()  # kinds of data or scenarios that it is for; empty for all
    join: bool = False  # may be given several times, and the values are one after the other
    bare: Optional[str] = None  # the value of the flag by itself, and of True in Python; False is the default

    def suits(self, kind: str, scenario: str) -> bool:
        """Whether the option has a meaning for data of a kind in a scenario."""
        return not self.only or bool({kind, scenario} & set(self.only))


def option(default: Any, help: str, **declared: Any) -> Any:
    """A dataclass field that is an option; `declared` are attributes of `Option`.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Schedule(Options):
    ...     "How long a task lasts."
    ...     num_rounds: int = option(3, "Rounds of a task.", least=1)
    >>> Schedule(num_rounds=0)
    Traceback (most recent call last):
    ...
    tffcl.options.OptionError: num_rounds: expected at least 1, found 0
    >>> print(Schedule.__doc__)
    How long a task lasts.
    <BLANKLINE>
    Options:
      num_rounds: Rounds of a task.
    """
    return dataclasses.field(default=default, metadata={"option": Option(help=help, **declared)})


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of dataclasses with options: values are checked when they are made, and docstrings list the options."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        fields = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
        lines = [f"  {name}: {field.metadata['option'].help}" for name, field in fields.items() if field.metadata]
        if lines and cls.__doc__ is not None:
            cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__), "", "Options:", *lines])

    def __post_init__(self) -> None:
        owner: type = type(self)
        for field in fields_of(owner):
            object.__setattr__(self, field.name, checked(field, getattr(self, field.name)))


@dataclasses.dataclass(frozen=True)
class Field:
    """An option of a dataclass: its name, type and declaration."""

    name: str
    type: Any  # without Optional
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return self.option.flag or "--" + self.name.replace("_", "-")


@functools.cache
def fields_of(owner: type) -> tuple[Field, ...]:
    """The options of a dataclass, in the order of their declaration."""
    hints = typing.get_type_hints(owner)
    return tuple(
        Field(field.name, *_without_none(hints[field.name]), field.default, field.metadata["option"])
        for field in dataclasses.fields(owner)
        if "option" in field.metadata
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) is Union:
        members = [each for each in typing.get_args(hint) if each is not type(None)]
        if len(members) == 1:
            return members[0], True
    return hint, False


def checked(field: Field, value: Any) -> Any:
    """The value of an option, converted to its type.

    Raises:
      OptionError: another type, out of range, or none of the choices.
    """
    if value is None and (field.optional or field.default is None):
        return None
    value = _of_type(field, value)
    declared = field.option
    if declared.choices and value not in declared.choices:
        raise OptionError(field.name, f"expected one of {', '.join(declared.choices)}; found {value!r}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            _check_range(field, number)
    return value


def _check_range(field: Field, number: float) -> None:
    declared = field.option
    limits = (
        ("at least", declared.least, lambda limit: number >= limit),
        ("a number above", declared.above, lambda limit: number > limit),
        ("at most", declared.most, lambda limit: number <= limit),
        ("a number below", declared.below, lambda limit: number < limit),
    )
    if not math.isfinite(number):
        raise OptionError(field.name, f"expected a finite number, found {number!r}")
    for words, limit, holds in limits:
        if limit is not None and not holds(limit):
            raise OptionError(field.name, f"expected {words} {limit:.15g}, found {number!r}")


_NUMBERS = {int: (numbers.Integral, "a whole number"), float: (numbers.Real, "a number")}


def _of_type(field: Field, value: Any) -> Any:
    kind = field.type
    if field.option.bare is not None and isinstance(value, bool):
        return field.option.bare if value else field.default
    if kind in _NUMBERS:
        wanted, words = _NUMBERS[kind]
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise OptionError(field.name, f"expected {words}, found {value!r}")
        return kind(value)
    if kind is bool and not isinstance(value, bool):
        raise OptionError(field.name, f"expected true or false, found {value!r}")
    if kind is str and not isinstance(value, str):
        raise OptionError(field.name, f"expected text, found {value!r}")
    return _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def parse(field: Field, text: str) -> Any:
    """The value that a text on the command line stands for, checked.

    Raises:
      OptionError: as `checked`, or a text that stands for no value of the option's type.
    """
    try:
        return checked(field, _parsed(field, text))
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(field.name, str(error)) from error


def _parsed(field: Field, text: str) -> Any:
    if field.option.parse is not None:
        return field.option.parse(text)
    if field.type is bool:
        if text.lower() not in ("true", "false"):
            raise OptionError(field.name, f"expected true or false, found {text!r}")
        return text.lower() == "true"
    if field.type in (int, float):
        try:
            return field.type(text)
        except ValueError:
            raise OptionError(field.name, f"expected {_NUMBERS[field.type][1]}, found {text!r}") from None
    return text


_SCALARS: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@functools.cache
def options_of(part: Callable[..., Any], supplied: tuple[str, ...] = ()) -> Optional[type]:
    """The parameters of a part of the user's (a function or class) that are options, as a dataclass; None without any.

    Those with a default and an annotation int, float, str or bool are, but those that are `supplied` by whoever calls
    it; their help is what the docstring's `Args` say.

    >>> def network(input_shape, num_classes, width: int = 32):
    ...     '''A network.
    ...
    ...     Args:
    ...       width: Units of the layer.
    ...     '''
    >>> [(field.flag, field.default, field.option.help) for field in fields_of(options_of(network))]
    [('--width', 32, 'Units of the layer.')]
    """
    described, fields = _described(inspect.getdoc(part) or ""), []
    for parameter in inspect.signature(part).parameters.values():
        if parameter.name in supplied or parameter.default is parameter.empty:
            continue
        annotation = parameter.annotation
        scalar = _SCALARS.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
        if scalar is not None:
            fields.append((parameter.name, scalar, option(parameter.default, described.get(parameter.name, ""))))
    if not fields:
        return None
    return dataclasses.make_dataclass(
        f"{part.__name__}_options", fields, bases=(Options,), frozen=True, namespace={"from_signature": True}
    )


def _described(doc: str) -> dict[str, str]:
    """Parameter -> description, from the `Args` of a docstring."""
    described: dict[str, str] = {}
    inside, current = False, ""
    for line in doc.split("\n"):
        if line.strip() in ("Args:", "Arguments:"):
            inside = True
        elif inside and line and not line.startswith(" "):
            break
        elif inside and line.strip():
            head, separator, rest = line.strip().partition(": ")
            if separator and head.isidentifier() and len(line) - len(line.lstrip()) <= 4:
                current = head
                described[current] = rest
            elif current:
                described[current] += f" {line.strip()}"
    return described


def widths(text: str) -> tuple[int, ...]:
    """Sizes of layers: `400,200`; `none` for no layer.

    >>> widths("400, 200"), widths("none")
    ((400, 200), ())
    """
    texts = [each.strip() for each in text.split(",")]
    if texts == ["none"]:
        return ()
    if not all(each.isdecimal() and int(each) > 0 for each in texts):
        raise ValueError(f"a layer needs 1 unit or more; found {text}")
    return tuple(map(int, texts))


def shown(value: Any) -> str:
    """A value as `--help` and messages show it.

    >>> shown(1e-4), shown((400, 200)), shown(True), shown(None)
    ('0.0001', '400,200', 'on', 'none')
    """
    if isinstance(value, tuple):
        return ",".join(map(shown, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def to_toml(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Options by group as a TOML document; an option without a value is left out.

    >>> print(to_toml([("training", {"num_rounds": 3, "learning_rate": 1e-4, "patience": None})]), end="")
    [training]
    num_rounds = 3
    learning_rate = 0.0001
    """
    lines = []
    for title, values in groups:
        given = {name: value for name, value in values.items() if value is not None}
        lines += [f"[{title}]", *(f"{name} = {json.dumps(value)}" for name, value in given.items()), ""]
    return "\n".join(lines)


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a configuration file, whether they stand in groups or not."""
    options: dict[str, Any] = {}
    for name, value in document.items():
        options.update(value if isinstance(value, Mapping) else {name: value})
    return options
