"""The contract of a finalizer: what the server does with the aggregate of a round."""

from __future__ import annotations

import tensorflow_federated as tff

from tffcl import errors


class FinalizerProcess(tff.templates.MeasuredProcess):
    """A measured process `(<F@SERVER, W@SERVER, A@SERVER> -> <F@SERVER, W@SERVER, M@SERVER>)`.

    F is the finalizer's own state, W the shared value that the server broadcasts, A the aggregate of the clients'
    updates. A server optimizer and server-side training are both of this kind. M is recorded for each round; an entry
    of it named `rejected` counts what was not taken because it was not finite, and a count above 0 is told to the user.
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
            raise errors.ContractError(f"finalizer: next should return {shared} as it took it, found {result}")
        measured = next_fn.type_signature.result.measurements
        if not (isinstance(measured, tff.FederatedType) and measured.placement is tff.SERVER):
            raise errors.ContractError(f"finalizer: measurements should be at the server, found {measured}")
