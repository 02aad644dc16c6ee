"""One growing head: masks, evaluation, every method on every kind of data, resume, runtimes, and no new trace."""

from __future__ import annotations

import dataclasses

import command_line
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from run_directories import results as results_in
from scipy import special, stats

import tffcl
from tffcl import Experiment, client_works, metrics, runtime, streams
from tffcl.algorithms import registry
from tffcl.errors import ContractError, InputError, StreamError
from tffcl.models import Whole
from tffcl.program import ArrayData, cohorts, run_program
from tffcl.program.client_data import EvaluatedOnValidation
from tffcl.program.events import accuracy_by_round
from tffcl.program.run_directory import RunDirectory
from tffcl.templates import with_task_inference

KINDS = {
    "image": {"data": "digits", "num_tasks": 3, "labels_per_task": 2, "hidden": (8,), "filters": (2,)},
    "vector": {"data": "iris", "num_tasks": 3, "labels_per_task": 1, "hidden": (8,)},
    "text": {"data": "sample", "num_tasks": 2, "labels_per_task": 2, "num_filters": 4, "kernel_sizes": (2,)},
}
TRAINED = ("fedavg", "fedprox", "ewc", "fedcurv", "replay", "offline", "lwf", "target", "er", "glfc", "fot")
CLOSED = ("afcl", "prototypes")
# The head grows in the same way in every network: each method on one kind of data, and each other kind with a few.
PAIRS = [
    *((method, "vector") for method in (*TRAINED, *CLOSED)),
    *((method, "text") for method in ("target", "afcl", "fot")),
    *((method, "image") for method in ("fedavg", "offline", "target", "prototypes", "fot")),
]
FAST = {("lwf", "vector"), ("afcl", "text")}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs without a directory of their own make one where they are."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(name="vectors", scope="module")
def _vectors(tmp_path_factory):
    return str(command_line.small_vectors(tmp_path_factory.mktemp("vectors")))


def experiment(method, kind="vector", vectors=None, **options):
    chosen = dict(
        KINDS[kind], scenario="class-incremental", num_clients=2, partition="dirichlet", alpha=1.0, quiet=True
    )
    if method in CLOSED:
        chosen = {
            name: value
            for name, value in chosen.items()
            if name not in ("hidden", "filters", "num_filters", "kernel_sizes")
        }
        chosen["width"] = 30
    else:
        chosen.update(num_rounds=2, num_epochs=4, batch_size=20, learning_rate=0.02, patience=0)
    if method == "target" and options.get("distillation") != 0:
        chosen.update(synthetic_examples=20, generator_steps=10, generator_width=4)
    if kind == "text":
        chosen["embeddings"] = vectors
    return Experiment(method, **{**chosen, "evaluate_every": "task", **options})


# -- data ---------------------------------------------------------------------------------------------------------


def arrays(num_clients=2, num_tasks=3, **options):
    labels = np.arange(60) % 6
    stream = streams.class_incremental(
        labels, np.arange(12) % 6, num_clients=num_clients, num_tasks=num_tasks, labels_per_task=2, **options
    )
    x = np.eye(6, dtype=np.float32)
    return stream, ArrayData(
        stream, x[labels], labels, x[np.arange(12) % 6], np.arange(12) % 6, 6, one_head=True, growing=True
    )


def test_all_classes_so_far_compete_and_those_before_are_known():
    stream, data = arrays()
    so_far: set[int] = set()
    for number in range(3):
        before, so_far = set(so_far), so_far | set(stream.task(0, number).labels)
        for client in range(2):
            task = data.task(client, number)
            for context in (task.context, task.test_context):
                assert set(np.flatnonzero(context["classes"])) == so_far
                assert set(np.flatnonzero(context["known"])) == before
            assert set(task.test["label"]) == set(stream.task(0, number).labels)


def test_own_classes_are_those_of_the_examples_in_training_and_all_seen_at_test():
    stream, data = arrays(validation_share=0)
    remembering = streams.with_memory(stream, data.train_labels, 2)
    parts = (data.train_x, data.train_labels, data.test_x, data.test_labels, 6)
    own = ArrayData(remembering, *parts, one_head=True, growing=True, own_classes=True)
    alone = ArrayData(stream, *parts, one_head=True, growing=True, own_classes=True)
    for number in range(3):
        assert set(np.flatnonzero(own.task(0, number).context["classes"])) == set(own.task(0, number).train["label"])
        assert tuple(np.flatnonzero(alone.task(0, number).context["classes"])) == stream.task(0, number).labels
        assert (
            tuple(np.flatnonzero(alone.task(0, number).test_context["classes"])) == streams.seen_classes(stream)[number]
        )


