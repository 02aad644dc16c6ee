"""Methods x data: every pair that makes sense runs from the command line, every other is refused in one line."""

from __future__ import annotations

import pathlib

import command_line
import numpy as np
import pytest
from loading import module_at
from run_directories import assert_complete, history

from tffcl.algorithms import registry
from tffcl.errors import InputError
from tffcl.flags import parse_run

golden = module_at(pathlib.Path(__file__).parents[1] / "golden" / "golden.py")
KINDS = ("text", "image", "vector", "binary")
# What makes sense, apart from the declarations of the methods.
LABELLED = ("text", "image", "vector")
SENSIBLE = {
    **dict.fromkeys(
        ("local", "alone", "store-all", "fedavg", "fedprox", "ewc", "fedprox-ewc", "fedcurv", "replay", "offline",
         "fedweit"), KINDS,
    ),
    "fedseit": ("text",),
    **dict.fromkeys(
        ("confedmade", "fedweit-made-sync", "fedweit-made", "finetune", "cl-finetune", "cl-ewc", "cl-replay",
         "federated-offline"), ("binary",),
    ),
    **dict.fromkeys(
        ("fil-ver", "ver-stats", "ver", "ebr", "ebr-no-sst", "vanilla", "offline-vee", "offline-ebr",
         "offline-end-to-end"), LABELLED,
    ),
    **dict.fromkeys(("lwf", "target", "er", "glfc", "afcl", "prototypes", "fot"), LABELLED),
    # Section 5.1 of FIL-VER permutes pixels.
    **dict.fromkeys(
        ("none", "noise", "random-encoder", "naive", "naive-end-to-end", "ebr-1x", "ebr-16x"), ("image",)
    ),
}  # fmt: skip
PAIRS = [(method, kind) for method, kinds in SENSIBLE.items() for kind in kinds]
# Methods of densities take pictures, too: as rows of 0 and 1.
SENSELESS = [
    (method, kind)
    for method, kinds in SENSIBLE.items()
    for kind in KINDS
    if kind not in kinds and not (kind == "image" and kinds == ("binary",))
]
# Whole runs of what differs in the code. The other baselines of the MADE family and of FIL-VER are the same parts under
# other options, on the same data: tests/algorithms/test_contract.py takes each of them through the contract.
SAME_PARTS = {
    "store-all", "fedprox-ewc", "fedweit-made-sync", "fedweit-made", "finetune", "cl-finetune", "cl-ewc",
    "ver-stats", "ver", "ebr", "ebr-no-sst", "vanilla", "offline-vee", "offline-ebr",
    "none", "noise", "random-encoder", "naive-end-to-end", "ebr-1x", "ebr-16x",
    "lwf", "target", "er", "glfc", "afcl", "prototypes", "fot",  # in test_growing.py
}  # fmt: skip
# Whole runs in test_growing.py; networks of vectors are those of pictures without convolutions; FedProx's term is
# one of kernels, whatever network they are of.
ALIKE = {
    *((method, "vector") for method in ("fedavg", "fedprox", "ewc", "fedcurv", "replay", "offline")),
    ("fedavg", "image"), ("offline", "image"),
    *((method, "vector") for method in ("local", "alone", "fedweit", "offline-end-to-end")),
    ("fedprox", "text"), ("fedprox", "binary"),
}  # fmt: skip
RUNS = [pair for pair in PAIRS if pair[0] not in SAME_PARTS and pair not in golden.PAIRS and pair not in ALIKE]
# A run with documents and one with pictures; one of densities is among the golden runs.
FAST = {("fedavg", "text"), ("local", "image")}
# Data that ship; the pictures of digits are rows of 0 and 1 to a MADE.
DATA = {"text": "sample", "image": "digits", "vector": "iris", "binary": "digits"}
COMMON = (
    "--num-tasks 2 --num-rounds 1 --num-epochs 6 --batch-size 20 --learning-rate 0.02 --patience 0 --runtime in-process"
)
SIZES = {
    "text": "--labels-per-task 2 --num-filters 4 --kernel-sizes 2",
    "image": "--labels-per-task 2 --filters 2 --hidden 8",
    "vector": "--labels-per-task 2 --hidden 8",
    "binary": "--hidden 8 --labels-per-task 1",
}
ENCODER = "--embedding-size 6 --hidden 8 --pretraining-epochs 6 --sst-steps 20"


def named(pairs, marks=lambda pair: []):
    """Parameters with a name such as `ewc-text`."""
    return [pytest.param(*pair, marks=marks(pair), id="-".join(pair)) for pair in pairs]


@pytest.fixture(name="vectors", scope="module")
def _vectors(tmp_path_factory):
    return command_line.small_vectors(tmp_path_factory.mktemp("vectors"))


