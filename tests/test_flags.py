"""Flags of `tffcl run`: what they parse to, wrong ones as one line, help with the defaults that are used, files."""

from __future__ import annotations

import json
import logging
import os
import re

import click
import pytest
from command_line import wrong

from tffcl import Experiment
from tffcl.algorithms import registry
from tffcl.errors import TffclError
from tffcl.experiment import groups, loading
from tffcl.flags import ExperimentCommand, exit_with, parse_run
from tffcl.options import OptionError, fields_of, shown

DP = ("--dp-base-clip", "0.5", "--dp-base-noise", "2")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("fedseit --method magic", ["'magic'", "fedseit"]),
        ("fedseit --num-rounds 0", ["--num-rounds", "at least 1", "0"]),
        ("fedseit --num-clients three", ["--num-clients", "a whole number", "three"]),
        ("fedseit --no-such-flag", ["--no-such-flag"]),
        ("fedseit extra", ["extra"]),
        ("fedseit --learning-rate nan", ["--learning-rate", "finite", "nan"]),
        ("fedseit --learning-rate 0", ["--learning-rate", "above 0"]),
        ("fedseit --sparsity -1", ["--sparsity", "at least 0", "-1"]),
        ("fedseit --retention inf", ["--retention", "finite"]),
        ("fedseit --resume", ["--resume", "--output-dir"]),
        ("fedseit --quiet --verbose", ["--quiet", "--verbose", "contradict"]),
        ("fedseit --plot-format gif", ["--plot-format", "png, svg, pdf", "'gif'"]),
        ("fedseit --track tensorwatch", ["--track", "wandb, mlflow", "'tensorwatch'"]),
        ("fedseit --seed 4294967296", ["--seed", "4294967296", "at most 4294967295"]),
        ("fedseit --split-seed -1", ["--split-seed", "-1"]),
        ("fedseit --num-clients 2 --clients-per-round 3", ["--clients-per-round: 3", "--num-clients 2"]),
        ("fedseit --num-clients 1", ["--num-clients", "2 or more", "fedweit"]),
        ("fedseit --min-cluster-size 5", ["--min-cluster-size: is for --selection sit"]),
        ("fedseit --selection sit --dp-sit-clip 5", ["--dp-sit-clip and --dp-sit-noise go together"]),
        ("fedseit --selection sit --dp-sit-clip 5 --dp-sit-noise 0", ["--dp-sit-noise", "above 0"]),
        ("fedseit --runtime remote", ["--runtime remote and --workers"]),
        ("fedseit --workers a:1", ["--runtime remote and --workers"]),
        ("fedseit --on-lost-worker leave-out", ["--on-lost-worker: is for --runtime remote"]),
        ("fedseit --call-timeout 3", ["--call-timeout: is for --runtime remote"]),
        ("fedseit --runtime remote --workers h:1 --client-dir x", ["--client-dir: must be an absolute path", "x"]),
        ("fedseit --allow-pickle", ["--allow-pickle: is for a file"]),
        ("fedseit --penalty 3", ["--penalty is for", "fedcurv", "not for fedseit"]),
        ("fedweit --foreign-projection mean", ["--foreign-projection: mean is for W_f", "fedweit has none"]),
        ("alone --foreign-projection mean", ["--foreign-projection: mean is for W_f", "alone has none"]),
        ("fedseit --data digits", ["fedseit takes text data", "digits is image"]),
        ("fedseit --data sample --network mlp", ["mlp", "vector"]),
        ("fedavg --data sample --overlap 1", ["--overlap: is for sequence", "text"]),
        ("confedmade --hidden 0", ["--hidden", "1 unit or more", "0"]),
        ("confedmade --hidden 400,x", ["--hidden", "400,x"]),
        ("confedmade --hidden none --no-direct", ["--hidden", "direct"]),
        ("confedmade --order 1,3,3", ["--order", "1,3,3", "permutation of 1..3"]),
        ("confedmade --order backwards", ["--order", "'backwards'", "natural"]),
        ("confedmade --order 2,1 --order-agnostic", ["--order", "order_agnostic", "contradict"]),
        ("confedmade --num-masks 4", ["--num-masks: 4", "order_agnostic"]),
        ("confedmade --distinct-masks", ["--distinct-masks", "confedmade"]),
        ("confedmade --method fedweit-made-sync --distinct-masks", ["--distinct-masks", "fedweit-made-sync"]),
        ("confedmade --method fedprox-ewc --penalty -0.5", ["--penalty", "at least 0"]),
        ("confedmade --method fedprox --proximal inf", ["--proximal", "finite"]),
        ("confedmade --gate-cutoff 1", ["--gate-cutoff", "below 1"]),
        ("confedmade --overlap 2", ["--overlap", "at most 1"]),
        ("confedmade --assign 0,1 --assign 1", ["--assign", "as many tasks"]),
        ("confedmade --assign 0 --clients-per-round 2", ["--clients-per-round: 2", "--num-clients 1"]),
        ("fil-ver --domains colours", ["--domains", "colours", "rotations"]),
        ("fil-ver --domains classes --data digits", ["--domains", "mnist+fashion", "digits"]),
        ("fil-ver --domains mild --data mnist+fashion", ["--domains", "mnist+fashion", "classes", "mild"]),
        ("fil-ver --pretraining none", ["--pretraining", "none", "central"]),
        ("fil-ver --filters 8,x", ["--filters", "8,x"]),
        ("fil-ver --beta -1", ["--beta", "at least 0"]),
        ("fil-ver --proximal -0.5", ["--proximal", "at least 0"]),
        ("fil-ver --sst-learning-rate inf", ["--sst-learning-rate", "finite"]),
        ("fil-ver --sst-steps 0", ["--sst-steps", "at least 1"]),
        ("fil-ver --client-memory -1", ["--client-memory", "at least 0"]),
        ("fil-ver --memory-share 1.5", ["--memory-share", "at most 1"]),
        ("fil-ver --memory-per-task", ["--memory-per-task: is for the methods of section 5.1", "ebr-16x"]),
        ("fil-ver --test-examples 0", ["--test-examples", "at least 1"]),
        ("fil-ver --dp-clip 1", ["--dp-clip: needs --dp-noise-multiplier"]),
        ("fil-ver --dp-noise-multiplier 1", ["--dp-noise-multiplier: needs --dp-clip"]),
        ("fil-ver --dp-clip 0 --dp-noise-multiplier 1", ["--dp-clip", "above 0"]),
        ("fil-ver --dp-noise-seed 1", ["--dp-noise-seed: needs --dp-clip and --dp-noise-multiplier"]),
        ("fil-ver --method ver --dp-clip 1 --dp-noise-multiplier 1", ["--dp-clip: ver sends no embeddings", "ebr"]),
        ("fil-ver --method naive --num-clients 3", ["--num-clients: 3", "naive", "one client"]),
        ("fil-ver --network cnn", ["network", "fil-ver has a network of its own"]),
        ("nothing", ["no method is called 'nothing'"]),
    ],
)
def test_wrong_flags_are_one_line_before_anything_runs(run, line, parts):
    wrong(run("run", *line.split()), *parts)


