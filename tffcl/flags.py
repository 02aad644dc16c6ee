"""Flags of the command line, made of options: help in groups, configuration files, exit codes. No TensorFlow here."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

import click

from tffcl.algorithms import registry
from tffcl.algorithms.method import Method
from tffcl.errors import InputError, TffclError, page_of
from tffcl.experiment import OF_KIND, Experiment, loading
from tffcl.experiment.groups import SCENARIOS, data_with_defaults
from tffcl.options import Field, OptionError, fields_of, flat, parse, shown
from tffcl.runtime import quiet
from tffcl.transfers.options import TRANSFERS

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Value(click.ParamType):
    """What an option takes, converted and checked as the option says."""

    def __init__(self, field: Field):
        self.field = field
        self.name = "text"

    def convert(self, value: Any, param: Optional[click.Parameter], ctx: Optional[click.Context]) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(self.field, value)
        except InputError as error:
            self.fail(getattr(error, "reason", str(error)), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: Optional[click.Context] = None) -> str:
        declared = self.field.option
        if declared.metavar:
            return declared.metavar
        if declared.choices:
            return "|".join(declared.choices)
        names = {int: "N", float: "NUMBER"}
        return names.get(self.field.type, "TEXT")


class ExperimentCommand(click.Command):
    """`tffcl run METHOD`: its flags are the options of the experiment that the rest of the command line asks for."""

    def __init__(
        self, name: str, reference: str, run: Callable[[Any], Any], about: str = "", compare: Sequence[str] = ()
    ):
        method = registry.find_method(reference)
        super().__init__(name, context_settings=_CONTEXT, help=about or _about(method))
        self._reference, self._run, self._compare = reference, run, compare
        self._flags: list[click.Parameter] = []  # known with the arguments

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        scanned = _scanned(args)
        given = {name: values[-1] for name, values in scanned.items()}
        document = _document(given["config"]) if "config" in given else {}
        recorded = document.get("method", "")
        usual = recorded if recorded.rpartition("@")[2] == self._reference else self._reference
        named = scanned.get("method", self._compare)
        self._methods = [name if name == self._reference else f"{name}@{self._reference}" for name in named] or [usual]
        data, network = (given.get(name, document.get(name)) for name in ("data", "network"))
        # Parts of the user's have options of their own.
        chosen = {"scenario": SCENARIOS, "selection": TRANSFERS}
        values = {name: given.get(name, document.get(name)) for name in (*chosen, *OF_KIND)}
        own = {name: values[name] for name in chosen if chosen[name].is_own(values[name])}
        own.update({name: values[name] for name in OF_KIND if values[name] is not None})
        self._experiment = Experiment(self._methods[-1], data=data, network=network, **own)
        self._document = {name: value for name, value in document.items() if name not in ("method", "data", "network")}
        self._flags = self._all_flags()
        return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*self._flags, *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            others = [
                name
                for name in registry.METHODS.names
                for group in registry.find_method(name).option_groups()
                if error.option_name in [field.flag for field in fields_of(group)]
            ]
            if not others:
                raise
            message = f"{error.option_name} is for {', '.join(others)}, not for {self._experiment.method.name}"
            raise click.UsageError(message, ctx) from error

    def _all_flags(self) -> list[click.Parameter]:
        chosen = self._experiment
        several = [chosen]
        if chosen.data is None:
            others = data_with_defaults(chosen.method, chosen.kind)
            several += [chosen.replace(data=name) for name in others if name in loading.NAMES]
        declared: list[click.Parameter] = [
            _flag(several, field, title) for title, group in chosen.group_types for field in fields_of(group)
        ]
        return [
            *declared,
            _option("--method", _METHOD, "method", "NAME", multiple=True),
            _option("--network", _NETWORK, "network", "NAME|FILE:NAME"),
            _option("--config", "Options from a TOML or JSON file; flags stand over them.", "output", "FILE"),
            click.Option(["--print-config"], is_flag=True, help="Print all options as a file for --config, and end."),
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_help_all,
                help="Show every flag, and end.",
            ),
        ]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = ctx.meta.get("tffcl.help_all", False)
        groups: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and (everything or not getattr(param, "advanced", False)):
                groups.setdefault(getattr(param, "title", "more"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title.capitalize()):
                formatter.write_dl(records)

    def experiment(self, ctx: click.Context) -> Experiment:
        """The experiment that the flags ask for."""
        unset = ("method", "config", "network", "data", "print_config")
        given = {name: value for name, value in ctx.params.items() if value is not None and name not in unset}
        return self._experiment.replace(**{**self._document, **given})

    def invoke(self, ctx: click.Context) -> Any:
        experiment = self.experiment(ctx)
        level = logging.WARNING if experiment.quiet else logging.DEBUG if experiment.verbose else logging.INFO
        logging.getLogger("tffcl").setLevel(level)
        if ctx.params["print_config"]:
            click.echo(experiment.to_toml(), nl=False)
        elif self._compare:
            self._run([experiment.replace(method=method) for method in self._methods])
        else:
            self._run(experiment)


def _about(method: Method) -> str:
    paper = f" ({method.paper})" if method.paper else ""
    return f"{method.about}{paper}"


_METHOD = "Another method under the conditions of this one's paper."
_NETWORK = (
    "A name of `tffcl list`, or FILE.py:NAME: a function that makes a Keras model of an input shape and a number of "
    "classes.  [default: what suits the data]"
)


def _option(flag: str, text: str, title: str, metavar: str, multiple: bool = False) -> click.Option:
    option = click.Option([flag], help=text, metavar=metavar, multiple=multiple)
    option.title = title  # type: ignore[attr-defined]
    return option


def _flag(several: Sequence[Experiment], field: Field, title: str) -> click.Option:
    """The flag of an option of the first experiment, whose help shows the defaults in all of them."""
    experiment, declared = several[0], field.option
    names, text = [field.flag, *declared.aliases], f"{declared.help}{_default_shown(several, field)}"
    if field.type is bool:
        usual = experiment.defaults.get(field.name, field.default)
        flags = [f"{field.flag}/--no-{field.flag[2:]}"] if usual or field.default else [field.flag]
        option = click.Option([*flags, field.name], default=None, is_flag=True, help=text)
    else:
        bare: dict[str, Any] = {} if declared.bare is None else {"is_flag": False, "flag_value": declared.bare}
        joined = _one_after_the_other if declared.join else None
        option = click.Option(
            [*names, field.name], type=_Value(field), multiple=declared.join, help=text, callback=joined, **bare
        )
    here = declared.suits(experiment.kind, experiment.scenario)
    option.title, option.advanced = title, declared.advanced or not here  # type: ignore[attr-defined]
    return option


def _one_after_the_other(ctx: click.Context, param: click.Parameter, values: Sequence[tuple]) -> Optional[tuple]:
    return tuple(each for value in values for each in value) if values else None


def _default_shown(several: Sequence[Experiment], field: Field) -> str:
    experiment = several[0]
    if field.name == "data":
        *names, ships = loading.usual_names(experiment.method, experiment.kind)
        return f"  [default: the first at hand of {', '.join(names)} and {ships}, which ships]"
    if field.type is bool and not experiment.defaults[field.name]:
        return ""
    by_value: dict[str, list[str]] = {}
    for each in several:
        by_value.setdefault(shown(each.defaults.get(field.name)), []).append(each.data_name)
    (usual, _), *others = by_value.items()
    text = "; ".join([usual, *(f"{value} for {' and '.join(names)}" for value, names in others)])  # `10; 3 for sample`
    return "" if text == "none" and experiment.defaults[field.name] is None else f"  [default: {text}]"


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta["tffcl.help_all"] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_SCANNED = {"--method": "method", "--network": "network", "--config": "config", "--data": "data", "--dataset": "data",
            "--scenario": "scenario", "--selection": "selection", "--text-column": "text_column",
            "--features": "features"}  # fmt: skip


def _scanned(args: Sequence[str]) -> dict[str, list[str]]:
    """The values of the flags on which the others depend."""
    values: dict[str, list[str]] = {}
    rest = list(args)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if name in _SCANNED:
            if not separator and rest:
                value = rest.pop(0)
            values.setdefault(_SCANNED[name], []).append(value)
    return values


def _document(path: str) -> dict[str, Any]:
    """Options of a TOML or JSON file.

    Raises:
      InputError: no such file, or it holds no options.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8-sig")
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        document = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--config {path}: {reason}") from error
    if not isinstance(document, Mapping):
        raise InputError(f"--config {path}: expected options by name, found {type(document).__name__}")
    return flat(document)


