"""Plans: what a run is built of, from options and data: client works, transfers, noise, directories."""

from __future__ import annotations

import gc
import pathlib

import click
import numpy as np
import pytest
import tensorflow_federated as tff
from command_line import small_vectors

from tffcl import Experiment, aggregators, algorithms, client_works, finalizers, models, program, runtime, transfers
from tffcl.algorithms import decomposed, fed_avg, fil_ver, made, registry
from tffcl.algorithms.fil_ver import Rehearsal
from tffcl.errors import InputError, RunError
from tffcl.experiment import frozen
from tffcl.flags import exit_with, parse_run
from tffcl.runtime import quiet

FLOWERS = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "flowers.py"
DP = ("--dp-base-clip", "0.5", "--dp-base-noise", "2")
SMALL = {
    "text": ["--data", "sample", "--num-filters", "2"],
    "binary": ["--data", "digits", "--hidden", "3"],
    "image": ["--data", "digits", "--hidden", "3", "--filters", "2"],
}


@pytest.fixture(scope="module", name="vectors")
def _vectors(tmp_path_factory):
    return str(small_vectors(tmp_path_factory.mktemp("vectors")))


@pytest.fixture(name="small_plan")
def _small_plan(vectors):
    """The plan of flags, with small networks and word vectors."""

    def make(*flags):
        kind = parse_run(flags).kind
        more = ["--embeddings", vectors] if kind == "text" else []
        if Rehearsal in parse_run(flags).groups:
            more += ["--embedding-size", "2"]
        return parse_run([*flags, *SMALL[kind], *more]).plan()

    return make


@pytest.fixture(name="parts_only")
def _parts_only(monkeypatch):
    """What is composed is not a process but its parts: work, factory, finalizer; nothing is pre-trained."""
    for module in (decomposed, fed_avg, fil_ver):
        monkeypatch.setattr(module.templates, "compose_continual_process", lambda *parts: parts)
    monkeypatch.setattr(fil_ver.finalizers, "build_server_side_training", lambda *given: given)

    def untrained(plan):
        network = frozen.build_network(plan)
        weights = frozen.build_classifier(plan, network.encoder).initial([1, 2]).numpy()
        return models.FrozenEncoder(network.encoder, network.encoder.initial([1, 2]).numpy()), weights

    monkeypatch.setattr(frozen, "_pretrained", untrained)


DECOMPOSED = ("confedmade", "fedweit-made", "fedweit-made-sync")


@pytest.mark.parametrize("method", list(made.METHODS) + ["fedprox", "fedprox-ewc", "fedcurv", "replay", "offline"])
def test_every_method_of_confedmade_has_its_client_work(small_plan, parts_only, method):
    plan = small_plan("confedmade", "--method", method, "--num-tasks", "2")
    work, *_ = plan.method.process(plan)
    assert work.num_foreign == (2 if method in DECOMPOSED else 0)
    assert isinstance(work, client_works.DecomposedWork) == (method in DECOMPOSED)
    assert work.network.config.share_biases == (method not in DECOMPOSED)
    assert work.network.config.distinct_masks == (method == "fedweit-made")
    alone, pooled = method.startswith("cl-"), method in ("offline", "federated-offline")
    assert plan.data.num_clients == (1 if alone or method == "offline" else 3)
    assert plan.data.num_tasks == (1 if pooled else 2)


FIL_VER = list(fil_ver.METHODS)
STUDY = fil_ver.STUDY


