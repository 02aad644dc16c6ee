"""Builders: their options reach the parts."""

import inspect
import re
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import algorithms, client_works, errors, finalizers, runtime, templates
from tffcl.aggregators import ClientPrivacy
from tffcl.algorithms import (
    build_decomposed,
    build_ewc,
    build_fed_avg,
    build_fed_curv,
    build_fedseit,
    build_fedweit,
    build_local,
)
from tffcl.client_works import (
    EWC,
    AnalyticWork,
    DecomposedWork,
    Decomposition,
    FedCurv,
    LocalTraining,
    OrthogonalWork,
    PlainWork,
    RehearsalModel,
    RehearsalWork,
    Sharing,
)
from tffcl.models import (
    MLP,
    AlignedTextCNN,
    FrozenEncoder,
    Generator,
    IdentityEncoder,
    InputForm,
    MADEConfig,
    TextCNN,
    Whole,
)
from tffcl.program import project
from tffcl.templates import compose_continual_process
from tffcl.transfers import KnowledgeBase


@pytest.fixture(name="parts_only")
def _parts_only(monkeypatch):
    """Builders then return their client work, and nothing is composed."""
    monkeypatch.setattr(templates, "compose_continual_process", lambda work, aggregator, finalizer: work)


def test_options_reach_the_parts(small, parts_only):
    options = Decomposition(sparsity=0.5, share_dense=True)
    local = small.training(batch_size=7)
    for build, kind in ((build_fedweit, TextCNN), (build_fedseit, AlignedTextCNN)):
        work = build(small.config(), num_foreign=2, decomposition=options, training=local)
        assert (work.options, work.training) == (options, local)
        assert type(work.network) is kind
        assert (work.num_foreign, work.max_classes) == (2, small.CLASSES)
        assert work.shared_type.shape[0] > work.knowledge_size == work.network.kernels.size


def test_local_is_alone_whatever_it_is_told(small, parts_only):
    work = build_local(small.config(), decomposition=Decomposition(share_dense=True, sparsity=0.5))
    assert not work.options.exchange
    assert work.options.sparsity == 0.5
    assert work.shared_type.shape[0] == work.knowledge_size
    assert work.num_foreign == 0


def test_fedseit_needs_a_place_for_foreign_adaptives(small):
    with pytest.raises(errors.InputError, match="at least 1 place for foreign adaptives, found 0"):
        build_fedseit(small.config(), num_foreign=0)


def test_the_seed_decides_the_first_base(small, parts_only):
    for build in (
        lambda seed: build_fed_avg(small.network(places=0), seed=seed),
        lambda seed: build_local(small.config(), seed=seed),
    ):
        first, again, other = (build(seed).initialize_shared().numpy() for seed in (5, 5, 6))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()


@pytest.mark.slow
def test_any_aggregator_and_server_optimizer(small):
    process = build_fedweit(
        small.config(),
        num_foreign=1,
        aggregator=tff.aggregators.UnweightedMeanFactory(),
        server_optimizer=tff.learning.optimizers.build_adam(0.1),
    )
    assert process.next.type_signature.parameter[0].member == process.initialize.type_signature.result.member


def test_penalties_reach_the_client_work(small, parts_only):
    network = small.network(places=0)
    size = network.kernels.size
    for work, length, kept in (
        (build_ewc(network, weight=2.0, proximal=0.5), size, {"ewc_fisher", "ewc_centre", "ewc_constant"}),
        (build_fed_curv(network, weight=2.0), 3 * size, {"curv_fisher", "curv_pull"}),
    ):
        assert work.shared_type.shape == (length,)
        assert set(work.state_type) - set(build_fed_avg(network).state_type) == kept
    for build, kind in ((build_ewc, EWC), (build_fed_curv, FedCurv)):
        with pytest.raises(errors.InputError, match="weight"):
            build(network, weight=-1.0)
        with mock.patch.object(client_works, "PlainWork") as made:
            made.return_value.shared_type = tff.TensorType(np.float32, [size])
            made.return_value.network.kernels.size = size
            build(network, weight=2.0, fisher_examples=9, seed=4)
        assert made.call_args.args[2:4] == (4, [kind(2.0, fisher_examples=9)])


@pytest.mark.slow
def test_a_server_optimizer_and_an_aggregator_leave_a_penaltys_sums_alone(small):
    """Adam moves every entry by its rate in the first step: the kernels, and nothing else."""
    adam = tff.learning.optimizers.build_adam(0.1)
    process = build_fed_curv(
        small.network(places=0),
        weight=1.0,
        training=small.training(),
        aggregator=tff.aggregators.UnweightedMeanFactory(),
        server_optimizer=adam,
    )
    size, examples = small.network(places=0).kernels.size, small.examples(6)
    keys = [np.array([0, client], np.int32) for client in range(2)]
    incoming = KnowledgeBase(0).transfer_in([[], []], 0)
    data = OrderedDict(context=small.context(), train=examples, validation=examples)
    reads = process.next.type_signature.parameter[1]
    with runtime.in_process():
        server = process.initialize()
        state = server["finalizer"]
        clients = process.begin_task(server, process.initialize_clients(server, keys), incoming)
        new, changes, *_ = process.next(server, [project(c, reads) for c in clients], [data, data])
    moved = np.abs(new["shared"] - server["shared"])[:size]
    assert moved.max() == pytest.approx(0.1, rel=1e-3)
    summed = np.concatenate([sum(c[name] for c in changes) for name in ("curv_fisher", "curv_pull")])
    np.testing.assert_allclose(new["shared"][size:], summed, rtol=1e-5, atol=1e-7)
    assert {leaf.shape for leaf in tf.nest.flatten(tf.nest.map_structure(np.asarray, state))} == {(), (size,)}


