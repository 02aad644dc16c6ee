"""What crosses the border of clients that keep their states and data: every placed type, and every way out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow_federated as tff
from placements import leaves, tensors, ways_out

from tffcl.algorithms import build_fedseit
from tffcl.program.client_files import over_handles
from tffcl.templates.tff_types import entries

HANDLE = {"directory": "str", "client": "int32", "version": "int32"}


@pytest.fixture(scope="module", params=["tiny", "fedseit"])
def both(request, tiny, tff_context):
    """A process, and the same over handles."""
    if request.param == "tiny":
        process = tiny.build_process()
    else:
        import small

        process = build_fedseit(small.config(), num_foreign=2, training=small.training())
    return process, over_handles(process)


def under(place, names):
    return {f"{place}/{name}": kind for name, kind in names.items()}


def test_what_computations_take_from_and_give_to_clients(both):
    plain, process = both
    metrics = leaves(plain.next.type_signature.result[2])
    assert all(kind in ("int32", "float32") for name, kind in metrics.items() if name != "refused")  # scalars
    knowledge = {"knowledge": f"float32[{plain.knowledge_size}]", "refused": "str"}
    state = entries(plain.client_state_type)
    shown = {"attention": str(state["attention"])} if "attention" in state else {}
    incoming = {"2/keys": "int32[2]", "2/count": "int32"}  # which rows of the knowledge base are its own
    raw = tensors(plain.prepare.type_signature.parameter[3].member, "3")
    expected = {
        "initialize_clients": ({"1/key": "int32[2]", **under("1/handle", HANDLE)}, HANDLE),
        "begin_task": ({**under("1", HANDLE), **incoming}, {"version": "int32"}),
        "prepare": (
            {**under("1", HANDLE), **incoming, **raw, "3/task": "int32", "3/split": "int32"},
            {"count": "int32"},
        ),
        "next": ({**under("1", HANDLE), "2/task": "int32"}, {"1/version": "int32", **under("2", metrics)}),
        "end_task": (
            {**under("1", HANDLE), "2/task": "int32"},
            {"0/version": "int32", **under("1", {**knowledge, **shown})},
        ),
        "evaluate": (
            {**under("1", HANDLE), "1/task": "int32", "2/task": "int32"},
            leaves(plain.evaluate.type_signature.result),
        ),
        "check": (under("0", HANDLE), {"": "int32"}),
    }
    for name, (taken, given) in expected.items():
        kind = getattr(process, name).type_signature
        assert leaves(tff.to_type((kind.parameter,)) if name == "check" else kind.parameter) == taken, name
        assert leaves(kind.result) == given, name


def test_what_is_aggregated_is_what_the_method_declares(both):
    plain, process = both
    for name in ("next", "end_task"):
        assert ways_out(getattr(process, name)) == ways_out(getattr(plain, name)), name
    assert ways_out(process.next)


def test_handles_are_of_the_size_of_a_path(both):
    kinds = entries(both[1].client_state_type)
    assert set(kinds) == set(HANDLE)
    assert all(kind.shape == () for kind in kinds.values())
    assert kinds["directory"].dtype == np.str_