@pytest.mark.slow
@pytest.mark.parametrize("name", ["offline" if name == "offline-vee" else name for name in FIL_VER])
def test_every_method_of_fil_ver_has_its_client_work(small_plan, parts_only, name):
    plan = small_plan("fil-ver", "--method", name, "--num-tasks", "3", "--proximal", "0.25")
    (work, *parts), data = plan.method.process(plan), plan.data
    assert work.penalties._penalties == (client_works.Proximal(0.25),)
    offline = name.startswith("offline")
    assert data.num_clients == (1 if offline or name in STUDY else 5)
    assert data.num_tasks == (1 if offline else 3)
    if name.endswith("end-to-end"):
        assert plan.frozen is None
        assert not work.network.encoder.variational
        return
    encoder = work.model.encoder.encoder
    assert encoder.variational == (name in ("fil-ver", "ver-stats", "ver", "vanilla", "offline"))
    assert encoder.name == ("identity" if name == "naive" else "image")
    sharing = {"fil-ver": "sampled", "ver-stats": "stats", "ebr": "embeddings"}
    assert work.sharing.kind == sharing.get(name, "none")
    assert isinstance(parts[-1], tuple) == (name in sharing)  # server-side training
    memory = {"vanilla": 0, "none": 0, "random-encoder": 0, "noise": 80, "naive": 80, "ebr-1x": 80, "ebr-16x": 800}
    assert work._capacity == (0 if offline else memory.get(name, 150))
    assert work._task_capacity is None
    assert (work.model.memory_encoder is not None) == (name == "noise")
    assert (plan.frozen.accuracy is not None) == (name not in ("naive", "random-encoder"))


@pytest.mark.parametrize(
    ("method", "remembered", "of_a_task"),
    [("ebr-1x", 1800, 200), ("ebr-16x", 18_000, 2000), ("naive-end-to-end", 1800, 200)],
)
def test_memories_of_section_5_1_are_a_share_of_the_past_tasks(method, remembered, of_a_task):
    experiment = Experiment(method, data="mnist", memory_per_task=True)
    plan = type("Sizes", (), {"group": lambda _, kind: experiment.groups[kind]})()
    plan.num_tasks, plan.examples_per_task = experiment.num_tasks, experiment.examples_per_task
    assert experiment.method.remembered(plan) == remembered
    assert experiment.method.task_memory(plan) == of_a_task


def test_replayed_images_are_those_of_past_tasks():
    flags = "fil-ver --method naive-end-to-end --data digits --examples-per-task 40 --num-tasks 3"
    plan = parse_run(flags.split()).plan()
    divided = program.DomainClientData(plan.dataset, plan.stream)
    replayed = program.ReplayedDomainData(plan.dataset, plan.stream, 20, 3)
    assert len(plan.data.task(0, 2).train["label"]) == 40 + 8
    for task, past in ((0, 0), (1, 20), (2, 10)):
        found, own = replayed.task(0, task), divided.task(0, task)
        assert len(found.train["label"]) == 40 + past * task
        np.testing.assert_array_equal(found.train["x"][:40], own.train["x"])
        np.testing.assert_array_equal(found.test["x"], own.test["x"])
        for earlier in range(task):
            rows = slice(40 + past * earlier, 40 + past * (earlier + 1))
            known = {(x.tobytes(), label) for x, label in zip(*divided.task(0, earlier).train.values())}
            replay = list(zip(found.train["x"][rows], found.train["label"][rows]))
            assert {(x.tobytes(), label) for x, label in replay} <= known
            assert np.bincount(found.train["label"][rows]).tolist() == [past // 10] * 10
    limited = program.ReplayedDomainData(plan.dataset, plan.stream, 20, 3, task_memory=5)
    assert [len(limited.task(0, task).train["label"]) for task in range(3)] == [40, 45, 50]


# -- transfers and noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "kind", "places"),
    [
        ("fedseit", transfers.PreviousTask, 2),
        ("fedseit --selection sit --top-k 2", transfers.SIT, 2),
        ("fedseit --foreign zeros", transfers.Zeroed, 2),
        ("fedseit --foreign random", transfers.RandomTask, 2),
        ("confedmade", transfers.AllPast, 8),
        ("confedmade --assign 0,1 --assign 1,0", transfers.AllPast, 1),
        ("confedmade --selection sampled --top-k 2", transfers.Sampled, 2),
        ("confedmade --method finetune", transfers.NoTransfer, 0),
        ("fil-ver", transfers.NoTransfer, 0),
    ],
)
def test_transfers_that_flags_ask_for(small_plan, flags, kind, places):
    plan = small_plan(*flags.split())
    assert type(plan.transfer) is kind
    assert plan.transfer.num_foreign(plan.data.num_clients) == places


