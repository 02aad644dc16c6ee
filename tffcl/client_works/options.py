"""Hyperparameters of local training and of decomposition; nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any

from tffcl.options import OptionError, Options, option


@dataclasses.dataclass(frozen=True)
class LocalTraining(Options):
    """How a client trains in one round (FedSeIT table 4); `optimizer` is None for Adam, or a TFF optimizer.

    Both learning rates fall together. Masks and attention are few and each stands before a whole unit or kernel: at the
    kernels' rate they hardly leave their first value in a task, and no gate ever closes.

    Weight decay is decoupled from the gradient (Loshchilov & Hutter, 2019), with every optimizer. It acts on what has
    two axes or more: the kernels that the server shares, the base B of a decomposed work among them, and a client's
    own head and projections. Biases, masks and attention do not decay, nor do adaptives, which have lambda_1.

    Shown in examples/fil_ver_emnist.py.

    Raises:
      InputError: a number out of its range.
    """

    num_epochs: int = option(50, "Most epochs of a client in a round.", least=1)
    batch_size: int = option(64, "Examples in a step.", least=1)
    learning_rate: float = option(1e-4, "Of Adam, at a task's start.", above=0)
    patience: int = option(
        3, "Epochs without a better validation loss before the learning rate falls; 0 for never.", least=0
    )
    decay: float = option(3.0, "What the learning rate is divided by.", above=1, advanced=True, sparse=True)
    max_decays: int = option(
        3, "Divisions in a task after which a round ends early.", least=0, advanced=True, sparse=True
    )
    gate_learning_rate: float = option(
        1e-2, "Of masks and attention, at a task's start.", above=0, advanced=True, sparse=True
    )
    weight_decay: float = option(
        0.0, "Share of its kernels that each step takes away, times the learning rate (AdamW's); biases are left.",
        least=0, sparse=True,
    )  # fmt: skip
    optimizer: Any = None

    @property
    def gate_scale(self) -> float:
        """What the learning rate is multiplied with for masks and attention."""
        return self.gate_learning_rate / self.learning_rate


RETENTION_FORMS = ("drift", "closed_form", "gradient", "stored")
_SHARED_MARKS = {"no": "", "position": "+dls", "round": "+aligned-round", "start": "+aligned"}


@dataclasses.dataclass(frozen=True)
class Decomposition(Options):
    """Hyperparameters of `DecomposedWork` (names and values of FedSeIT table 4 where it has them).

    Shown in examples/fedseit_trec.py.

    Attributes:
      sparsity: lambda_1, weight of the L1 norm of sigmoid(m) and A, and the size below which A is pruned when it
        is sent and evaluated.
      retention: lambda_2, weight of the retroactive penalty (`tffcl.client_works.decomposed`).
      retention_form: how past adaptives follow the base, see `tffcl.client_works.decomposed`.
      gate_cutoff: of ConFedMADE table 4.
      connectivity_aware: where the network's kernels stand under a connectivity mask M, L1 acts on A * M and entries
        outside M are neither sent nor kept (ConFedMADE eq. 6); False is FedWeIT on a masked network, as it is.
      exchange: False keeps the client to itself: nothing of the server enters (the baseline `local`).

    Raises:
      InputError: a number out of its range, or no such form.
    """

    sparsity: float = option(1e-3, "lambda_1: mask and adaptive.", least=0)
    retention: float = option(1.0, "lambda_2: against forgetting.", least=0)
    retention_form: str = option(
        "drift", "How past adaptives follow the base: drift makes up for what moved the kernel by more than lambda_1 / "
        "(2 lambda_2), closed_form shrinks all of A by that, gradient trains the papers' term, stored keeps the kernel "
        "of every task.", choices=RETENTION_FORMS, sparse=True,
    )  # fmt: skip
    adaptive_factor: float = option(5.0, "A task's A starts at B over this.", advanced=True, sparse=True)
    mask_start: float = option(0.5, "sigmoid(m) at a task's start.", above=0, below=1, advanced=True, sparse=True)
    gate_cutoff: float = option(
        0.25, "Entries of B whose sigmoid(m) is at most this are not sent.", least=0, below=1, sparse=True
    )
    base_upload: str = option(
        "gated", "What is sent of B: B where the mask is open, or B * sigmoid(m).", choices=("gated", "scaled"),
        advanced=True, sparse=True,
    )  # fmt: skip
    share_dense: str = option(
        "no", "What is shared besides the base: projections and head, by label when a task begins (start) or in every "
        "round (round); position is DLS as published: every round, head columns by their place in the task.",
        choices=("no", "position", "round", "start"), bare="position",
        mark=lambda chosen: _SHARED_MARKS[chosen.share_dense],
    )  # fmt: skip
    connectivity_aware: bool = True
    exchange: bool = True

    @property
    def by_label(self) -> bool:
        """Whether head columns belong to labels of the data set, not to places in a task."""
        return self.share_dense in ("round", "start")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive_factor == 0:
            raise OptionError("adaptive_factor", "expected a number other than 0")