def test_what_is_held_out_is_scored_with_the_same_head():
    _, data = arrays(validation_share=0.2)
    held_out = EvaluatedOnValidation(data, data)
    assert held_out.growing
    assert held_out.task(0, 1).test_context["classes"].sum() == 4


@pytest.mark.parametrize("own_classes", [False, True])
def test_all_classes_seen_compete_for_what_is_held_out_whichever_compete_in_training(own_classes):
    stream, data = arrays(validation_share=0.2)
    data = dataclasses.replace(data, own_classes=own_classes)
    held_out = EvaluatedOnValidation(data, data)
    for number, seen in enumerate(streams.seen_classes(stream)):
        task = held_out.task(0, number)
        assert tuple(np.flatnonzero(task.test_context["classes"])) == seen
        assert len(np.flatnonzero(task.context["classes"])) == (2 if own_classes else len(seen))


# -- evaluation ---------------------------------------------------------------------------------------------------


def by_hand(network, kernels, data, stream, after):
    """Accuracy of one model on the test set of each task so far, among the classes seen so far."""
    seen, found = streams.seen_classes(stream)[after], []
    for task in range(after + 1):
        client = next(c for c in range(stream.num_clients) if len(stream.task(c, task).test))
        test = data.task(client, task).test
        logits = network.logits(kernels, np.zeros(0, "f"), None, {}, test, None).numpy()
        logits[:, [label for label in range(logits.shape[1]) if label not in seen]] = -np.inf
        found.append(float((logits.argmax(axis=1) == test["label"]).mean()))
    return found


@pytest.mark.usefixtures("built_once")
def test_the_current_global_model_is_scored_on_all_tasks_so_far_among_all_classes_seen(tmp_path):
    """The scores of every client after each task, from the checkpoint's weights and the test sets by hand."""
    chosen = experiment("fedavg", "image", output_dir=str(tmp_path / "run"), alpha=0.3)
    plan, kernels = chosen.plan(), []
    evaluate = run_program.__globals__["cohorts"].evaluate_tasks

    def recording(process, state, prepared, growing):
        assert growing
        kernels.append(np.array(state.server["shared"]))
        return evaluate(process, state, prepared, growing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_program.__globals__["cohorts"], "evaluate_tasks", recording)
        results = plan.run()
    network = plan.network()
    assert isinstance(network, Whole)
    for after in range(3):
        wanted = by_hand(network, kernels[after], plan.data, plan.stream, after)
        for client in range(2):
            np.testing.assert_allclose(results.scores[client, after, : after + 1], wanted, atol=1e-6)
    assert not np.array_equal(kernels[0], kernels[2])
    assert results.forgetting > 0.3  # of finetuning with one head


@pytest.mark.usefixtures("built_once")
def test_the_figures_are_those_of_the_scores_by_hand():
    results = experiment("fedavg", alpha=0.3).plan()
    found = results.run()
    figures, a = found.more["incremental"], found.scores[0]
    n = np.array([len(max((own[t].test for own in results.stream.tasks), key=len)) for t in range(3)])
    owned = np.array([[len(task.train) for task in own] for own in results.stream.tasks])
    seen = [sum(n[i] * a[t, i] for i in range(t + 1)) / sum(n[: t + 1]) for t in range(3)]
    assert figures["seen_accuracy"] == pytest.approx(seen)
    assert figures["average_incremental_accuracy"] == pytest.approx(np.mean(seen))
    assert figures["last_accuracy"] == pytest.approx(seen[-1])
    assert figures["plasticity"] == pytest.approx(np.mean([a[i, i] for i in range(3)]))
    lost = [max(a[t, i] for t in range(i, 2)) - a[2, i] for i in range(2)]
    assert figures["forgetting"] == pytest.approx(np.mean(lost))
    each = [owned[c] @ a[2] / owned[c].sum() for c in range(2) if owned[c].sum()]
    assert figures["worst_client_accuracy"] == pytest.approx(min(each))

    by_round = figures["by_round"]
    assert by_round["rounds"] == [2, 4, 6]
    assert by_round["accuracy"] == pytest.approx([seen[t] * sum(n[: t + 1]) / sum(n) for t in range(3)])
    assert by_round["bytes_up"][-1] == sum(map(sum, found.bytes_up))
    assert figures["memory"]["client_examples"] == 0


