"""The flags of FIL-VER and its baselines: one definition for the command line and the example.

What is None where it is not given is filled in by `complete` with what suits the data.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, ClassVar, Optional

from tffcl.commands.fil_ver_flags import (
    CLASSES,
    END_TO_END,
    FLAGS,
    OFFLINE,
    SCENARIOS,
    SHARED,
    STUDY,
    VARIATIONAL,
)
from tffcl.commands.run_options import RunOptions
from tffcl.errors import InputError

# The sizes of section 5, and a schedule for two cores in the place of its 50 rounds.
PAPER_SCHEDULE: dict[str, Any] = {
    "num_rounds": 6, "num_epochs": 2, "batch_size": 64, "embedding_size": 256, "hidden": (1000, 1000),
    "filters": (32, 64), "pretraining_epochs": 8, "client_memory": 300, "send_per_round": 50,
    "num_clients": 10, "examples_per_task": 300, "server_memory": 6000,
}  # fmt: skip
# 8 x 8 pixels, 1,442 of them in all: a small network, and many steps in few rounds.
DIGITS_SCHEDULE: dict[str, Any] = {
    "num_rounds": 4, "num_epochs": 4, "batch_size": 20, "embedding_size": 32, "hidden": (100,), "filters": (8, 16),
    "pretraining_epochs": 30, "client_memory": 150, "send_per_round": 40,
    "num_clients": 5, "examples_per_task": 150, "server_memory": 1000,
}  # fmt: skip
STUDY_EXAMPLES, STUDY_EXAMPLES_OF_DIGITS = 2000, 400  # of the one client of section 5.1


@dataclasses.dataclass(frozen=True)
class FilVerOptions(RunOptions):
    """The flags, checked; see `tffcl run fil-ver --help` for each of them.

    What is not given and depends on the data is None until it is filled in.

    >>> FilVerOptions.parse(["--method", "ebr-1x"]).num_tasks
    10
    """

    domains: str
    num_tasks: int
    examples_per_task: int
    test_examples: Optional[int]
    enrollment: str
    num_epochs: int
    batch_size: int
    learning_rate: float
    beta: float
    embedding_size: int
    hidden: tuple[int, ...]
    filters: tuple[int, ...]
    pretraining: str
    pretraining_epochs: int
    client_memory: int
    memory_share: float
    memory_per_task: Optional[bool]
    send_per_round: int
    sst_steps: int
    sst_learning_rate: float
    server_memory: int
    proximal: float
    dp_clip: Optional[float]
    dp_noise_multiplier: Optional[float]
    dp_noise_seed: Optional[int]

    FLAGS: ClassVar = FLAGS
    POSITIVE: ClassVar = ("learning_rate", "sst_learning_rate", "dp_clip", "dp_noise_multiplier")
    NOT_NEGATIVE: ClassVar = ("beta", "proximal")
    ALONE: ClassVar = (*OFFLINE, *STUDY)

    def __post_init__(self) -> None:
        study = self.method in STUDY
        for name, value in (("num_clients", 1 if study else None), ("num_tasks", 10 if study else 4)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        if study:
            self._check_study()
        elif self.memory_per_task:
            raise InputError(f"--memory-per-task is for the methods of section 5.1: {', '.join(STUDY)}")
        self._check_privacy()
        if self.dataset is not None:
            self._check_domains(self.dataset)

    def _check_study(self) -> None:
        if self.num_clients != 1:
            raise InputError(
                f"--num-clients {self.num_clients}: --method {self.method} is of section 5.1, where one client keeps "
                "what it rehearses to itself"
            )

    def _check_privacy(self) -> None:
        given = {"--dp-clip": self.dp_clip, "--dp-noise-multiplier": self.dp_noise_multiplier}
        missing = [flag for flag, value in given.items() if value is None]
        if len(missing) == 1:
            (other,) = set(given) - set(missing)
            raise InputError(f"{other} needs {missing[0]} beside it")
        if missing and self.dp_noise_seed is not None:
            raise InputError("--dp-noise-seed needs --dp-clip and --dp-noise-multiplier beside it")
        if not missing and self.sharing == "none":
            raise InputError(
                f"--dp-clip: --method {self.method} sends no embeddings that could be clipped; those that do are "
                f"{', '.join(name for name, kind in SHARED.items() if kind != 'none')}"
            )

    def _check_domains(self, dataset: str) -> None:
        if self.domains == "classes" and dataset not in CLASSES:
            raise InputError(f"--domains classes needs --dataset {' or '.join(CLASSES)}; got {dataset}")
        if dataset == "mnist+fashion" and self.domains not in (None, "classes"):
            raise InputError(f"--dataset mnist+fashion has --domains classes; got {self.domains}")

    def complete(self, dataset: str) -> FilVerOptions:
        """The options with what suits one of `DATASETS` in the place of what was not given."""
        schedule = {**(DIGITS_SCHEDULE if dataset == "digits" else PAPER_SCHEDULE)}
        schedule["domains"] = "classes" if dataset in CLASSES else "rotations"
        if self.method in STUDY:
            few = dataset == "digits"
            schedule["examples_per_task"] = STUDY_EXAMPLES_OF_DIGITS if few else STUDY_EXAMPLES
            schedule["domains"] = "permutations"
        missing = {name: value for name, value in schedule.items() if getattr(self, name) is None}
        return dataclasses.replace(self, dataset=dataset, **missing)

    @property
    def sharing(self) -> str:
        """What clients send for rehearsal at the server: a kind of `tffcl.client_works.Sharing`."""
        return SHARED.get(self.method, "none")

    @property
    def variational(self) -> bool:
        """Whether the encoder is a VEE."""
        return self.method in VARIATIONAL

    @property
    def pretrains(self) -> bool:
        """Whether there is an encoder to train beforehand."""
        return self.method not in (*END_TO_END, "naive", "random-encoder")

    @property
    def remembered(self) -> int:
        """Rows that each client remembers of its past tasks; the options must be filled in.

        In section 5.1 the memory has one size throughout: that of --memory-share of all tasks but the last.

        >>> [FilVerOptions.parse(["--method", one]).complete("digits").remembered for one in ("ebr-1x", "ebr-16x")]
        [360, 3600]
        """
        if self.method in ("vanilla", "none", "random-encoder", *OFFLINE):
            return 0
        if self.method not in STUDY:
            return self.client_memory
        return self._share_of_task * (self.num_tasks - 1)

    @property
    def task_memory(self) -> Optional[int]:
        """Rows that a client remembers of one task at most, or None; the options must be filled in."""
        return self._share_of_task if self.memory_per_task else None

    @property
    def _share_of_task(self) -> int:
        share = min(1.0, self.memory_share * (16 if self.method == "ebr-16x" else 1))
        return round(share * self.examples_per_task)

    @property
    def label(self) -> str:
        """The method with what sets it apart, for tables.

        >>> FilVerOptions.parse(["--enrollment", "scattered", "--proximal", "0.1"]).label
        'fil-ver+scattered+prox'
        """
        named = self.enrollment if self.enrollment in SCENARIOS else pathlib.Path(self.enrollment).stem
        signs = {
            f"+{named}": named != "full",
            "+federated": self.pretraining == "federated" and self.pretrains,
            "+prox": self.proximal > 0,
            "+dp": self.dp_clip is not None,
            "+basedp": self.base_is_noised,
        }
        return self.method + "".join(sign for sign, holds in signs.items() if holds)


fil_ver_flags = FilVerOptions.flags


def fil_ver_flags_without_method(command: Any) -> Any:
    """Decorator: all flags but `--method`, for what runs several of them."""
    for flag in reversed(FLAGS[1:]):
        command = flag(command)
    return command
