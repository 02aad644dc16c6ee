"""What the flags of all `tffcl run` commands have in common. Nothing heavy is imported here."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Optional, TypeVar

import click

from tffcl.errors import InputError
from tffcl.runtime import health

WHOLE = click.IntRange(min=1)
SEED_RANGE = click.IntRange(min=0, max=2**32 - 1)  # what gensim and numpy take

Flag = Callable[[Any], Any]
Options = TypeVar("Options", bound="RunOptions")


def together(*flags: Flag) -> Flag:
    """One decorator of several, in whose order help shows them."""

    def decorate(command: Any) -> Any:
        for flag in reversed(flags):
            command = flag(command)
        return command

    return decorate


class ByCase(click.Option):
    """An option whose default depends on the data or on other flags: None until `RunOptions.filled` puts it in.

    Args:
      by_case: the defaults; "" is what is taken unless one of the other cases, named as help names it, holds.
      help: the text before the defaults.
    """

    def __init__(self, *args: Any, by_case: Mapping[str, Any], help: str, **attrs: Any):
        self.by_case = dict(by_case)
        told = "; ".join(f"{_told(value)} {case}".rstrip() for case, value in self.by_case.items())
        super().__init__(*args, help=f"{help}  [default: {told}]", **attrs)

    def default_in(self, cases: Sequence[str]) -> Any:
        """The default where `cases` hold; the last of several decides."""
        return next(self.by_case[case] for case in reversed(("", *cases)) if case in self.by_case)


def _told(value: Any) -> str:
    """A default as it would be given."""
    if isinstance(value, tuple):
        return ",".join(map(_told, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def flag_of(name: str) -> str:
    """The flag of a field.

    >>> flag_of("num_rounds")
    '--num-rounds'
    """
    return "--" + name.replace("_", "-")


def as_flags(fields: Mapping[str, Any]) -> list[str]:
    """What `RunOptions.parse` takes for some fields; nothing for those that are None.

    >>> as_flags({"num_rounds": 3, "data_dir": None})
    ['--num-rounds', '3']
    """
    return [
        text for name, value in fields.items() if value is not None for text in (flag_of(name), str(value))
    ]


DATA_DIR = click.option(
    "--data-dir", metavar="DIR",
    help="The folder of the published files.  [default: $TFFCL_DATA_DIR, else a cache that downloads fill]",
)  # fmt: skip
CLIENTS_PER_ROUND = click.option(
    "--clients-per-round", type=WHOLE, help="Clients that take part in a round.  [default: all]"
)
SPLIT_SEED = click.option(
    "--split-seed", type=SEED_RANGE, default=42, show_default=True, help="Of the making of tasks."
)
OUTPUT_DIR = click.option(
    "--output-dir", metavar="DIR", help="The run directory.  [default: a new one in runs/]"
)
RESUME = click.option("--resume", is_flag=True, help="Go on with the run in --output-dir where it stopped.")
_RUNTIME = click.option(
    "--runtime", type=click.Choice(["local", "in-process", "remote"]), default="local", show_default=True,
    help="Where computations run: a TFF worker on this machine; this process, with its GPU if it has one; --workers.",
)  # fmt: skip
_WORKERS = click.option(
    "--workers", metavar="HOST:PORT,...",
    help="For --runtime remote: where `tffcl worker` runs; the clients of a round are spread over them.",
)  # fmt: skip
_CALL_TIMEOUT = click.option(
    "--call-timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="For --runtime remote: a worker whose part of a round takes longer is left out.  [default: no limit]",
)  # fmt: skip
_ON_LOST_WORKER = click.option(
    "--on-lost-worker", type=click.Choice(["retry", "leave-out"]), default="retry", show_default=True,
    help="For --runtime remote: the clients whose worker gets lost in a round go to the others, or the round ends "
    "without them.",
)  # fmt: skip
_CLIENT_DIR = click.option(
    "--client-dir", metavar="DIR",
    help="Clients keep their states and data in files below this folder, on the machine where their work is done, and "
    "only handles come here.  [default: all in the memory of this program]",
)  # fmt: skip


# Of noise on the updates of the base.
DP_BASE = together(
    click.option(
        "--dp-base-clip", type=float, metavar="NORM",
        help="Differential privacy of whole clients: the norm to which each client's update of the base is clipped.",
    ),
    click.option(
        "--dp-base-noise", type=float, metavar="MULTIPLIER",
        help="Standard deviation of the noise on the sum of the updates, in units of --dp-base-clip; tells epsilon.",
    ),
    click.option(
        "--dp-base-quantile", type=float, metavar="SHARE",
        help="The clip follows this quantile of the updates' norms, and starts at --dp-base-clip.  [default: fixed]",
    ),
    click.option(
        "--dp-base-delta", cls=ByCase, by_case={"": 1e-5}, type=float, metavar="DELTA", help="At which epsilon is told."
    ),
)  # fmt: skip
_OF_DP_BASE = ("dp_base_clip", "dp_base_noise", "dp_base_quantile", "dp_base_delta")


# The flag `--runtime`, and what goes with it.
RUNTIME = together(_RUNTIME, _WORKERS, _CALL_TIMEOUT, _ON_LOST_WORKER, _CLIENT_DIR)


def evaluate_every(default: str) -> Flag:
    """The flag `--evaluate-every`."""
    return click.option(
        "--evaluate-every", type=click.Choice(["round", "task"]), default=default, show_default=True,
        help="When all tasks so far are evaluated.",
    )  # fmt: skip


def seed(text: str) -> Flag:
    """The flag `--seed`."""
    return click.option("--seed", type=SEED_RANGE, default=1, show_default=True, help=text)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Flags of a command that leaves a run directory, checked; a subclass adds its own."""

    method: str
    dataset: Optional[str]
    data_dir: Optional[str]
    num_clients: int
    num_rounds: int
    clients_per_round: Optional[int]
    evaluate_every: str
    seed: int
    split_seed: int
    output_dir: Optional[str]
    resume: bool
    runtime: str
    workers: Optional[str]
    call_timeout: Optional[float]
    dp_base_clip: Optional[float]
    dp_base_noise: Optional[float]
    dp_base_quantile: Optional[float]
    dp_base_delta: Optional[float]
    on_lost_worker: str
    client_dir: Optional[str]

    FLAGS: ClassVar[Sequence[Flag]] = ()
    POSITIVE: ClassVar[Sequence[str]] = ()  # numbers above 0, and 0 or more, unless None
    NOT_NEGATIVE: ClassVar[Sequence[str]] = ()
    # Of these config.json says nothing where they are not given.
    OPTIONAL: ClassVar[Sequence[str]] = _OF_DP_BASE
    ALONE: ClassVar[Sequence[str]] = ()  # methods in which no updates of several clients come together
    PLACES: ClassVar[Sequence[str]] = (
        "dataset", "data_dir", "output_dir", "resume", "runtime", "workers", "call_timeout", "on_lost_worker",
        "client_dir",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in (*self.POSITIVE, *self.NOT_NEGATIVE):
            self._check_number(name, name in self.POSITIVE)
        if (self.runtime == "remote") != (self.workers is not None):
            raise InputError("--runtime remote and --workers HOST:PORT,... go together")
        if self.workers is not None:
            health.check_addresses(self.addresses, "--workers")
        if self.call_timeout is not None and self.runtime != "remote":
            raise InputError("--call-timeout is for --runtime remote")
        if self.on_lost_worker != "retry" and self.runtime != "remote":
            raise InputError("--on-lost-worker is for --runtime remote")
        if self.runtime == "remote" and self.client_dir is not None and not os.path.isabs(self.client_dir):
            raise InputError(
                f"--client-dir must be an absolute path on the machines of --workers; got {self.client_dir}"
            )
        if self.resume and self.output_dir is None:
            raise InputError("--resume needs the directory of the run to go on with: --output-dir DIR")
        self._check_dp_base()
        most, wanted = self.num_clients, self.clients_per_round
        if most is not None and wanted is not None and wanted > most:
            raise InputError(
                f"--clients-per-round {self.clients_per_round} is more than --num-clients {self.num_clients}"
            )

    def _check_number(self, name: str, positive: bool) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and (value > 0 if positive else value >= 0)):
            wanted = "above 0" if positive else "0 or more"
            raise InputError(f"{flag_of(name)} must be a number {wanted}; got {value}")

    def _check_dp_base(self) -> None:
        given = {name: getattr(self, name) for name in _OF_DP_BASE if getattr(self, name) is not None}
        if not given:
            return
        for name in ("dp_base_clip", "dp_base_noise"):
            if name not in given:
                raise InputError(f"{flag_of(next(iter(given)))} needs {flag_of(name)} beside it")
            self._check_number(name, positive=True)
        for name in ("dp_base_quantile", "dp_base_delta"):
            if not 0 < given.get(name, 0.5) < 1:
                raise InputError(f"{flag_of(name)} must be a number between 0 and 1; got {given[name]}")
        if self.method in self.ALONE:
            raise InputError(
                f"--dp-base-clip: --method {self.method} has no updates of several clients that could be summed"
            )

    @property
    def addresses(self) -> list[str]:
        """The workers of --workers."""
        return [address.strip() for address in (self.workers or "").split(",")]

    @property
    def base_is_noised(self) -> bool:
        """Whether the updates of the base are clipped and noised."""
        return self.dp_base_noise is not None

    @classmethod
    def flags(cls, command: Any) -> Any:
        """Decorator: gives a click command, or the function that will be one, all flags."""
        return together(*cls.FLAGS)(command)

    @classmethod
    def parse(cls: type[Options], args: Sequence[str] = ()) -> Options:
        """The options that a command line gives."""
        return cls.flags(click.Command("run", callback=cls)).main(args=list(args), standalone_mode=False)

    def default(self, name: str, *cases: str) -> Any:
        """What is taken where the flag of a field is not given and `cases` hold (`ByCase`)."""
        (option,) = (one for one in self._by_case() if one.name == name)
        return option.default_in(cases)

    def filled(self: Options, *cases: str) -> Options:
        """The options with defaults in the place of what was not given; `OPTIONAL` ones stay as they are."""
        missing = {
            option.name: option.default_in(cases)
            for option in self._by_case()
            if option.name not in self.OPTIONAL and getattr(self, str(option.name)) is None
        }
        return dataclasses.replace(self, **missing)

    @classmethod
    def _by_case(cls) -> list[ByCase]:
        return [one for one in cls.flags(click.Command("run")).params if isinstance(one, ByCase)]

    @property
    def label(self) -> str:
        """The method with what sets it apart, for tables."""
        return self.method

    def config(self) -> dict[str, Any]:
        """What config.json records: everything but where things lie."""
        settings = dataclasses.asdict(self)
        return {
            **{name: value for name, value in settings.items() if self._recorded(name, value)},
            "method": self.label,
        }

    def _recorded(self, name: str, value: Any) -> bool:
        return name not in self.PLACES and not (name in self.OPTIONAL and value is None)