@pytest.mark.parametrize("pool", ["memory", "none", "all"])
def test_memory_is_counted_in_bytes_and_as_raw_examples(pool):
    """er remembers 3 of each class that a client had; 4 columns of 4 bytes with a label of 4 take 20."""
    method = {"memory": "er", "none": "fedavg", "all": "offline"}[pool]
    plan = experiment(method, alpha=0.3, **({"memory_per_class": 3} if method == "er" else {})).plan()
    labels = np.asarray(plan.dataset.train_labels)
    owned = [np.concatenate([labels[task.train] for task in own]) for own in plan.stream.tasks]
    held = {
        "memory": [sum(min(3, int((own == label).sum())) for label in range(3)) for own in owned],
        "none": [0, 0],
        "all": [sum(map(len, owned))],
    }[pool]

    class Store(list):
        num_bytes = list.__getitem__

    state = type("State", (), {"store": Store([100, 300][: len(held)])})()
    figures = plan._memory(state, np.array([[len(task.train) for task in own] for own in plan.stream.tasks]))
    assert figures["example_bytes"] == 20
    assert figures["client_examples"] == np.mean(held)
    assert figures["client_bytes"] == np.mean([*state.store]) + 20 * np.mean(held)
    assert figures["as_examples"] == figures["client_bytes"] / 20


def test_accuracy_by_round_counts_classes_that_nobody_has_seen_as_wrong():
    """Rounds and ends of tasks, a client without a test set, and rounds without an evaluation, or with nothing sent."""
    events = [
        {"event": "round", "task": 0, "round": 0, "bytes_up": {"0": 5, "1": 1}, "bytes_down": {"0": 2}},
        {"event": "round", "task": 0, "round": 1, "accuracy": {"0": [0.5], "1": [None]}, "bytes_up": {"0": 5}},
        {"event": "task_end", "task": 0, "accuracy": [[0.8], [None]]},
        {"event": "round", "task": 1, "round": 0, "accuracy": {"1": [0.2, 0.9]}, "bytes_up": {"1": 4}},
        {"event": "round", "task": 1, "round": 1, "accuracy": {"1": [0.2, 1.0]}, "bytes_up": {"0": 0}},
    ]
    assert accuracy_by_round(events, [30, 10], num_rounds=2) == {
        "rounds": [2, 3, 3], "accuracy": [24 / 40, 15 / 40, 16 / 40], "bytes_up": [11, 15, 15], "bytes_down": [2, 2, 2],
    }  # fmt: skip
    assert accuracy_by_round(events[:3], [30, 10], num_rounds=2, pooled=True)["accuracy"] == [0.8]


def test_a_joint_model_has_its_last_figures_alone():
    figures = metrics.incremental_figures([[0.5, 1.0]], [30, 10], [[1, 1], [0, 2]])
    assert (figures["seen_accuracy"], figures["last_accuracy"]) == ([0.625], 0.625)
    assert figures["worst_client_accuracy"] == 0.75
    assert np.isnan([figures[name] for name in ("forgetting", "plasticity", "average_incremental_accuracy")]).all()


# -- methods ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize(
    ("method", "kind"),
    [pytest.param(*pair, id="-".join(pair), marks=[] if pair in FAST else [pytest.mark.slow]) for pair in PAIRS],
)
def test_every_method_learns_on_one_head(method, kind, vectors, tmp_path):
    chosen = experiment(method, kind, vectors, output_dir=str(tmp_path / "run"))
    results = chosen.run()
    figures = results.more["incremental"]
    classes = chosen.num_tasks * chosen.labels_per_task
    assert len(figures["seen_accuracy"]) == (1 if method == "offline" else chosen.num_tasks)
    if method in ("offline", "replay", *CLOSED):  # these hold all classes
        assert figures["last_accuracy"] > 1.5 / classes
    assert figures["seen_accuracy"][0] >= 1 / classes
    assert results_in(tmp_path / "run")["incremental"]["last_accuracy"] == figures["last_accuracy"]


def shared_after(chosen, runtime_of=None):
    """What the server shares at the end of a run, in its own runtime or in one that is given."""
    found, plan = {}, chosen.plan()
    if runtime_of is not None:
        plan.open_runtime = lambda: runtime_of
    finish = plan._finish

    def keeping(process, state, *rest):
        found["shared"] = state.server["shared"]
        return finish(process, state, *rest)

    plan._finish = keeping
    plan.run()
    return found["shared"]


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "option", "compete"),
    [
        ("lwf", "distillation", "own"),
        ("target", "distillation", "own"),
        ("fot", "energy", "seen"),
    ],  # a class by itself has nothing to learn
)
def test_without_its_weight_a_method_is_fedavg_to_the_bit(method, option, compete):
    plain = shared_after(experiment("fedavg", train_classes=compete))
    assert np.array_equal(shared_after(experiment(method, **{option: 0.0}, train_classes=compete)), plain)
    assert not np.array_equal(shared_after(experiment(method, train_classes=compete)), plain)
    other = "seen" if compete == "own" else "own"
    assert not np.array_equal(shared_after(experiment("fedavg", train_classes=other)), plain)


