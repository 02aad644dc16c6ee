"""The way into every command: quiet logs, and errors of the user as one line with exit code 2."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from typing import Optional

import click

from tffcl import runtime
from tffcl.errors import TffclError

WRONG_INPUT, INTERRUPTED = 2, 130

# Importing TensorFlow and tracing make millions of objects that stay, and the usual collection of garbage looks through
# them again and again: 2.2 of the 11 CPU seconds of an import, 0.6 at this threshold.
_USUAL, _SELDOM = gc.get_threshold(), 100_000


def exit_with(command: click.Command, name: str = "tffcl", args: Optional[Sequence[str]] = None) -> None:
    """Runs a click command and ends the process: 0, 2 for wrong input (`name: error: ...`), 130 for Ctrl-C."""
    runtime.quiet_logs()  # before anything imports TensorFlow
    gc.set_threshold(_SELDOM)
    _show_warnings(name)
    try:
        sys.exit(command.main(args=args, prog_name=name, standalone_mode=False) or 0)
    except click.UsageError as error:
        if error.ctx is not None and error.message == error.ctx.get_help():  # a group without a command
            click.echo(error.message, err=True)
            sys.exit(WRONG_INPUT)
        _fail(name, error.format_message())
    except click.ClickException as error:
        _fail(name, error.format_message())
    except TffclError as error:
        _fail(name, str(error))
    except click.Abort:
        click.echo(f"{name}: interrupted; --resume with the same flags and --output-dir goes on", err=True)
        sys.exit(INTERRUPTED)
    finally:
        collect_as_usual()


def collect_as_usual() -> None:
    """For the rounds of a run: what they leave behind may hold large arrays, and goes soon."""
    gc.set_threshold(*_USUAL)


def say(line: str) -> None:
    """A line for the user that is no result, on stderr."""
    click.echo(line, err=True)


def _fail(name: str, message: str) -> None:
    click.echo(f"{name}: error: {' '.join(message.split())}", err=True)
    sys.exit(WRONG_INPUT)


def _show_warnings(name: str) -> None:
    logger = logging.getLogger("tffcl")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{name}: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
