"""The defaults that help texts tell, of every option of every command, against the values that are really used."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re
from unittest import mock

import click
import pytest
from loading import module_at

from tffcl import cli
from tffcl.commands import ConFedMADEOptions, FedSeITOptions, FilVerOptions, base_privacy
from tffcl.commands.run_options import ByCase

EXAMPLES = sorted((pathlib.Path(__file__).parents[1] / "examples").glob("*.py"))
# Defaults that are no values: what is looked for, or that there is no limit.
WORDS = {
    "ascii for the named sets, unicode for own data",
    "$TFFCL_DATA_DIR, else a cache that downloads fill",
    "a new one in runs/",
    "all",
    "all cores",
    "all five",
    "all in the memory of this program",
    "all with its labels",
    "fixed",
    "mnist; digits, which needs no files, where it is not at hand",
    "no limit",
    "secrets of the operating system",
    "the data folder's glove/*.bin, else glove-50 if installed, else own",
    "the first at hand of emnist-balanced, fashion-mnist, mnist and digits, which needs no files; mnist or digits for "
    "the methods of section 5.1",
    "trec6; the sample that ships where it is not at hand",
}
# Data and flags for which a case holds that a help text names; "" is what is taken unless one of the others holds.
CASES = {
    "fedseit": {
        "": ("trec6",),
        "for the sample": ("sample",),
        "with --dp-sit-noise": ("trec6", "--selection", "sit", "--dp-sit-clip", "5", "--dp-sit-noise", "4"),
    },
    "confedmade": {
        "": ("mnist",),
        "for digits": ("digits",),
        "for binary": ("binary",),
        "with OA or CA": ("mnist", "--connectivity-agnostic"),
        "for fedcurv": ("mnist", "--method", "fedcurv"),
    },
    "fil-ver": {
        "": ("fashion-mnist",),
        "for digits": ("digits",),
        "for emnist-balanced and mnist+fashion": ("mnist+fashion",),
        "for section 5.1": ("mnist", "--method", "ebr-1x"),
        "for section 5.1 with digits": ("digits", "--method", "naive"),
    },
}
OPTIONS = {"fedseit": FedSeITOptions, "confedmade": ConFedMADEOptions, "fil-ver": FilVerOptions}


def _commands(command, name="tffcl"):
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from _commands(part, f"{name} {part.name}")
    else:
        yield pytest.param(command, id=name)


def _told(option):
    """What the help shows as the default of an option; None where it shows none."""
    _, shown = option.get_help_record(click.Context(click.Command("x")))
    found = re.search(r"\[default: ([^]]*)\]", shown)
    # A range of values follows in the same brackets.
    return found and re.sub(r"; [\dx.<>=]*$", "", found[1])


@pytest.mark.parametrize("command", [*_commands(cli.tffcl), *(pytest.param(path, id=path.name) for path in EXAMPLES)])
def test_no_help_text_tells_a_value_that_is_not_taken_from_its_option(command):
    if isinstance(command, pathlib.Path):
        command = module_at(command).main
    for option in command.params:
        if isinstance(option, click.Option) and not isinstance(option, ByCase):
            for typed in re.findall(r"\[?default: ([^]]*)", option.help or "", re.I):
                assert typed in WORDS, f"{command.name} {option.opts[0]}: {typed}"


def _built(name, options):
    """What a command hands to the builders, and to the transfer of FedSeIT as it would be with SIT."""
    from tffcl import algorithms
    from tffcl.commands import confedmade, fedseit, fil_ver

    built = []
    builders = {
        n: mock.Mock(side_effect=lambda *args, **given: built.append((args, given))) for n in algorithms.__all__
    }
    with (
        mock.patch.multiple(algorithms, **builders),
        mock.patch.object(algorithms.fil_ver, "build_fil_ver", builders["build_fil_ver"]),
    ):
        if name == "fil-ver":
            frozen = None if options.method == "naive-end-to-end" else mock.Mock()
            fil_ver.build_process(options, mock.Mock(), frozen)
        elif name == "fedseit":
            sit = fedseit.build_transfer(dataclasses.replace(options, selection="sit"))
            names = {"top_k": sit.k, "max_clusters": sit.q, "min_cluster_size": sit.min_cluster_size}
            built.append(((), names))
            fedseit.build_process(options, 8, fedseit.build_transfer(options))
        else:  # confedmade has neither mu of FedProx nor the weight of EWC
            methods = {options.method, "fedcurv" if options.method == "fedcurv" else "fedprox-ewc"}
            for method in methods:
                one = dataclasses.replace(options, method=method)
                confedmade.build_process(one, 64, confedmade.build_transfer(one))
    return built


def _used(name, dataset, *args):
    """By name what a command hands to the library for a data set and flags; what it keeps to itself as it has it."""
    from tffcl import client_works, finalizers

    options = OPTIONS[name].parse(args).complete(dataset)
    used = vars(options).copy()
    built = _built(name, options)
    for part in [part for args, given in built for part in (*args, *given.values())]:
        if isinstance(part, finalizers.ServerSideTraining):
            used.update(sst_steps=part.steps, sst_learning_rate=part.learning_rate, server_memory=part.memory)
        elif isinstance(part, (client_works.EWC, client_works.FedCurv)):
            used["penalty"] = part.weight
        elif dataclasses.is_dataclass(part):  # training, decomposition, the sizes of a network
            used.update((k, v) for k, v in vars(part).items() if k in used and k != "proximal")
    for _, given in built:
        # What a client remembers is, in section 5.1, no longer the flag.
        used.update((k, v) for k, v in given.items() if k in used and k not in ("penalty", "client_memory"))
    if options.method not in options.ALONE:
        noised = dataclasses.replace(options, dp_base_clip=1.0, dp_base_noise=1.0)
        used["dp_base_delta"] = base_privacy.privacy_of(noised).delta
    return used


def _same(told, value):
    if isinstance(value, tuple):
        return told == ",".join(map(str, value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(told) == value
    return told == value


@pytest.mark.parametrize("name", CASES)
def test_what_the_help_tells_is_what_is_used(name):
    used = {case: _used(name, *given) for case, given in CASES[name].items()}
    command = OPTIONS[name].flags(click.Command(name))
    names = [option.name for option in command.params]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(OPTIONS[name]))
    compared = set()
    for option in command.params:
        told = _told(option)
        if told is None or told in WORDS:
            continue
        assert isinstance(option, ByCase) or option.show_default, option.name
        for number, one in enumerate(told.split("; ")):
            value, _, case = one.partition(" ") if number else (one, "", "")
            found = used[case][option.name]
            if isinstance(found, bool):  # --direct/--no-direct
                found = (option.opts if found else option.secondary_opts)[0].lstrip("-")
            assert _same(value, found), f"{option.name} {case}: {value} is told, {found} used"
            compared.add(case)
    assert compared == set(used)


def test_a_case_that_holds_stands_over_those_before_it():
    option = ByCase(["--n"], by_case={"": 1, "for a": 2, "for b": (3, 4)}, help="Of it.")
    assert option.help == "Of it.  [default: 1; 2 for a; 3,4 for b]"
    cases = ([], ["for c"], ["for a"], ["for a", "for b"], ["for b", "for a"])
    assert [option.default_in(case) for case in cases] == [1, 1, 2, (3, 4), 2]


def test_builders_take_by_themselves_what_the_commands_take():
    from tffcl import aggregators, algorithms, client_works, finalizers
    from tffcl.algorithms import fil_ver, made

    fedseit, confedmade, fil = (_used(name, *CASES[name][""]) for name in CASES)
    for part, used in (
        (client_works.LocalTraining(), fedseit),
        (client_works.Decomposition(), fedseit),
        (made.TRAINING, confedmade),
        (made.DECOMPOSITION, confedmade),
        (fil_ver.TRAINING, fil),
    ):
        for name, value in vars(part).items():
            if name != "proximal":  # of a decomposition it is none of the flags'
                assert used.get(name, value) == value, name
    sst = finalizers.ServerSideTraining()
    assert (fil["sst_steps"], fil["sst_learning_rate"], fil["server_memory"]) == (
        sst.steps, sst.learning_rate, sst.memory,
    )  # fmt: skip
    builder = inspect.signature(algorithms.build_fil_ver).parameters
    for name in ("send_per_round", "client_memory", "proximal"):
        assert fil[name] == builder[name].default
    assert fil["dp_base_delta"] == inspect.signature(aggregators.ClientPrivacy).parameters["delta"].default