@pytest.mark.slow
def test_fot_that_keeps_all_energy_scores_what_clients_had_as_it_did():
    """With fewer examples than dimensions; the scores of the first task's examples, while a second one is learned."""
    chosen = experiment("fot", "image", energy=1.0, num_tasks=2, max_train_documents=20, filters=(8,), hidden=(80,))
    plan, kernels = chosen.plan(), []
    evaluate = run_program.__globals__["cohorts"].evaluate_tasks

    def recording(process, state, *rest):
        kernels.append(np.array(state.server["shared"]))
        return evaluate(process, state, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_program.__globals__["cohorts"], "evaluate_tasks", recording)
        plan.run()
    network, first = plan.network(), plan.data.task(0, 0).train
    before, after = (network.logits(each, np.zeros(0, "f"), None, {}, first, None).numpy() for each in kernels)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    new = plan.data.task(0, 1).train
    before, after = (network.logits(each, np.zeros(0, "f"), None, {}, new, None).numpy() for each in kernels)
    assert np.abs(after - before).max() > 0.05


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
def test_glfc_without_its_losses_is_er_and_without_a_memory_fedavg_to_the_bit():
    bare = {"relation": 0.0, "compensation": False}
    assert np.array_equal(shared_after(experiment("glfc", **bare)), shared_after(experiment("er")))
    plain = shared_after(experiment("fedavg"))
    assert np.array_equal(shared_after(experiment("glfc", memory_per_class=0, **bare)), plain)
    for part in ({"relation": 0.0}, {"compensation": False}):
        assert not np.array_equal(shared_after(experiment("glfc", memory_per_class=0, **part)), plain)


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
def test_what_the_server_made_is_recorded_and_counted_once_a_task(tmp_path):
    """One synthesis a task, whatever the number of clients; its examples go down with the first round of a task."""
    for clients in (2, 4):
        results = experiment(
            "target",
            "image",
            num_tasks=2,
            num_clients=clients,
            partition="equal",
            output_dir=str(tmp_path / str(clients)),
        ).run()
        ends = [event for event in results.events if event["event"] == "task_end"]
        assert len(ends) == 2
        assert all(0 <= event["server_metrics"]["consolidate/agreement"] <= 1 for event in ends)
        rounds = [event["bytes_down_dense"]["0"] for event in results.events if event["event"] == "round"]
        assert [first - again for first, again in zip(rounds[::2], rounds[1::2])] == [20 * 64 * 4] * 2


@pytest.mark.slow
def test_fil_ver_learns_on_one_head():
    results = Experiment(
        "fil-ver", data="digits", scenario="class-incremental", num_clients=2, num_tasks=2, labels_per_task=2,
        num_rounds=2, num_epochs=4, embedding_size=6, hidden=(8,), filters=(2,), pretraining_epochs=6, sst_steps=20,
        quiet=True,
    ).run()  # fmt: skip
    assert len(results.more["incremental"]["seen_accuracy"]) == 2
    assert results.more["incremental"]["last_accuracy"] > 0.25


# -- parameters for each task -------------------------------------------------------------------------------------

ONE_HEAD = {"share_dense": "start"}
BY_TASK = [name for name in registry.METHODS.names if registry.find_method(name).by_task]


def uneven(stream):
    """The second task without one of its classes, and the second client without the first task."""
    tasks = []
    for own in stream.tasks:
        second = own[1]
        labels = second.labels[1:]
        kept = {part: getattr(second, part) for part in ("train", "validation", "test")}
        known = np.asarray(DIGITS["train"]), np.asarray(DIGITS["test"])
        kept = {part: rows[np.isin(known[part == "test"][rows], labels)] for part, rows in kept.items()}
        tasks.append([own[0], dataclasses.replace(second, labels=labels, test_labels=labels, **kept), *own[2:]])
    nothing = {part: getattr(tasks[1][0], part)[:0] for part in ("train", "validation", "test")}
    tasks[1][0] = dataclasses.replace(tasks[1][0], **nothing)
    return streams.TaskStream(stream.name, tuple(map(tuple, tasks)), stream.excluded_labels)


DIGITS: dict[str, np.ndarray] = {}


def by_task_plan(method, kind="image", vectors=None, **options):
    """Of pictures tasks of 3, 2 and 3 classes, of which the second client has the last two."""
    if kind == "image":
        options = {"labels_per_task": 3, "partition": "equal", **options}
    plan = experiment(method, kind, vectors, **options).plan()
    if kind == "image":
        DIGITS.update(train=plan.dataset.train_labels, test=plan.dataset.test_labels)
        plan.stream = uneven(plan.stream)
        plan.data = plan.client_data(plan.stream)
    return plan