@pytest.mark.parametrize("method", ["fedseit", "confedmade", "fil-ver"])
@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--dp-base-clip", "1"], ["--dp-base-clip: needs --dp-base-noise"]),
        (["--dp-base-noise", "1"], ["--dp-base-noise: needs --dp-base-clip"]),
        (["--dp-base-delta", "1e-6"], ["--dp-base-delta: needs --dp-base-clip"]),
        (["--dp-base-clip", "nan", "--dp-base-noise", "1"], ["--dp-base-clip", "finite", "nan"]),
        (["--dp-base-clip", "1", "--dp-base-noise", "0"], ["--dp-base-noise", "above 0"]),
        ([*DP, "--dp-base-quantile", "1"], ["--dp-base-quantile", "below 1"]),
        (["--data", "trec7x"], ["no data set is called 'trec7x'", "my_file.py:NAME"]),
    ],
)
def test_wrong_flags_of_every_paper(run, method, args, parts):
    wrong(run("run", method, *args), *parts)


@pytest.mark.parametrize("line", ["fedseit --method local", "confedmade --method offline", "confedmade --method cl-ewc",
                                  "fil-ver --method offline", "fil-ver --method ebr-1x"])  # fmt: skip
def test_methods_without_a_sum_of_updates_take_no_noise_on_it(run, line):
    wrong(run("run", *line.split(), *DP), "--dp-base-clip", "has no updates of several clients")


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("fedseit --data trec6", {"learning_rate": 1e-4, "num_rounds": 10, "num_epochs": 50}),
        ("fedseit --data sample", {"learning_rate": 1e-3, "num_rounds": 3, "num_epochs": 10}),
        ("fedseit --dataset sample --num-rounds 7", {"num_rounds": 7, "num_epochs": 10}),
        ("fedseit --method fedweit", {"num_clients": 3, "selection": "previous"}),
        ("confedmade --data mnist", {"hidden": (400,), "num_rounds": 20, "num_tasks": 5}),
        ("confedmade --data binary", {"num_tasks": 4, "hidden": (100,)}),
        ("confedmade --data digits --hidden 7 --hidden 5", {"hidden": (7, 5), "num_rounds": 5}),
        ("confedmade --hidden 7,5", {"hidden": (7, 5)}),
        ("confedmade --hidden none", {"hidden": ()}),
        ("confedmade --no-direct --order 2,1,3", {"direct": False, "order": (2, 1, 3)}),
        ("confedmade --method fedcurv", {"penalty": 1.0}),
        ("confedmade --method fedprox-ewc", {"penalty": 0.1, "proximal": 1.0}),
        ("confedmade --method cl-ewc", {"penalty": 1.0}),
        ("confedmade --assign 0+1,2 --assign 2,0",
         {"num_clients": 2, "num_tasks": 2, "assign": ((("0", "1"), ("2",)), (("2",), ("0",)))}),
        ("confedmade --assign 0+1,2;2,0", {"num_clients": 2, "num_tasks": 2}),
        ("fil-ver --data digits --hidden 7,5", {"hidden": (7, 5), "num_clients": 5, "num_tasks": 4, "num_rounds": 4}),
        ("fil-ver --data fashion-mnist", {"hidden": (1000, 1000), "domains": "rotations"}),
        ("fil-ver --data mnist+fashion", {"domains": "classes"}),
        ("fil-ver --method ebr-16x --data mnist",
         {"num_clients": 1, "num_tasks": 10, "domains": "permutations", "examples_per_task": 2000}),
        ("fil-ver --method naive --data digits", {"examples_per_task": 400}),
    ],
)  # fmt: skip
def test_values_that_flags_and_data_give(line, values):
    experiment = parse_run(line.split())
    assert {name: getattr(experiment, name) for name in values} == values