BUILDERS = {
    **{name: getattr(room, name) for room in (algorithms, finalizers) for name in room.__all__ if "build_" in name},
    **{kind.__name__: kind for kind in (DecomposedWork, PlainWork, RehearsalWork)},
}
ARGUMENTS = [
    pytest.param(builder, name, id=f"{title}({name}=...)")
    for title, builder in BUILDERS.items()
    for name, one in inspect.signature(builder).parameters.items()
    if one.kind is not one.VAR_KEYWORD
]


def _right(small, builder):
    """The arguments without which the builder cannot be called."""
    encoder = IdentityEncoder((1, 2))
    frozen = FrozenEncoder(encoder, np.zeros(0, np.float32))
    right = {
        "network": small.network(aligned=True) if builder is build_fedseit else small.network(places=0),
        "config": MADEConfig(3, (2,)) if "made" in builder.__name__ else small.config(),
        "model": RehearsalModel(frozen, MLP(2, 2, ())),
        "encoder": frozen,
        "classes": 2,
        "work": OrthogonalWork(Whole(small.network(places=0)), LocalTraining())
        if builder is finalizers.build_orthogonal_update
        else AnalyticWork(frozen, 2, width=0),
        "energy": 0.5,
        "generator": Generator(InputForm((2,)), 2),
        "options": finalizers.Synthesis(),
        "solve": finalizers.ridge(1.0),
        "num_foreign": 1,
        "weight": 1.0,
        "shared_type": tff.TensorType(np.float32, [3]),
        "inner": finalizers.build_server_update(tff.TensorType(np.float32, [3])),
        "classifier": MLP(2, 2, ()),
        "sharing": Sharing(encoder, "embeddings"),
        "training": LocalTraining(),
        "decomposition": Decomposition(),
    }
    parameters = inspect.signature(builder).parameters.values()
    return {
        one.name: right[one.name] for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    }


@pytest.mark.slow
@pytest.mark.parametrize(("builder", "name"), ARGUMENTS)
def test_an_argument_of_a_wrong_type_is_named_in_one_line(small, builder, name):
    right = _right(small, builder)
    for wrong in (object(), object, {"of": "no kind"}):
        with pytest.raises(errors.InputError) as raised:
            builder(**{**right, name: wrong})
        assert str(raised.value).startswith(f"{name}: expected ")
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_an_argument_that_there_is_not(small, builder):
    with pytest.raises(errors.InputError, match="unexpected keyword argument 'learning_rat'"):
        builder(**_right(small, builder), learning_rat=1.0)


def test_what_is_often_given_is_answered_with_what_to_give(small):
    network, keras = small.network(places=0), tf.keras
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(2)])
    privacy = ClientPrivacy(clip=1.0, noise_multiplier=1.0, clients_per_round=2)
    for arguments, parts in (
        ({"network": model}, ("network: expected Network, found Sequential", "KerasNetwork(model)")),
        ({"server_optimizer": keras.optimizers.Adam()}, ("server_optimizer", "found Adam", "build_adam")),
        ({"aggregator": privacy}, ("aggregator", "found ClientPrivacy", ".factory()")),
        ({"aggregator": tff.aggregators.MeanFactory}, ("aggregator", "the class MeanFactory", "MeanFactory()")),
        ({"seed": 1.5}, ("seed: expected a whole number, found float",)),
        ({"training": None, "seed": None}, ("seed: expected a whole number, found None",)),
        ({"seed": "1"}, ("seed: expected a whole number, found str",)),
    ):
        for build in (build_decomposed, build_fed_avg):
            with pytest.raises(errors.InputError) as raised:
                build(**{"network": network, **arguments})
            assert all(part in str(raised.value) for part in parts)


def test_numbers_of_numpy_are_numbers(small, parts_only):
    network = small.network(places=0)
    given = {"seed": np.int64(3), "proximal": np.float32(0.5), "penalty": [EWC(np.float64(1))]}
    assert build_fed_avg(network, **given).shared_type.shape == (network.kernels.size,)
    assert build_fed_avg(network, proximal=1, seed=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory",
    [
        tff.aggregators.MeanFactory(),
        tff.aggregators.SumFactory(),
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 3, 1.0),
        tff.learning.robust_aggregator(),
        tff.aggregators.SecureSumFactory(1.0),
    ],
    ids=lambda factory: type(factory).__name__,
)
def test_an_aggregator_of_vectors_without_gated_is_told_of_it(small, factory):
    work = PlainWork(small.network(places=0), LocalTraining())
    update = finalizers.build_server_update(work.shared_type)
    with pytest.raises(
        errors.ContractError, match=rf"aggregator: {type(factory).__name__} .*aggregators\.gated"
    ) as raised:
        compose_continual_process(work, factory, update)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_annotations_name_what_a_room_exports(builder):
    """A room imports its modules when it is asked for a name; `room.module.Name` is there by luck alone."""
    rooms = "aggregators|client_works|finalizers|models|templates|transfers"
    for parameter in inspect.signature(builder).parameters.values():
        assert not re.search(rf"\b(?:{rooms})\.[a-z_]+\.", str(parameter.annotation)), parameter
