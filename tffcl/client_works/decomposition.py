"""The choices of the decomposed client work."""

from __future__ import annotations

import dataclasses

from tffcl import errors


@dataclasses.dataclass(frozen=True)
class Decomposition:
    """What the decomposed client work may be told (names and values of FedSeIT table 4 where it has them).

    Attributes:
      sparsity: lambda_1, weight of the L1 norm of sigmoid(m) and A, and the size below which A is pruned when it
        is sent and evaluated.
      retention: lambda_2, weight of the retroactive penalty.
      retention_form: 'closed_form' or 'gradient' (`tffcl.client_works.retention`).
      adaptive_factor: a task's A starts at B / adaptive_factor.
      mask_start: sigmoid(m) at the start of a task.
      gate_cutoff: entries of B whose sigmoid(m) is at most this are not sent (ConFedMADE table 4).
      base_upload: 'gated' sends B where the gate is open, unscaled; 'scaled' sends B * sigmoid(m), as printed.
      proximal: FedProx's mu on B; 0 for FedAvg.
      share_dense: DLS, share the network's shareable local parts too.
      connectivity_aware: where the network's kernels stand under a connectivity mask M, L1 acts on A * M and what M
        leaves out is neither sent nor kept (ConFedMADE eq. 6); False is FedWeIT on a masked network, as it is.
      exchange: False keeps the client to itself: nothing of the server enters (the baseline `local`).
    """

    sparsity: float = 1e-3
    retention: float = 1.0
    retention_form: str = "closed_form"
    adaptive_factor: float = 5.0
    mask_start: float = 0.5
    gate_cutoff: float = 0.25
    base_upload: str = "gated"
    proximal: float = 0.0
    share_dense: bool = False
    connectivity_aware: bool = True
    exchange: bool = True

    def __post_init__(self) -> None:
        for name in ("sparsity", "retention", "proximal"):
            if not getattr(self, name) >= 0:
                raise errors.InputError(
                    f"{name}: expected a number of at least 0, found {getattr(self, name)}"
                )
        if not 0.0 < self.mask_start < 1.0:
            raise errors.InputError(f"mask_start: expected a number between 0 and 1, found {self.mask_start}")
        if not 0.0 <= self.gate_cutoff < 1.0:
            raise errors.InputError(f"gate_cutoff: expected a number in [0, 1), found {self.gate_cutoff}")
        if self.retention_form not in ("closed_form", "gradient"):
            raise errors.InputError(
                f"retention_form: expected 'closed_form' or 'gradient', found {self.retention_form!r}"
            )
        if self.base_upload not in ("gated", "scaled"):
            raise errors.InputError(f"base_upload: expected 'gated' or 'scaled', found {self.base_upload!r}")
        if self.adaptive_factor == 0:
            raise errors.InputError("adaptive_factor: expected a number other than 0")