class RunGroup(click.Group):
    """`tffcl run`: a command for every method, and for FILE.py:NAME."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(registry.METHODS.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        return ExperimentCommand(cmd_name, cmd_name, run_and_show)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, _about(registry.find_method(name))) for name in self.list_commands(ctx)]
        with formatter.section("Methods"):
            formatter.write_dl(rows)


def parse_run(args: Iterable[str]) -> Experiment:
    """The experiment that the arguments of `tffcl run` ask for.

    >>> parse_run(["fedseit", "--data", "sample", "--num-rounds", "2"]).num_rounds
    2
    """
    reference, *flags = args
    experiments: list[Experiment] = []
    ExperimentCommand(reference, reference, experiments.append).main(flags, standalone_mode=False)
    return experiments[0]


def run_and_show(experiment: Experiment) -> None:
    """Runs an experiment, and prints its tables."""
    from tffcl import reports  # TensorFlow comes now

    results = experiment.run()
    if results.directory is not None:
        reports.show(results.directory, experiment.plot_format)


def script(method: str, *, compare: Sequence[str] = ()) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Decorator: a function of an experiment becomes a program with the flags of `tffcl run METHOD`.

    Shown in examples/fedseit_trec.py.

    Args:
      method: name of the method.
      compare: methods that are run where no `--method` is given, which may be repeated; then the function takes a list
        of experiments.
    """

    def decorate(function: Callable[[Any], None]) -> Callable[..., None]:
        module = inspect.getmodule(function)
        about = ((module.__doc__ if module else None) or "").partition("\n")[0]
        name = pathlib.Path(inspect.getfile(function)).name

        @functools.wraps(function)
        def program(args: Optional[Sequence[str]] = None) -> None:
            command = ExperimentCommand(name, method, function, about, compare)
            exit_with(command, name, args)

        return program

    return decorate