def test_noise_on_centroids_leaves_few_of_them():
    def sit(*flags):
        experiment = parse_run(["fedseit", "--selection", "sit", *flags])
        return experiment.groups[transfers.options.Selection].transfer(5, 1), experiment.config()

    plain, recorded = sit()
    assert (plain.q, plain.min_cluster_size, plain.privacy) == (200, 2, None)
    assert not {"max_clusters", "min_cluster_size", "dp_sit_clip", "dp_sit_noise"} & set(recorded)
    noised, recorded = sit("--min-cluster-size", "9", "--dp-sit-clip", "5", "--dp-sit-noise", "4")
    assert (noised.q, noised.min_cluster_size) == (4, 9)
    assert (noised.privacy.clip, noised.privacy.noise_multiplier) == (5, 4)
    assert recorded["dp_sit_noise"] == 4
    assert sit("--max-clusters", "7")[0].q == 7


def test_noise_on_the_base_is_what_the_flags_ask_for(small_plan):
    more = ("--dp-base-quantile", "0.3", "--dp-base-delta", "1e-6", "--num-clients", "9", "--num-tasks", "1")
    privacy = small_plan("finetune", *DP, *more).privacy
    assert (privacy.clip, privacy.noise_multiplier, privacy.quantile, privacy.delta) == (0.5, 2.0, 0.3, 1e-6)
    assert (privacy.clients_per_round, privacy.uncovered) == (9, ())
    privacy = small_plan("confedmade", "--method", "fedcurv", *DP, "--clients-per-round", "2").privacy
    assert privacy.clients_per_round == 2
    assert privacy.uncovered == ("Fisher information, from which the updates follow without noise",)


@pytest.mark.parametrize("method", ["fedseit", "confedmade", "fil-ver"])
def test_noise_is_recorded_only_where_it_is_asked_for(method):
    plain, private = parse_run([method]), parse_run([method, *DP])
    assert not any(name.startswith("dp_base") for name in plain.config())
    assert private.config()["dp_base_noise"] == 2.0
    assert private.label == f"{plain.label}+basedp"


@pytest.mark.parametrize(
    "flags",
    ["fedseit", "fedseit --method fedweit", "fedseit --method fedavg", "confedmade", "confedmade --method fedweit-made",
     "confedmade --method fedprox-ewc", "confedmade --method fedcurv", "fil-ver", "fil-ver --method vanilla"],
)  # fmt: skip
def test_every_federated_method_aggregates_its_base_with_that_noise(small_plan, parts_only, flags, monkeypatch):
    """It comes as one vector per client, without weights, to the one mechanism that the flags describe."""
    plan, asked = small_plan(*flags.split(), *DP), []
    monkeypatch.setattr(
        aggregators.ClientPrivacy,
        "factory",
        lambda self: asked.append((self.noise_multiplier, self.clip)) or tff.aggregators.SumFactory(),
    )
    _, factory, _ = plan.method.process(plan)
    assert asked == [(2.0, 0.5)]
    assert isinstance(factory, tff.aggregators.UnweightedAggregationFactory)


def test_an_environment_that_forbids_noise_is_one_clear_error(small_plan, monkeypatch):
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    with small_plan("finetune", "--runtime", "in-process").open_runtime():
        pass
    with pytest.raises(InputError, match="dp_base_noise: .*TF_DETERMINISTIC_OPS in the environment .*; unset it"):
        small_plan("finetune", *DP).open_runtime()


@pytest.mark.parametrize(
    ("flags", "epsilon", "words"),
    [
        ("", None, ""),
        ("--dp-clip 5 --dp-noise-multiplier 4", 1.99, "each vector that is sent is (1.99, 1e-05)-differentially"),
        ("--dp-clip 5 --dp-noise-multiplier 4 --dp-noise-seed 3", None, "privacy: none: with --dp-noise-seed"),
    ],
)
def test_epsilon_of_vectors_that_are_sent_is_recorded_and_said(small_plan, parts_only, caplog, flags, epsilon, words):
    import logging

    logging.getLogger("tffcl").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "tffcl")
    plan = small_plan("fil-ver", *flags.split())
    plan.method.process(plan)
    logging.getLogger("tffcl").removeHandler(caplog.handler)
    found = plan.config()["dp_epsilon"]
    assert found == (None if epsilon is None else pytest.approx(epsilon, abs=0.01))
    assert (words in caplog.text) if words else ("privacy:" not in caplog.text)


