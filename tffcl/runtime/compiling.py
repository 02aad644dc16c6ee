"""The compiler of every runtime: TFF's native one, which knows no secure sum, after a plain sum stands in its place."""

from __future__ import annotations

import functools
import logging
from typing import Any

import tensorflow_federated as tff

logger = logging.getLogger(__name__)

_SECURE = b"federated_secure_"  # how the names of TFF's secure intrinsics begin

_MAX_KEPT = 128  # a process has a handful of computations


def to_native(comp: Any) -> Any:
    """Compiles a `tff.framework.ConcreteComputation` for TFF's native runtime.

    Neither that nor this library has a protocol for secure aggregation. Secure sums and secure selections run as the
    plain computations that TFF's test backend has for them: the same results, quantisation and checks of the bounds
    included, and nothing is hidden from the server. A line on the log says so for each computation that has one.
    """
    if _SECURE in tff.framework.serialize_computation(comp).SerializeToString():
        logger.warning("secure aggregation is simulated: the server here sees every summand; only the sum is the same")
        comp = tff.backends.test.replace_secure_intrinsics_with_bodies(comp)
    return _compiled(comp)


@functools.lru_cache(maxsize=_MAX_KEPT)
def _compiled(comp: Any) -> Any:
    """What has the same bytes is compiled once, whichever runtimes come and go."""
    return tff.backends.native.desugar_and_transform_to_native(comp)
