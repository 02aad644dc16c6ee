"""Differential privacy of the base on the command line: the aggregator, its account, and what is said of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional

from tffcl.commands.entry import say
from tffcl.commands.run_options import RunOptions
from tffcl.errors import InputError

if TYPE_CHECKING:
    from tffcl.aggregators import ClientPrivacy

FISHER = "Fisher information, from which the updates follow without noise"


def privacy_of(options: RunOptions) -> Optional[ClientPrivacy]:
    """Clipping and noise on the updates of the base, if the flags ask for them; options filled in."""
    if options.dp_base_clip is None or options.dp_base_noise is None:
        return None
    from tffcl.aggregators import ClientPrivacy

    return ClientPrivacy(
        clip=options.dp_base_clip,
        noise_multiplier=options.dp_base_noise,
        clients_per_round=options.clients_per_round or options.num_clients,
        quantile=options.dp_base_quantile,
        delta=options.dp_base_delta or options.default("dp_base_delta"),
        uncovered=(FISHER,) if options.method == "fedcurv" else (),
    )


def aggregator_of(options: RunOptions) -> dict[str, Any]:
    """The builders' argument `aggregator`, or none of it."""
    privacy = privacy_of(options)
    return {} if privacy is None else {"aggregator": privacy.factory()}


def check_environment(options: RunOptions) -> None:
    """Says where noise is drawn that no seed repeats.

    Raises:
      InputError: TensorFlow is told to refuse it.
    """
    if not options.base_is_noised:
        return
    if options.runtime == "remote":
        say(
            "privacy: the workers have to be started with TF_DETERMINISTIC_OPS=0, for their noise has no seed"
        )
    elif os.environ.get("TF_DETERMINISTIC_OPS", "0") not in ("0", "false"):
        raise InputError(
            "--dp-base-noise: noise that could be repeated protects nobody, and TF_DETERMINISTIC_OPS in the "
            "environment forbids any other; unset it"
        )