def inferred_by_hand(process, state, transfer, prepared, task_of):
    """Scores by a loop over examples' tasks and candidates, of logits that the network gives eagerly."""
    work = process.work
    network, scores = work.network, [[0.0] * len(prepared) for _ in range(len(state.store))]
    for client in range(len(state.store)):
        had = [task for task in range(len(prepared)) if client in prepared[task]]
        for task in had:
            raw, found = task_of(client, task), []
            for number, candidate in enumerate(had):
                incoming = transfer.transfer_in(state.base, [state.selections[candidate][client]], len(state.store))
                foreign = incoming["rows"][incoming["keys"][0][: incoming["count"][0]]].reshape(
                    -1, network.kernels.size
                )
                view = {
                    name: np.asarray(value) for name, value in process.task_view(state.store[client], number).items()
                }
                view = {name: tf.constant(value) for name, value in view.items()}
                examples = network.prepare(tf.constant(foreign), raw.test_context, raw.test)
                logits = (
                    network.logits(
                        work.evaluated_kernel(view), view["local"], view["attention"], raw.test_context, examples, None
                    )
                    .numpy()
                    .astype(np.float64)
                )
                classes = task_of(client, candidate).test_context.get("classes", np.ones(logits.shape[1], bool))
                places = np.flatnonzero(classes)
                p = special.softmax(logits[:, places], axis=1)
                found.append((stats.entropy(p, axis=1) / np.log(len(places)), places[p.argmax(axis=1)]))
            right = [
                had[min(range(len(had)), key=lambda n: found[n][0][row])] == task
                and found[had.index(task)][1][row] == label
                for row, label in enumerate(raw.test["label"])
            ]
            scores[client][task] = float(np.mean(right))
    return scores


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        ("fedweit", "image", ONE_HEAD),
        pytest.param("fedweit", "image", {"labels_per_task": 2}, marks=pytest.mark.slow),
        pytest.param("fedseit", "text", {}, marks=pytest.mark.slow),
        pytest.param("alone", "text", {"warm_start": True}, marks=pytest.mark.slow),
    ],
    ids=["tasks of 3, 2 and 3 classes", "a head for each task", "foreign responses", "labels of the data set"],
)  # fmt: skip
def test_the_task_of_lowest_entropy_is_inferred_as_by_a_loop_over_tasks(method, kind, options, vectors):
    if options.get("labels_per_task") == 2:  # unmasked heads have as many columns as any task has classes
        plan = experiment(method, kind, task_at_test="entropy", alpha=0.05, num_clients=3).plan()
    else:
        plan = by_task_plan(method, kind, vectors, task_at_test="entropy", **options)
    by_hand, of_run, infer = [], [], cohorts.inferred_scores

    def recording(*given):
        by_hand.append(inferred_by_hand(*given))
        return infer(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohorts, "inferred_scores", recording)
        results = plan.run()
    enrolled = plan.participation()
    for after, wanted in enumerate(by_hand):
        of_run.append(results.scores[:, after, : after + 1])
        np.testing.assert_allclose(of_run[-1], wanted, atol=1e-6)
    if kind == "image":  # a client without a task gets nothing right there
        assert any("-" in row or "x" in row or "o" in row for row in enrolled.table())
        for client, row in enumerate(enrolled.table()):
            absent = [task for task, cell in enumerate(row) if cell != "*"]
            assert np.all(np.nan_to_num(results.scores[client][:, absent]) == 0)
    assert 0.1 < np.mean(of_run[-1]) < 1


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
def test_with_the_task_known_the_same_parameters_score_at_least_as_well():
    plans = [by_task_plan("fedweit", task_at_test=way, **ONE_HEAD) for way in ("known", "entropy")]
    known, inferred = (plan.run() for plan in plans)
    assert known.bytes_up == inferred.bytes_up
    assert np.all(np.nan_to_num(known.scores) >= np.nan_to_num(inferred.scores))
    assert known.scores.mean() != inferred.scores.mean()
    assert known.scores[1][:, 0].tolist() == [0.0, 0.0, 0.0]
    assert known.scores[0, 0, 0] == inferred.scores[0, 0, 0] > 0  # one candidate
    counts = np.array([len(task.test) for task in plans[0].stream.tasks[0]])
    right = known.scores[:, -1].mean(axis=0) @ counts
    assert known.more["incremental"]["last_accuracy"] == pytest.approx(right / counts.sum())
    assert known.more["incremental"]["by_round"]["accuracy"][-1] == pytest.approx(right / counts.sum())


def test_figures_of_clients_own_models_by_hand():
    """Client 0 forgets its first task, client 1 never had it: A_t of the mean, forgetting and the worst by client."""
    nan = float("nan")
    one, other = [[0.8, nan], [0.4, 0.6]], [[0.0, nan], [0.0, 1.0]]
    figures = metrics.incremental_figures([one, other], [10, 30], [[5, 5], [0, 5]])
    assert figures["seen_accuracy"] == pytest.approx([0.4, (0.2 * 10 + 0.8 * 30) / 40])
    assert figures["forgetting"] == pytest.approx((0.4 + 0.0) / 2)
    assert figures["plasticity"] == pytest.approx((0.4 + 0.8) / 2)
    assert figures["worst_client_accuracy"] == pytest.approx(0.5)
    held_out = [one, [[nan, nan], [nan, 1.0]]]  # of the examples that each client holds out
    assert metrics.incremental_figures(held_out, [10, 30], [[5, 5], [0, 5]])["worst_client_accuracy"] == 0.5


