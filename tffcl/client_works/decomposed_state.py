"""What a client of the decomposed work keeps between calls."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import tensorflow_federated as tff

from tffcl.models.network import Network

# What each task has of its own; a row of it is kept of every past task.
CURRENT = ("mask_logits", "adaptive", "attention", "local")


def decomposed_state_type(network: Network, adds_foreign: bool) -> OrderedDict:
    """Everything that a client keeps, by name; rows of `past_...` are tasks."""

    def floats(*shape: int | None) -> tff.TensorType:
        return tff.TensorType(np.float32, shape)

    size, masks, local = network.kernels.size, network.kernels.mask_size, network.local.size
    state = OrderedDict(
        key=tff.TensorType(np.int32, [2]),
        task=tff.TensorType(np.int32),
        base=floats(size),
        schedule=floats(4),
        plan=tff.TensorType(np.int32, [network.plan_size]),
        trained=tff.TensorType(np.int32),  # rounds of this task that counted
        mask_logits=floats(masks),
        adaptive=floats(size),
        attention=floats(*network.attention_shape),
        local=floats(local),
    )
    if adds_foreign:
        state["foreign"] = floats(None, size)
    state.update(
        past_mask_logits=floats(None, masks),
        past_adaptive=floats(None, size),
        past_reference=floats(None, size),
    )
    if adds_foreign:
        state["past_foreign"] = floats(None, size)
    state.update(past_attention=floats(None, *network.attention_shape), past_local=floats(None, local))
    return state
