"""What is placed where in TFF's types and computations."""

from __future__ import annotations

import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import transformation_utils


def leaves(kind, path=""):
    """Place of the argument and names in it -> type, of all that is at the clients."""
    found = {}
    if isinstance(kind, tff.FederatedType) and kind.placement is tff.CLIENTS:
        found.update(tensors(kind.member, path))
    elif isinstance(kind, tff.StructType):
        for place, (name, part) in enumerate(tff.structure.iter_elements(kind)):
            found.update(leaves(part, f"{path}/{name if path else place}"))
    return found


def tensors(kind, path):
    if isinstance(kind, tff.StructType):
        found = {}
        for place, (name, part) in enumerate(tff.structure.iter_elements(kind)):
            found.update(tensors(part, f"{path}/{name or place}"))
        return found
    return {path.lstrip("/"): str(kind)}


def ways_out(computation):
    """Types of the values of clients that intrinsics take to the server, once everything is written out."""
    native = tff.backends.native.desugar_and_transform_to_native(computation)
    found = []

    def note(block):
        if isinstance(block, tff.framework.Call) and isinstance(block.function, tff.framework.Intrinsic):
            kind = block.function.type_signature
            if isinstance(kind.result, tff.FederatedType) and kind.result.placement is tff.SERVER:
                found.extend(leaves(kind.parameter).items())
        return block, False

    transformation_utils.transform_postorder(native.to_building_block(), note)
    return sorted(found)