def flags(method, kind, vectors=None):
    """The arguments of `tffcl run` for a small run."""
    told = f"{method} --data {DATA[kind]} {COMMON}"
    if vectors is not None and kind == "text":
        told += f" --embeddings {vectors}"
    if kind == "binary" and "image" in SENSIBLE[method]:
        told += " --network made"
    if registry.find_method(method).own_network and registry.find_method(method).growing:
        return f"{told} --num-clients 2 --labels-per-task 1".split()
    if registry.find_method(method).schedule != "fil-ver":
        return f"{told} --num-clients 2 {SIZES[kind]}".split()
    study = registry.find_method(method).study
    sizes = {
        "text": "--labels-per-task 2",
        "image": "--filters 2 --examples-per-task 60",
        "vector": "--labels-per-task 2",
    }
    return f"{told} {ENCODER} {sizes[kind]} {'' if study else '--num-clients 2'}".split()


@pytest.mark.parametrize(("method", "kind"), named(RUNS, lambda pair: [] if pair in FAST else [pytest.mark.slow]))
def test_every_pair_that_makes_sense_runs(method, kind, vectors, tmp_path):
    experiment = parse_run([*flags(method, kind, vectors), "--output-dir", str(tmp_path / "run")])
    assert experiment.kind == kind
    results = experiment.run()
    assert results.scores_are == ("nll" if kind == "binary" else "accuracy")
    measured = results.more.get("accuracy_by_task", results.scores[:, -1])
    assert_complete(experiment, results.scores, measured, history(tmp_path / "run"))


def test_the_methods_declare_what_makes_sense():
    assert {name: registry.find_method(name).kinds for name in registry.METHODS.names} == SENSIBLE


@pytest.mark.parametrize(("method", "kind"), named(PAIRS))
def test_every_pair_that_makes_sense_is_planned(method, kind):
    """Options and network are found, without data and without TensorFlow."""
    experiment = parse_run(flags(method, kind))
    assert (experiment.kind, experiment.num_tasks) == (kind, 2)


@pytest.mark.parametrize(("method", "kind"), named(SENSELESS))
def test_every_other_pair_is_refused_in_a_line_that_says_what_is_missing(method, kind):
    data = {**DATA, "binary": "nltcs"}[kind]
    with pytest.raises(InputError) as refused:
        parse_run([method, "--data", data])
    takes, _, missing = str(refused.value).partition(f"but {data} is {kind}: ")
    assert takes.startswith(f"{method} takes {' or '.join(SENSIBLE[method])} data")
    assert "\n" not in missing
    if kind == "binary":
        assert "without labels" in missing
    elif method == "fedseit":
        assert "it aligns features of text" in missing
    else:
        assert ("permutations of pixels" if "image" in SENSIBLE[method] else "rows of 0 and 1") in missing


def test_the_list_is_the_matrix(run):
    """`tffcl list` marks what the methods declare, and no more."""
    lines = run("list").stdout.split("\n\n")[0].splitlines()
    assert lines[0].split()[:5] == ["method", *KINDS]
    told = {line.split()[0]: line[20:56].split() for line in lines[1:]}
    assert told == {name: ["x" if kind in kinds else "-" for kind in KINDS] for name, kinds in SENSIBLE.items()}


def test_two_sets_of_images_are_domains():
    experiment = parse_run(["fedavg", "--data", "mnist+fashion"])
    assert (experiment.scenario, experiment.domains) == ("domains", "classes")
    for flags_of_others in (["--scenario", "non-iid"], ["--network", "mlp"]):
        with pytest.raises(InputError, match=r"mnist\+fashion are domains of images, found non-iid; take domains"):
            parse_run(["fedavg", "--data", "mnist+fashion", *flags_of_others])


@pytest.mark.parametrize("kind", ["text", "vector", "binary"])
def test_domains_are_of_images(kind):
    with pytest.raises(InputError, match=f"domains are rotations .* here are {kind} data"):
        parse_run(["fedavg", "--data", {**DATA, "binary": "nltcs"}[kind], "--scenario", "domains"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["replay", "offline", "fedweit"])
def test_methods_of_images_take_domains_too(method, tmp_path):
    """Replay keeps all of its past images, of other domains: it still knows the first one, as offline does."""
    domains = "--num-clients 2 --scenario domains --examples-per-task 100 --filters 2 --hidden 8"
    told = f"{method} --data digits {COMMON} {domains} --output-dir {tmp_path / 'run'}"
    results = parse_run(told.split()).run()
    assert np.nanmean(results.more.get("accuracy_by_task", results.scores[:, -1])) > 0.15