# -- a command as a program: quiet logs, lines for the user on stderr, errors as one line ---------------------------


def exit_with(command: click.Command, name: str = "tffcl", args: Optional[Sequence[str]] = None) -> None:
    """Runs a click command and ends the process: 0, 2 for wrong input (`name: error: ...`), 130 for Ctrl-C."""
    quiet.quiet_logs()  # before anything imports TensorFlow
    quiet.collect_seldom()
    os.environ.pop("MPLBACKEND", None)  # pictures go to files; a notebook's own backend need not be installed here
    _show_lines(name)
    try:
        sys.exit(command.main(args=args, prog_name=name, standalone_mode=False) or 0)
    except (click.ClickException, TffclError) as error:
        if isinstance(error, click.UsageError) and error.ctx is not None and error.message == error.ctx.get_help():
            click.echo(error.message, err=True)  # a group without a command
        else:
            page = page_of(error)
            see = f" (see {page})" if page else ""
            click.echo(f"{name}: error: {' '.join(_words(error).split())}{see}", err=True)
        sys.exit(2)
    except click.Abort:
        click.echo(f"{name}: interrupted; --resume with the same flags and --output-dir goes on", err=True)
        sys.exit(130)
    finally:
        quiet.collect_as_usual()


def _words(error: Exception) -> str:
    if isinstance(error, OptionError):
        return f"--{error.name.replace('_', '-')}: {error.reason}"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


class _Lines(logging.Formatter):
    """Information as it is, warnings with who says them."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{self._name}: {record.levelname}: {text}"


def _show_lines(name: str) -> None:
    """What tffcl logs goes to stderr, line by line."""
    logger = logging.getLogger("tffcl")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(name))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
