"""The flags of ConFedMADE and its baselines: one definition for the command line and the example.

What is None where it is not given is filled in by `complete` with what suits the data and the method.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tffcl.commands.confedmade_flags import (
    AGNOSTIC,
    DECOMPOSED,
    FED_CURV,
    FLAGS,
    SINGLE,
    Assigned,
    Order,
)
from tffcl.commands.run_options import RunOptions
from tffcl.errors import InputError


@dataclasses.dataclass(frozen=True)
class ConFedMADEOptions(RunOptions):
    """The flags, checked; see `tffcl run confedmade --help` for each of them.

    What is not given and depends on the data or the method is None until it is filled in.

    >>> ConFedMADEOptions.parse(["--hidden", "400,200", "--order-agnostic"]).hidden
    (400, 200)
    """

    binarise: str
    hidden: tuple[int, ...]
    direct: bool
    order: Order
    order_agnostic: bool
    connectivity_agnostic: bool
    num_masks: int
    distinct_masks: bool
    num_tasks: int
    labels_per_task: int
    same_order: bool
    overlap: float
    assign: Assigned
    num_epochs: int
    batch_size: int
    learning_rate: float
    patience: int
    sparsity: float
    retention: float
    gate_cutoff: float
    selection: str
    top_k: int
    penalty: float
    proximal: float

    FLAGS: ClassVar = FLAGS
    POSITIVE: ClassVar = ("learning_rate",)
    NOT_NEGATIVE: ClassVar = ("sparsity", "retention", "penalty", "proximal")
    ALONE: ClassVar = (*SINGLE, "offline")

    def __post_init__(self) -> None:
        if self.assign:
            object.__setattr__(self, "num_clients", len(self.assign))
            object.__setattr__(self, "num_tasks", len(self.assign[0]))
        super().__post_init__()
        agnostic = self.order_agnostic or self.connectivity_agnostic
        if self.order_agnostic and not isinstance(self.order, str):
            raise InputError("--order with a permutation and --order-agnostic contradict each other")
        if (self.num_masks or 1) > 1 and not agnostic:
            raise InputError(
                f"--num-masks {self.num_masks} would all be one mask: more than 1 needs --order-agnostic or "
                "--connectivity-agnostic"
            )
        if self.hidden == () and (self.connectivity_agnostic or not self.direct):
            raise InputError("--hidden none needs --direct, and has no connectivity to be agnostic of")
        if self.distinct_masks and self.method in ("confedmade", "fedweit-made-sync"):
            raise InputError(f"--distinct-masks: --method {self.method} has the server's masks for all")

    def complete(self, dataset: str) -> ConFedMADEOptions:
        """The options with what suits one of `DATASETS` and the method in the place of what was not given."""
        cases = [f"for {dataset}"]
        cases += [AGNOSTIC] if self.order_agnostic or self.connectivity_agnostic else []
        cases += [FED_CURV] if self.method == "fedcurv" else []
        return dataclasses.replace(self, dataset=dataset).filled(*cases)

    @property
    def clients(self) -> int:
        """How many clients there are to the method's stream of tasks."""
        return 1 if self.method in SINGLE else self.num_clients

    @property
    def label(self) -> str:
        """The method with what sets it apart, for tables.

        >>> ConFedMADEOptions.parse(["--no-direct", "--order-agnostic"]).label
        'confedmade-nodc+oa'
        """
        signs = {
            "-nodc": not self.direct,
            "+oa": self.order_agnostic,
            "+ca": self.connectivity_agnostic,
            "+distinct": self.distinct_masks and self.method != "fedweit-made",
            f"+sampled{self.top_k}": self.selection == "sampled" and self.method in DECOMPOSED,
            "+basedp": self.base_is_noised,
        }
        return self.method + "".join(sign for sign, holds in signs.items() if holds)


confedmade_flags = ConFedMADEOptions.flags
