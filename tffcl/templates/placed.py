"""Types at a placement, and the entries of struct types: what TFF's own names for them leave long-winded."""

from __future__ import annotations

from typing import Any

import tensorflow_federated as tff


def at_server(member: Any) -> tff.FederatedType:
    """`member@SERVER`, for anything that `tff.to_type` takes."""
    return tff.FederatedType(tff.to_type(member), tff.SERVER, all_equal=True)


def at_clients(member: Any) -> tff.FederatedType:
    """`{member}@CLIENTS`, for anything that `tff.to_type` takes."""
    return tff.FederatedType(tff.to_type(member), tff.CLIENTS)


def entries(kind: tff.Type) -> dict[str, tff.Type]:
    """Name -> type of the entries of a struct type, which may be placed, in order."""
    member = kind.member if isinstance(kind, tff.FederatedType) else kind
    return dict(tff.structure.iter_elements(member))