def test_builders_take_by_themselves_what_runs_take():
    fedseit, confedmade, fil = (
        Experiment("fedseit", data="trec6").values, Experiment("confedmade", data="mnist").values,
        Experiment("fil-ver", data="fashion-mnist").values,
    )  # fmt: skip
    for part, used in (
        (client_works.LocalTraining(), fedseit),
        (client_works.Decomposition(), fedseit),
        (made.TRAINING, confedmade),
        (made.DECOMPOSITION, confedmade),
        (fil_ver.TRAINING, fil),
    ):
        for name, value in vars(part).items():
            assert used.get(name, value) == value, name
    sst = finalizers.ServerSideTraining()
    used = tuple(fil[name] for name in ("sst_steps", "sst_learning_rate", "server_memory"))
    assert used == (sst.steps, sst.learning_rate, sst.memory)
    builder = algorithms.build_fil_ver.__kwdefaults__ or algorithms.build_fil_ver.__wrapped__.__kwdefaults__
    assert {name: builder[name] for name in ("send_per_round", "client_memory", "proximal")} == {
        name: fil[name] for name in ("send_per_round", "client_memory", "proximal")
    }
    delta = aggregators.ClientPrivacy(clip=1.0, noise_multiplier=1.0, clients_per_round=2).delta
    assert f"none for {delta:g}" in Experiment("fedavg").fields["dp_base_delta"].option.help


# -- directories ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--output-dir", "--client-dir"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("file", "is a file"), ("gone", "a link to nothing"), ("file/x", "is a file"), ("n" * 300, "name too long"),
     ("\udcc3", "outside of this locale's encoding")],
    ids=ascii,
)  # fmt: skip
def test_directories_that_cannot_be_used_are_named_before_anything_is_done(tmp_path, monkeypatch, flag, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(RunError, match=words):
        parse_run(["finetune", "--data", "digits", flag, str(tmp_path / name)]).plan().directory()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "gone"]


def test_run_directories_without_a_name_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = parse_run(["finetune", "--data", "digits", "--seed", "3"]).plan()
    assert plan.directory() == pathlib.Path("runs/finetune-digits-seed3")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "finetune-digits-seed3").symlink_to("nowhere")  # taken for no run
    assert plan.directory().name == "finetune-digits-seed3-2"


def test_garbage_is_collected_seldom_until_rounds_begin(monkeypatch):
    """Rounds leave large arrays behind; what is imported and traced before stays."""
    usual, seen = gc.get_threshold(), []
    monkeypatch.setattr(quiet, "_USUAL", (500, 5, 5))
    monkeypatch.setattr(program, "run_program", lambda *_, **__: seen.append(gc.get_threshold()))
    plan = Experiment("finetune", data="digits", runtime="in-process", output_dir="never-made").plan()

    @click.command()
    def command():
        plan.run(lambda _: seen.append(gc.get_threshold()))

    with pytest.raises(SystemExit):
        exit_with(command, "program", [])
    after = gc.get_threshold()
    gc.set_threshold(*usual)
    assert seen[0][0] > 50_000
    assert seen[1] == after == (500, 5, 5)


def test_methods_are_found_by_name_and_under_the_conditions_of_a_paper():
    assert registry.find_method("fedprox@confedmade").schedule == "confedmade"
    assert registry.find_method("offline@fil-ver").name == "offline"
    assert registry.find_method("offline@fil-ver").encoder == "variational"
    assert Experiment("fedprox@confedmade").kind == "binary"
    with pytest.raises(InputError, match="no method is called 'fedprix'; did you mean 'fedprox'"):
        Experiment("fedprix@confedmade")