@pytest.mark.parametrize("flags", [["--connectivity-agnostic"], ["--order-agnostic"]])
def test_agnostic_training_goes_through_eight_masks(flags):
    from tffcl.models.registry import MADEConfig

    assert parse_run(["confedmade"]).groups[MADEConfig].num_masks == 1
    assert parse_run(["confedmade", *flags]).groups[MADEConfig].num_masks == 8


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("fedseit", "fedseit"),
        ("fedseit --selection sit --share-dense", "fedseit+sit3+dls"),
        ("fedseit --selection sit --dp-sit-clip 5 --dp-sit-noise 4 --foreign zeros", "fedseit+sit3+sitdp+zeros"),
        ("fedseit --method fedavg --dp-base-clip 1 --dp-base-noise 1", "fedavg+basedp"),
        ("confedmade --no-direct --order-agnostic", "confedmade-nodc+oa"),
        ("confedmade --method finetune --distinct-masks --order-agnostic", "finetune+oa+distinct"),
        ("confedmade --method fedweit-made", "fedweit-made"),
        ("confedmade --selection sampled --top-k 2", "confedmade+sampled2"),
        ("fil-ver --enrollment scattered --proximal 0.1", "fil-ver+scattered+prox"),
        ("fil-ver --enrollment some/who.csv", "fil-ver+who"),
        ("fil-ver --method ebr --pretraining federated --dp-clip 1 --dp-noise-multiplier 2", "ebr+federated+dp"),
        ("fil-ver --method offline", "offline"),
    ],
)
def test_labels_of_tables_name_what_sets_a_run_apart(line, label):
    assert parse_run(line.split()).label == label