@pytest.mark.parametrize("method", BY_TASK)
def test_parameters_for_each_task_are_for_new_classes_with_labels(method):
    """With all classes in every task no task is to be known; densities have no classes."""
    data = "sample" if method == "fedseit" else "digits"
    with pytest.raises(InputError, match="all tasks have the same classes|has classes, and here a density") as refused:
        Experiment(method, data=data, scenario="data-incremental")
    assert "\n" not in str(refused.value)
    if registry.find_method(method).learns != ("density",):
        assert Experiment(method, data=data, scenario="class-incremental").task_at_test == "known"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "fedavg --task-at-test known",
            "--task-at-test is for fedseit, fedweit, local, alone, store-all, not for fedavg",
        ),
        ("afcl --task-at-test entropy", "not for afcl"),
        ("fedweit --task-at-test entropy --labels-per-task 1", "of a task with one class every head is certain"),
        ("fedweit --task-at-test guessed", "expected one of known, entropy"),
        ("fedweit --train-classes own", "has a head for each task, whose classes alone compete"),
        ("fedweit --task-at-test entropy --client-dir there", "leave --client-dir out"),
        ("fedweit --task-at-test entropy --scenario non-iid", "is for class-incremental"),
        ("fedweit-made --task-at-test entropy", "--task-at-test is for fedseit, fedweit"),
    ],
)
def test_what_is_known_at_test_is_asked_where_it_has_a_meaning(run, line, message):
    method, *flags = line.split()
    command_line.wrong(run("run", method, "--data", "digits", "--scenario", "class-incremental", *flags), message)


def test_a_process_without_parameters_of_classes_for_each_task_infers_none():
    plan = experiment("fedavg").plan()
    with runtime.in_process(), pytest.raises(ContractError, match="PlainWork keeps no parameters of classes for each"):
        with_task_inference(plan.method.process(plan))