@pytest.mark.parametrize("method", ["finetune", "replay", "confedmade", "federated-offline"])
def test_scores_on_validation_are_of_what_each_task_holds_out(small_plan, method):
    """Where a client trains on past tasks too, a task's score is still that of its own examples."""
    tested, plan = (
        small_plan("confedmade", "--method", method, *more) for more in ((), ("--evaluate-on", "validation"))
    )
    for client in range(plan.data.num_clients):
        for number in range(plan.data.num_tasks):
            task, before = plan.data.task(client, number), tested.data.task(client, number)
            rows = np.concatenate([each.validation for each in plan.stream.tasks[client]])
            if method != "federated-offline":
                rows = plan.stream.task(client, number).validation
            assert len(rows)
            np.testing.assert_array_equal(task.test["x"], plan.dataset.train_x[np.sort(rows)])
            for part in ("train", "validation"):
                np.testing.assert_array_equal(getattr(task, part)["x"], getattr(before, part)["x"])
    assert plan.config()["method"] == f"{method}+validation"
    assert "evaluate_on" not in tested.config()


def test_scores_on_validation_of_texts_have_the_words_of_the_training_set(small_plan):
    plan = small_plan("fedseit", "--evaluate-on", "validation")
    task, rows = plan.data.task(0, 1), plan.stream.task(0, 1).validation
    starts = zip(task.test["start"], task.test["length"])
    vectors = task.test_context["vectors"][task.test_context["tokens"]]
    expected = [plan.dataset.embedding[plan.dataset.train_tokens.take([row]).values] for row in rows]
    for found, (start, length) in zip(expected, starts):
        np.testing.assert_array_equal(vectors[start : start + length], found)


def test_nothing_held_out_is_nothing_to_score(small_plan):
    with pytest.raises(InputError, match="evaluate_on: no task holds examples out"):
        small_plan("fil-ver", "--evaluate-on", "validation", "--examples-per-task", "20")


@pytest.mark.slow
def test_enrolments_are_compared_on_one_encoder_if_all_clients_pre_train(small_plan):
    """Of those enrolled in the first task, two of five clients pre-train another encoder than all five."""
    more = ("--pretraining-epochs", "1", "--examples-per-task", "20")
    checksums = {}
    every = [("all", enrollment) for enrollment in ("full", "increasing")]
    for who, enrollment in (*every, ("enrolled", "full"), ("enrolled", "increasing")):
        plan = small_plan("fil-ver", *more, "--pretraining-clients", who, "--enrollment", enrollment)
        with runtime.in_process():
            checksums[who, enrollment] = frozen.freeze(plan, True, False).checksum
    assert len({checksums[one] for one in every}) == 1
    assert checksums["all", "full"] == checksums["enrolled", "full"]
    assert checksums["enrolled", "full"] != checksums["enrolled", "increasing"]


def test_a_control_has_what_its_method_can_take_whatever_decides_on_that(tmp_path):
    """The kind of a table by its column, a scenario of one's own with its options, a selection where there is one."""
    table = tmp_path / "questions.csv"
    table.write_text("question,topic\na,b\n")
    columns = {"text_column": "question", "label_column": "topic"}
    own = {"scenario": f"{FLOWERS}:walk", "width": 3}
    for data, given, left_out in (
        (str(table), {**columns, "selection": "sit", "top_k": 2, "num_rounds": 4}, {"selection", "top_k"}),
        ("sample", {**own, "share_dense": "start", "sparsity": 0.5}, {"share_dense", "sparsity"}),
    ):
        experiment = Experiment("fedseit", data=data, **given)
        control = experiment.control("fedavg", seed=7)
        assert (control.method.name, control.kind) == ("fedavg", "text")
        assert control.given == {**{name: given[name] for name in given if name not in left_out}, "seed": 7}
        assert experiment.control("fedseit").given == given


def test_a_control_without_foreign_features_has_no_choice_of_their_projection():
    experiment = Experiment("fedseit", data="sample", foreign_projection="mean", num_rounds=4)
    for method in ("fedavg", "fedweit", "alone"):
        assert experiment.control(method).given == {"num_rounds": 4}
    assert experiment.control("fedseit").label == "fedseit+mean"
