"""The contract of a finalizer: what the server does with the aggregate of a round."""

from __future__ import annotations

import tensorflow_federated as tff

from tffcl import errors


class FinalizerProcess(tff.templates.MeasuredProcess):
    """A measured process `(<F@SERVER, W@SERVER, A@SERVER> -> <F@SERVER, W@SERVER, M@SERVER>)`.

    F is the finalizer's own state, W the shared value that the server broadcasts, A the aggregate of the clients'
    updates. A server optimizer and server-side training are both of this kind.
    """

    def __init__(self, initialize_fn: tff.Computation, next_fn: tff.Computation):
        super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
        parameter = next_fn.type_signature.parameter
        if len(parameter) != 3:
            raise errors.ContractError(
                f"finalizer: next should take (state, shared, aggregate), found {len(parameter)} arguments"
            )
        shared, result = parameter[1], next_fn.type_signature.result.result
        if not shared.is_assignable_from(result):
            raise errors.ContractError(
                f"finalizer: next should return {shared} as it took it, found {result}"
            )