@pytest.mark.parametrize("method", ["lwf", "target", "er", "glfc", *CLOSED])
def test_methods_of_one_head_are_refused_elsewhere_in_a_line(method):
    with pytest.raises(InputError, match=f"{method} is for one growing head: class-incremental or data-incremental"):
        Experiment(method, data="digits", scenario="non-iid")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_tasks": 6}, StreamError, "6 tasks with 2 new classes each need 12 classes, and 10 can be had"),
        ({"client_dir": "/tmp/nowhere"}, InputError, "leave --client-dir out"),
        ({"partition": "half"}, InputError, "partition"),
        ({"partition": "dirichlet", "alpha": 0}, InputError, "alpha: expected a number above 0, found 0"),
        ({"labels_per_task": 0}, InputError, "labels_per_task: expected at least 1, found 0"),
        ({"scenario": "non-iid", "partition": "shards"}, InputError, "partition"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(options, error, message):
    with pytest.raises(error, match=message) as refused:
        Experiment("fedavg", data="digits", **{"scenario": "class-incremental", **options}).plan()
    assert "\n" not in str(refused.value)


def table(folder, names, rows, columns=("a", "b")):
    """train.csv with a row for each name in turn, 20 each, and test.csv with `rows` of these names."""
    folder.mkdir()
    for part, count, of in (("train", 20, names), ("test", 2, rows)):
        used = columns if part == "test" else ("a", "b")
        lines = [",".join([*map(str, range(place, place + len(used))), name]) for place, name in enumerate(of * count)]
        (folder / f"{part}.csv").write_text("\n".join([",".join([*used, "label"]), *lines]))
    return str(folder)


NAMES = ["red", "blue", "green", "black"]


@pytest.mark.parametrize(
    ("train", "test", "columns", "message"),
    [
        (NAMES[:3], NAMES, ("a", "b"), "need 4 classes, and 3 can be had; without training or test examples: label"),
        (NAMES, NAMES[1:], ("a", "b"), "without training or test examples: label 3 (red)"),
        (NAMES, NAMES, ("a",), "test has no column 'b'"),
    ],
    ids=["a class that nobody has", "a class without a test", "features of another width"],
)
def test_data_that_cannot_be_divided_are_said_in_a_line(run, tmp_path, train, test, columns, message):
    data = table(tmp_path / "own", train, test, columns)
    line = f"run fedavg --data {data} --scenario class-incremental --num-tasks 2 --labels-per-task 2 --num-clients 2"
    command_line.wrong(run(*line.split()), message)


def test_features_of_a_file_make_vectors_of_any_data(run, tmp_path):
    """Indicators of the classes: ridge regression on them knows every test example."""
    plain = experiment("afcl", "image").plan().dataset
    one_hot = {part: np.eye(10)[getattr(plain, f"{part}_labels")] for part in ("train", "test")}
    np.savez(tmp_path / "f.npz", **one_hot)
    chosen = experiment("afcl", "image", width=0, features=str(tmp_path / "f.npz"), runtime="in-process")
    assert chosen.kind == "vector"
    results = chosen.run()
    assert results.more["incremental"]["seen_accuracy"] == [1.0, 1.0, 1.0]
    again = ["run", "afcl", "--config", results.directory / "experiment.toml", "--print-config"]
    assert str(tmp_path / "f.npz") in run(*again).stdout
    line = f"run fedavg --scenario class-incremental --features {tmp_path / 'f.npz'}"
    command_line.wrong(run(*line.split()), "are of the examples of a data set, which --data has to name")
    command_line.wrong(run(*line.split(), "--data", "iris"), "train has shape", "expected [120, d]")


def test_a_column_names_the_clients_and_is_no_feature(run, tmp_path):
    data = table(tmp_path / "own", NAMES, NAMES)
    path = tmp_path / "own" / "train.csv"
    head, *lines = path.read_text().split("\n")
    owners = ["ann" if place % 3 else "zoe" for place in range(len(lines))]
    path.write_text("\n".join([f"who,{head}", *(f"{who},{line}" for who, line in zip(owners, lines))]))
    own = {"data": data, "num_tasks": 2, "labels_per_task": 2, "partition": "natural", "client_column": "who"}
    plan = experiment("fedavg", **own).plan()
    assert plan.dataset.columns == ("a", "b")
    assert [{owners[row] for task in of for row in task.train} for of in plan.stream.tasks] == [{"ann"}, {"zoe"}]
    line = f"run fedavg --data {data} --scenario class-incremental --num-tasks 2 --labels-per-task 2 --num-clients 3"
    natural = [*line.split(), "--partition", "natural"]
    command_line.wrong(run(*natural, "--client-column", "who"), "the data name 2 clients, expected 3")
    command_line.wrong(run(*natural, "--client-column", "whom"), "has no column 'whom' of clients, only who, a, b")
    command_line.wrong(run(*natural), "needs --partition natural, which in turn")
    command_line.wrong(run(*line.split(), "--client-column", "who"), "needs --partition natural, which in turn")


@pytest.mark.parametrize("method", ["fedavg", "er", "afcl"])
def test_labels_are_words_and_clients_may_have_nothing(tmp_path, caplog, method):
    """Dirichlet(0.01) among 20 leaves most without a row; labels are named in the order of the alphabet."""
    own = {"data": table(tmp_path / "own", NAMES, NAMES), "num_tasks": 2, "labels_per_task": 2}
    plan = experiment(method, **own, alpha=0.01).replace(num_clients=20).plan()
    with caplog.at_level("INFO"):
        enrollment = plan.participation()
    assert plan.dataset.label_names == tuple(sorted(NAMES))
    empty = sum("*" not in row for row in enrollment.table())
    assert 10 < empty < 20
    told = [line.message for line in caplog.records if "at all" in line.message]
    assert told == [
        f"data: {empty} of 20 clients have no examples at all; more --alpha or fewer clients give them some"
    ]
    rows = [row for own in plan.stream.tasks for task in own for row in (*task.train, *task.validation)]
    assert len(rows) == len(set(rows)) == 80


@pytest.mark.parametrize("kind", KINDS)
def test_a_herded_memory_of_one_is_the_example_nearest_its_clients_class_mean(kind, vectors):
    plan = experiment("er", kind, vectors, memory_choice="herding", memory_per_class=1, alpha=5.0).plan()
    assert "+herding" in plan.experiment.label
    new = plan.client_data(plan.stream)
    for client in range(2):
        rows, one = plan.stream.task(client, 0).train, new.task(client, 0)
        kept = np.setdiff1d(plan.data.stream.task(client, 1).train, plan.stream.task(client, 1).train)
        wanted = []
        for label in np.unique(one.train["label"]):
            which = one.train["label"] == label
            plain = as_vectors(one)[which]
            wanted.append(rows[which][np.argmin(np.linalg.norm(plain - plain.mean(axis=0), axis=1))])
        assert set(kept) == set(wanted)


def as_vectors(task):
    """Pixels, columns, or the mean of a document's word vectors, float64 [N, D]."""
    if "features" in task.train:
        return task.train["features"].reshape(len(task.train["label"]), -1).astype(float)
    words = task.context["vectors"][task.context["tokens"]].astype(float)
    spans = zip(task.train["start"], task.train["length"])
    return np.array([words[start : start + length].sum(axis=0) / max(length, 1) for start, length in spans])


# -- runs ---------------------------------------------------------------------------------------------------------


class _Stopped(Exception):
    """The power goes off."""


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["ewc", "lwf", "target", "fot", "fedweit", *CLOSED])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path, method):
    inferred = {"kind": "image", "task_at_test": "entropy", "num_clients": 3} if method == "fedweit" else {}
    chosen = experiment(method, **inferred, alpha=0.3, runtime="in-process")
    whole = chosen.replace(output_dir=str(tmp_path / "whole")).run()
    folder, save, calls = str(tmp_path / "stopped"), RunDirectory.save, []
    stop = 3 if method in CLOSED else 5  # in the second task

    def failing(self, state):
        save(self, state)
        calls.append(state.task)
        if len(calls) == stop:
            raise _Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", failing)
        with pytest.raises(_Stopped):
            chosen.replace(output_dir=folder).run()
    assert calls[-1] == 1
    again = chosen.replace(output_dir=folder, resume=True).run()
    np.testing.assert_array_equal(again.scores, whole.scores)
    assert again.more["incremental"] == whole.more["incremental"]
    losses = [[event.get("loss") for event in each.events] for each in (again, whole)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_the_model_that_is_taken_out_tells_all_classes_apart(tmp_path):
    chosen = experiment("er", "image", output_dir=str(tmp_path / "run"), keep="all")
    plan = chosen.plan()
    results = plan.run()
    model = tffcl.load_run(results.directory).model(client=0, task=2)
    seen = streams.seen_classes(plan.stream)[-1]
    for task in range(3):
        rows = plan.stream.task(0, task).test
        told = model(plan.dataset.test_images[rows])
        assert told["probabilities"].shape == (len(rows), len(seen))
        right = [name.decode() == plan.dataset.label_names[label] for name, label in
                 zip(told["label"].numpy(), plan.dataset.test_labels[rows])]  # fmt: skip
        assert np.mean(right) == pytest.approx(results.scores[0, -1, task], abs=1e-6)


@pytest.fixture(name="two_workers", scope="module")
def _two_workers():
    with runtime.local(num_threads=1, num_workers=2) as entered:
        yield entered


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["ewc", "lwf", "fot", *CLOSED])  # of TARGET see docs/runtime.md
def test_a_worker_and_two_of_them_give_what_this_process_gives(tff_context, two_workers, method):
    """About 1e-6 after a round (docs/runtime.md), which Adam lets grow: 1e-4; sums in closed form stay at 1e-6."""
    chosen = experiment(method, num_rounds=1, num_clients=3)
    here = shared_after(chosen.replace(runtime="in-process"))
    tolerance = 1e-6 if method in CLOSED else 1e-4
    for each in (tff_context, two_workers):
        there = shared_after(chosen, tff.framework.get_context_stack().install(each.context))
        np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance * np.abs(here).max())


