"""The way into every command: quiet logs, lines for the user on stderr, and errors as one line with exit code 2."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from typing import Optional

import click

from tffcl.errors import TffclError
from tffcl.options import OptionError
from tffcl.runtime.quiet import quiet_logs

WRONG_INPUT, INTERRUPTED = 2, 130

# Importing TensorFlow and tracing make millions of objects that stay, and the usual collection of garbage looks through
# them again and again: 2.2 of the 11 CPU seconds of an import, 0.6 at this threshold.
_USUAL, _SELDOM = gc.get_threshold(), 100_000


def exit_with(command: click.Command, name: str = "tffcl", args: Optional[Sequence[str]] = None) -> None:
    """Runs a click command and ends the process: 0, 2 for wrong input (`name: error: ...`), 130 for Ctrl-C."""
    quiet_logs()  # before anything imports TensorFlow
    gc.set_threshold(_SELDOM)
    show_lines(name)
    try:
        sys.exit(command.main(args=args, prog_name=name, standalone_mode=False) or 0)
    except click.UsageError as error:
        if error.ctx is not None and error.message == error.ctx.get_help():  # a group without a command
            click.echo(error.message, err=True)
            sys.exit(WRONG_INPUT)
        _fail(name, error.format_message())
    except click.ClickException as error:
        _fail(name, error.format_message())
    except OptionError as error:
        _fail(name, f"--{error.name.replace('_', '-')}: {error.reason}")
    except TffclError as error:
        _fail(name, str(error))
    except click.Abort:
        click.echo(f"{name}: interrupted; --resume with the same flags and --output-dir goes on", err=True)
        sys.exit(INTERRUPTED)
    finally:
        collect_as_usual()


def collect_as_usual() -> None:
    """For the rounds of a run: what they leave behind may hold large arrays, and goes soon."""
    if gc.get_threshold()[0] == _SELDOM:
        gc.set_threshold(*_USUAL)


def _fail(name: str, message: str) -> None:
    click.echo(f"{name}: error: {' '.join(message.split())}", err=True)
    sys.exit(WRONG_INPUT)


class _Lines(logging.Formatter):
    """Information as it is, warnings with who says them."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{self._name}: {record.levelname}: {text}"


def show_lines(name: str) -> None:
    """What tffcl logs goes to stderr, line by line."""
    logger = logging.getLogger("tffcl")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(name))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
