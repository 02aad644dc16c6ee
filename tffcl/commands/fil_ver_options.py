"""The flags of FIL-VER and its baselines: one definition for the command line and the example.

What is None where it is not given is filled in by `complete` with what suits the data.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, ClassVar, Optional

from tffcl.commands.fil_ver_flags import (
    CLASSES,
    DIGITS,
    END_TO_END,
    FLAGS,
    OF_CLASSES,
    OF_STUDY,
    OF_STUDY_DIGITS,
    OFFLINE,
    SCENARIOS,
    SHARED,
    STUDY,
    VARIATIONAL,
)
from tffcl.commands.run_options import RunOptions
from tffcl.errors import InputError


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
        # Neither waits for the data; what clients there are by default is their matter elsewhere.
        for name in ("num_clients", "num_tasks") if study else ("num_tasks",):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.default(name, *([OF_STUDY] if study else [])))
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
        few, study = dataset == "digits", self.method in STUDY
        holds = {
            DIGITS: few,
            OF_CLASSES: dataset in CLASSES,
            OF_STUDY: study,
            OF_STUDY_DIGITS: study and few,
        }
        cases = [case for case, held in holds.items() if held]
        return dataclasses.replace(self, dataset=dataset).filled(*cases)

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