@pytest.mark.usefixtures("built_once")
@pytest.mark.slow
def test_a_task_is_inferred_alike_in_a_worker_and_in_two(tff_context, two_workers):
    """An example or two may be on the border of two tasks."""
    chosen = experiment("fedweit", "image", num_rounds=1, num_clients=3, task_at_test="entropy")
    here = chosen.replace(runtime="in-process").run().scores
    for each in (tff_context, two_workers):
        plan = chosen.plan()
        plan.open_runtime = lambda entered=each: tff.framework.get_context_stack().install(entered.context)
        np.testing.assert_allclose(plan.run().scores, here, atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "of", "traced"),
    [
        *((method, Whole, "logits") for method in ("ewc", "lwf", "target", "fot")),
        ("fedweit", client_works.DecomposedWork, "infer"),
        *((method, client_works.AnalyticWork, "features") for method in CLOSED),
    ],
)
def test_more_tasks_trace_nothing_more(method, of, traced):
    """How often the Python of the network, or of the features, runs does not depend on how many tasks there are.

    It runs while a process is composed, and in no run.
    """
    own = {"kind": "image", "task_at_test": "entropy"} if method == "fedweit" else {}
    few, more = (experiment(method, **own, num_tasks=number, runtime="in-process").plan() for number in (2, 3))
    counted, composed, plain = [], [], getattr(of, traced)
    more._begin = lambda process: composed.append(len(counted))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, traced, lambda self, *args: counted.append(1) or plain(self, *args))
        with runtime.in_process():
            process = few.method.process(few)
            if own:
                with_task_inference(process)
        of_few = len(counted)
        counted.clear()
        more.run()
    assert len(counted) == composed[0] == of_few > 0
