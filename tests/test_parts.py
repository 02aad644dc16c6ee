"""Parts from outside: of a file, a module, an installed package; their options, and what may be wrong with them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tffcl import Experiment, datasets, parts
from tffcl.algorithms import registry
from tffcl.errors import InputError
from tffcl.experiment import loading
from tffcl.experiment.groups import SCENARIOS
from tffcl.flags import parse_run
from tffcl.models.registry import NETWORKS
from tffcl.options import OptionError, fields_of, options_of
from tffcl.transfers.options import TRANSFERS

MODULE = """
import tffcl
from tffcl import datasets

@tffcl.method(learns=("labels",))
def gentle(network, training, seed, strength: float = 0.5, twice: bool = False):
    '''A method.

    Args:
      strength: How much of it,
        in two lines.
    '''
    raise ZeroDivisionError("strength")

def network(input_shape, num_classes, units: int = 4):
    '''Args:
      units: Of the layer.
    '''

def rows(count: int = 30) -> datasets.ArrayDataset:
    CALLS.append(count)
    x, labels = [[0.0, 1.0]] * count, [0, 1, 2] * (count // 3)
    return datasets.from_arrays(x, labels, x[:6], labels[:6], name="rows")

def unannotated(count: int = 30):
    return rows(count)

class Transfer:
    def __init__(self, k, share: float = 0.5): pass

def scenario(train_labels, num_clients, shift: int = 1): return "no stream"

constant = 3
CALLS = []
"""
GROUPS = {"tffcl.methods": "gentle", "tffcl.networks": "network", "tffcl.data": "rows", "tffcl.transfers": "Transfer",
          "tffcl.scenarios": "scenario"}  # fmt: skip


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("tffcl_user_own", None)


@pytest.fixture(name="installed")
def _installed(path, monkeypatch):
    """A package that announces all parts under the name `theirs`."""
    (path.parent / "their_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(path.parent))
    points = {group: [f"theirs = their_package:{name}"] for group, name in GROUPS.items()}
    points["tffcl.methods"].append("broken = their_package:gone")
    about = path.parent / "their_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n")
    sections = ("\n".join([f"[{group}]", *lines]) for group, lines in points.items())
    (about / "entry_points.txt").write_text("\n".join(sections))
    yield
    sys.modules.pop("their_package", None)


def flags_of(experiment):
    return {name: experiment.values[name] for group in experiment.own.values() for name in _names(group)}


def _names(group):
    return [field.name for field in fields_of(group)]


def test_parameters_with_defaults_are_options(path):
    experiment = parse_run([f"{path}:gentle", "--data", "iris", "--strength", "0.25", "--twice"])
    assert (experiment.method.name, experiment.strength, experiment.twice) == ("gentle", 0.25, True)
    (own,) = experiment.method.options.values()
    assert [(field.flag, field.option.help) for field in fields_of(own)] == [
        ("--strength", "How much of it, in two lines."), ("--twice", ""),
    ]  # fmt: skip
    assert experiment.config()["strength"] == 0.25
    with pytest.raises(OptionError, match="strength: expected a number"):
        Experiment(f"{path}:gentle", data="iris", strength="much")
    assert options_of(lambda network, training=None: None, ("network",)) is None


def test_all_parts_of_a_file_have_flags_at_once(path):
    flags = f"fedweit --data {path}:rows --count 60 --network {path}:network --units 7 --selection {path}:Transfer"
    flags += f" --share 0.2 --scenario {path}:scenario --shift 2"
    experiment = parse_run(flags.split())
    assert flags_of(experiment) == {"count": 60, "share": 0.2, "shift": 2}
    assert (experiment.units, experiment.kind) == (7, "vector")
    again = parse_run(["fedweit", "--config", _written(experiment, path.parent / "all.toml")])
    assert again.values == experiment.values
    assert again.config() == experiment.config()
    assert again.config()["network"] == f"{path}:network"


def _written(experiment, path):
    path.write_text(experiment.to_toml())
    return str(path)


def test_a_return_annotation_says_the_kind_without_a_call(path):
    experiment = Experiment("ewc", data=f"{path}:rows")
    calls = sys.modules["tffcl_user_own"].CALLS
    assert (experiment.kind, calls) == ("vector", [])
    assert Experiment("ewc", data=f"{path}:unannotated").kind == "vector"
    assert loading.loaded(f"{path}:rows") is loading.loaded(f"{path}:rows")
    assert calls == [30, 30]  # once each: made once, and again only with other options
    own = loading.own_options(f"{path}:rows")
    assert len(loading.loaded(f"{path}:rows", own(count=60)).train_x) == 60


def test_installed_packages_announce_the_same(installed):
    for registered in (registry.METHODS, NETWORKS, loading.DATA, TRANSFERS, SCENARIOS):
        assert "theirs" in registered.names
        assert registered.is_own("theirs")
    flags = "theirs --data theirs --network theirs --scenario theirs --units 3 --shift 4 --strength 1"
    experiment = parse_run(flags.split())
    assert (experiment.method.name, experiment.kind, experiment.units, experiment.shift) == ("gentle", "vector", 3, 4)
    assert parse_run(["fedweit", "--data", "iris", "--selection", "theirs", "--share", "0.1"]).share == 0.1
    with pytest.raises(InputError, match="method: their_package has no 'gone'"):
        registry.find_method("broken")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{}:gone", "own.py has no 'gone'"),
        ("{}.py:gentle", "no such file"),
        ("{}:network", "is a function; make it a method with the decorator"),
        ("no.such.module:name", "no.such.module cannot be loaded: ModuleNotFoundError"),
        ("fedvag", "did you mean 'fedavg', or my_file.py:NAME"),
    ],
)
def test_a_method_that_is_none(reference, message, path):
    with pytest.raises(InputError, match=message):
        registry.find_method(reference.format(path))


def test_errors_of_the_user_s_code_are_one_line_with_its_place(path):
    broken = path.parent / "broken.py"
    broken.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(InputError, match=r"broken\.py cannot be loaded: ZeroDivisionError: .* \(broken\.py, line 2\)"):
        parts.load_object(f"{broken}:y")
    broken.write_text("def rows():\n    return [][1]\n")
    with pytest.raises(InputError, match=r"broken\.py:rows: IndexError: .* \(broken\.py, line 2\)"):
        Experiment("ewc", data=f"{broken}:rows")
    sys.modules.pop("tffcl_user_broken", None)
    for reference, message in (
        ("constant", "data: expected a name, .* found int"),
        ("scenario", "scenario.. missing 2 required positional arguments"),
    ):
        with pytest.raises(InputError, match=message):
            Experiment("ewc", data=f"{path}:{reference}")


def test_an_option_of_ones_own_may_not_have_the_name_of_another(path):
    clash = path.parent / "clash.py"
    clash.write_text("def network(input_shape, num_classes, learning_rate: float = 1.0): pass\n")
    with pytest.raises(OptionError, match="learning_rate: is declared by two parts of this run"):
        Experiment("ewc", data="iris", network=f"{clash}:network")
    sys.modules.pop("tffcl_user_clash", None)


DIGITS = datasets.load_images("digits")


@pytest.mark.parametrize(
    ("method", "data", "kind", "scenario"),
    [
        ("ewc", DIGITS, "image", "non-iid"),
        ("confedmade", DIGITS, "binary", "sequence"),
        ("confedmade", datasets.vectors_of_images(DIGITS), "binary", "sequence"),
        ("ewc", datasets.rotations(DIGITS, (0, 90, 180)), "image", "domains"),
        ("fedseit", datasets.from_texts([("a b", "x"), ("c", "y")], [("a", "x")]), "text", "non-iid"),
        ("local", datasets.from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], np.zeros((1, 2)), [0]), "vector", "non-iid"),
    ],
)
def test_every_data_set_is_data(method, data, kind, scenario):
    experiment = Experiment(method, data=data)
    assert (experiment.kind, experiment.scenario) == (kind, scenario)
    if scenario == "domains":
        assert experiment.num_tasks == 3


def test_what_is_no_data_set_is_said():
    with pytest.raises(
        InputError, match=r"data: expected a name, .* \(from_arrays, from_frames, from_texts\), found tuple"
    ):
        Experiment("ewc", data=(np.zeros(3), np.zeros(3)))


@pytest.mark.parametrize(
    ("name", "head", "row", "kind", "taken"),
    [
        ("mine.csv", "a,b,label", "1,2,{}", "vector", datasets.ArrayDataset),
        ("mine.tsv", "text\tlabel", "a word\t{}", "text", datasets.TextDataset),
    ],
)
def test_a_table_is_data(name, head, row, kind, taken, tmp_path):
    path = tmp_path / name
    path.write_text("\n".join([head, *(row.format("xy"[n % 2]) for n in range(20))]) + "\n")
    experiment = parse_run(["ewc", "--data", str(path)])
    loaded = loading.load(experiment)
    assert (experiment.kind, type(loaded), loaded.name, loaded.label_names) == (kind, taken, "mine", ("x", "y"))
    assert (len(loaded.train_labels), len(loaded.test_labels)) == (16, 4)


@pytest.mark.parametrize("part", ["method", "network"])
def test_a_file_that_imports_tensorflow_first_finds_its_log_silenced(part, path, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    path.write_text(f"import os\nLEVEL = os.environ.get('TF_CPP_MIN_LOG_LEVEL')\n{MODULE}")
    if part == "method":
        Experiment(f"{path}:gentle", data="iris")
    else:
        Experiment("fedavg", data="iris", network=f"{path}:network")
    assert sys.modules["tffcl_user_own"].LEVEL == "3"