# -- help -----------------------------------------------------------------------------------------------------


def command_of(*args):
    """The command that `tffcl run` makes for these arguments, with the flags that suit them."""
    reference, *rest = args
    command = ExperimentCommand(reference, reference, lambda _: None)
    command.make_context(reference, list(rest), resilient_parsing=True)
    return command


METHODS = registry.METHODS.names


@pytest.mark.parametrize("method", METHODS)
def test_help_shows_the_default_that_is_used_of_every_option(method):
    """For the data that the method has by itself, and for each data set whose defaults differ."""
    command = command_of(method)
    experiment = Experiment(method)
    named = [name for name in groups.data_with_defaults(experiment.method, experiment.kind) if name in loading.NAMES]
    cases = {None: experiment, **{name: Experiment(method, data=name) for name in named}}
    compared = 0
    for option in command.get_params(click.Context(command)):
        if option.name not in experiment.fields:
            continue
        found = re.search(r"\[default: ([^]]*)\]", option.help)
        used = {name: shown(getattr(case, option.name)) for name, case in cases.items()}
        if found is None:
            assert {getattr(case, option.name) for case in cases.values()} <= {None, False}, option.name
            continue
        usual, *others = found[1].split("; ")
        told = dict.fromkeys(cases, usual)
        for each in others:
            value, _, names = each.partition(" for ")
            told.update(dict.fromkeys(names.split(" and "), value))
        assert told == used, option.name
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("method", METHODS)
def test_options_have_help_and_one_name_each(method):
    experiment, seen = Experiment(method), []
    for title, group in experiment.group_types:
        for field in fields_of(group):
            assert len(field.option.help) >= 8, f"{title} {field.name}"
            seen += [field.flag, *field.option.aliases]
    assert len(set(seen)) == len(seen)


def test_help_is_a_screen_and_help_all_shows_every_flag(run):
    short, whole = (run("run", "confedmade", flag).stdout for flag in ("--help", "--help-all"))
    for name in ("--gate-cutoff", "--hidden", "--data, --dataset", "--print-config"):
        assert name in short
    for name in ("--dp-base-clip", "--client-dir", "--mask-start", "--embeddings"):
        assert name not in short
        assert name in whole


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["fedseit"], "the first at hand of trec6 and sample"),
        (["confedmade"], "the first at hand of mnist and digits"),
        (["fil-ver"], "the first at hand of emnist-balanced, fashion-mnist, mnist and digits"),
        (["fil-ver", "--method", "ebr-1x"], "the first at hand of mnist and digits"),
    ],
)
def test_help_names_the_data_that_are_taken(run, args, names):
    assert names in " ".join(run("run", *args, "--help").stdout.split())


# -- configuration files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "fedprox@confedmade", "offline@fil-ver", "fedavg@fedseit"])
def test_what_print_config_prints_gives_the_same_experiment(run, tmp_path, method):
    under, flags = method.rpartition("@")[2], []
    if "@" in method:
        flags = ["--method", method.partition("@")[0]]
    flags += ["--num-rounds", "7", "--seed", "3", *(["--num-clients", "4"] if "num_clients" not in
              Experiment(method).method.defaults_on("") else [])]  # fmt: skip
    printed = run("run", under, *flags, "--print-config")
    assert printed.returncode == 0, printed.stderr
    path = tmp_path / "options.toml"
    path.write_text(printed.stdout)
    asked, found = parse_run([under, *flags]), parse_run([under, "--config", str(path)])
    assert found.named == asked.named
    assert (found.label, found.values) == (asked.label, asked.values)
    assert found.to_toml() == printed.stdout
    assert (found.num_rounds, found.seed) == (7, 3)


def test_flags_stand_over_a_file_in_toml_or_json(tmp_path):
    (tmp_path / "a.toml").write_text('data = "sample"\n[training]\nnum_rounds = 2\nlearning_rate = 1\n')
    (tmp_path / "b.json").write_text(json.dumps({"data": "sample", "training": {"num_rounds": 2}, "learning_rate": 1}))
    for name in ("a.toml", "b.json"):
        experiment = parse_run(["fedseit", "--config", str(tmp_path / name), "--num-rounds", "5"])
        assert (experiment.data, experiment.num_rounds, experiment.learning_rate) == ("sample", 5, 1.0)


def test_values_of_every_form_survive_a_file(tmp_path):
    line = "confedmade --data digits --hidden 7,5 --order random --assign 0+1,2 --assign 2,0 --no-direct --overlap 0.25"
    asked = parse_run(line.split())
    (tmp_path / "a.toml").write_text(asked.to_toml())
    assert parse_run(["confedmade", "--config", str(tmp_path / "a.toml")]).values == asked.values
    odd = Experiment("fedseit", data="sample", embeddings='a "b"\\é\u2028.txt', learning_rate=1e-5)
    (tmp_path / "b.toml").write_text(odd.to_toml())
    assert parse_run(["fedseit", "--config", str(tmp_path / "b.toml")]).values == odd.values


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("a.toml", None, ["No such file"]),
        ("a.toml", "num_rounds = ", ["a.toml"]),
        ("a.json", "[1]", ["expected options by name", "list"]),
        ("a.toml", "num_round = 3", ["--num-round", "did you mean num_rounds?"]),
        ("a.toml", "num_rounds = 'three'", ["--num-rounds", "a whole number"]),
        ("a.toml", "data = 3", ["data"]),
    ],
)
def test_wrong_files_are_one_line(run, tmp_path, name, text, parts):
    if text is not None:
        (tmp_path / name).write_text(text)
    wrong(run("run", "fedseit", "--config", tmp_path / name), *parts)


def test_experiments_of_objects_cannot_be_written_to_a_file():
    from tffcl.options import OptionError

    class Rows:
        kind, name = "vector", "rows"

    with pytest.raises(OptionError, match="data: is a Rows; a file holds names"):
        Experiment("fedavg", data=Rows()).to_toml()


def ended(command):
    with pytest.raises(SystemExit) as exit_info:
        exit_with(command, "program", [])
    return exit_info.value.code


def test_a_command_in_a_notebook_draws_without_the_notebook_s_backend(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://notebook_alone.backend")
    seen = []

    @click.command()
    def command():
        seen.append(os.environ.get("MPLBACKEND"))

    assert (ended(command), seen) == (0, [None])


@pytest.mark.parametrize(
    ("happens", "code", "words"),
    [
        (click.Abort(), 130, "program: interrupted; --resume with the same flags and --output-dir goes on"),
        (KeyboardInterrupt(), 130, "program: interrupted"),
        (click.UsageError("a\n  b"), 2, "program: error: a b"),
        (TffclError("what\nwhere"), 2, "program: error: what where"),
        (OptionError("num_rounds", "expected 3"), 2, "program: error: --num-rounds: expected 3"),
    ],
)
def test_how_programs_end(capsys, happens, code, words):
    @click.command()
    def command():
        raise happens

    assert ended(command) == code
    assert words in capsys.readouterr().err


def test_an_error_of_the_code_itself_keeps_its_trace():
    @click.command()
    def command():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        exit_with(command, "program", [])


def test_what_is_logged_goes_to_stderr_and_warnings_say_who_warns(capsys, monkeypatch):
    logger = logging.getLogger("tffcl")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)

    @click.command()
    def command():
        logging.getLogger("tffcl.some.module").info("data: a")
        logging.getLogger("tffcl.some.module").warning("odd")

    assert ended(command) == 0
    assert capsys.readouterr().err == "data: a\nprogram: WARNING: odd\n"
