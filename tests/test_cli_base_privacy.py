"""Differential privacy of the base, on the command lines of all systems."""

from __future__ import annotations

import json

import pytest
import tensorflow_federated as tff
from command_line import wrong

from tffcl import models
from tffcl.commands import ConFedMADEOptions, FedSeITOptions, FilVerOptions, base_privacy
from tffcl.errors import InputError

DP = ("--dp-base-clip", "0.5", "--dp-base-noise", "2")


@pytest.mark.parametrize("command", ["fedseit", "confedmade", "fil-ver"])
@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--dp-base-clip", "1"], ["--dp-base-clip needs --dp-base-noise"]),
        (["--dp-base-noise", "1"], ["--dp-base-noise needs --dp-base-clip"]),
        (["--dp-base-delta", "1e-6"], ["--dp-base-delta needs --dp-base-clip"]),
        (["--dp-base-clip", "nan", "--dp-base-noise", "1"], ["--dp-base-clip must be a number above 0", "nan"]),
        (["--dp-base-clip", "1", "--dp-base-noise", "0"], ["--dp-base-noise must be a number above 0"]),
        ([*DP, "--dp-base-quantile", "1"], ["--dp-base-quantile must be a number between 0 and 1"]),
    ],
)
def test_wrong_flags(run, command, args, parts):
    wrong(run("run", command, *args), *parts)


@pytest.mark.parametrize(
    ("options", "method"),
    [(FedSeITOptions, "local"), (ConFedMADEOptions, "offline"), (ConFedMADEOptions, "cl-ewc"),
     (FilVerOptions, "offline"), (FilVerOptions, "ebr-1x")],
)  # fmt: skip
def test_methods_without_a_sum_of_updates(options, method):
    with pytest.raises(InputError, match=f"--dp-base-clip: --method {method} has no updates of several clients"):
        options.parse([*DP, "--method", method])


@pytest.mark.parametrize("options", [FedSeITOptions, ConFedMADEOptions, FilVerOptions])
def test_recorded_only_where_it_is_given(options):
    plain, private = options.parse([]), options.parse(list(DP))
    assert not any(name.startswith("dp_base") for name in plain.config())
    assert private.config()["dp_base_noise"] == 2.0
    assert private.label == f"{plain.label}+basedp"
    assert base_privacy.aggregator_of(plain) == {}


def test_what_the_flags_ask_for():
    args = [*DP, "--dp-base-quantile", "0.3", "--dp-base-delta", "1e-6", "--num-clients", "9"]
    privacy = base_privacy.privacy_of(FedSeITOptions.parse(args))
    assert (privacy.clip, privacy.noise_multiplier, privacy.quantile, privacy.delta) == (0.5, 2.0, 0.3, 1e-6)
    assert (privacy.clients_per_round, privacy.uncovered) == (9, ())
    fewer = ConFedMADEOptions.parse([*DP, "--clients-per-round", "2", "--method", "fedcurv"])
    privacy = base_privacy.privacy_of(fewer)
    assert (privacy.clients_per_round, privacy.uncovered) == (2, (base_privacy.FISHER,))


def _build_fedseit(method):
    from tffcl.commands import fedseit

    options = FedSeITOptions.parse([*DP, "--method", method]).complete("sample")
    return fedseit.build_process(options, 8, fedseit.build_transfer(options))


def _build_confedmade(method):
    from tffcl.commands import confedmade

    options = ConFedMADEOptions.parse([*DP, "--method", method, "--hidden", "3"]).complete("digits")
    return confedmade.build_process(options, 4, confedmade.build_transfer(options))


def _build_fil_ver(method):
    from tffcl.client_works import RehearsalModel
    from tffcl.commands import fil_ver
    from tffcl.commands.fil_ver_models import FrozenModel

    options = FilVerOptions.parse([*DP, "--method", method]).complete("digits")
    encoder = models.VectorEncoder(3, variational=options.variational, embedding_size=2, hidden=(4,))
    values = encoder.initial([0, 1]).numpy()
    model = RehearsalModel(models.FrozenEncoder(encoder, values), models.MLP(2, 2, (3,)))
    return fil_ver.build_process(options, None, FrozenModel(model, None, False))


@pytest.mark.parametrize(
    ("build", "method"),
    [(_build_fedseit, "fedseit"), (_build_fedseit, "fedweit"), (_build_fedseit, "fedavg"),
     (_build_confedmade, "confedmade"), (_build_confedmade, "fedweit-made"),
     (_build_confedmade, "fedprox-ewc"), (_build_confedmade, "fedcurv"),
     (_build_fil_ver, "fil-ver"), (_build_fil_ver, "vanilla")],
)  # fmt: skip
def test_every_system_aggregates_its_base_with_that_noise(build, method, monkeypatch):
    """It comes as one vector per client, without weights, to the one mechanism that the flags describe."""
    from tffcl.algorithms import decomposed, fed_avg, fil_ver

    found = []

    for module in (decomposed, fed_avg, fil_ver):
        monkeypatch.setattr(module, "compose_continual_process", lambda work, factory, _: found.append(factory))
    made = []
    monkeypatch.setattr(
        tff.aggregators.DifferentiallyPrivateFactory,
        "gaussian_fixed",
        lambda noise, clients, clip: made.append((noise, clip)) or tff.aggregators.SumFactory(),
    )
    build(method)
    assert made == [(2.0, 0.5)]
    (factory,) = found
    assert isinstance(factory, tff.aggregators.UnweightedAggregationFactory)


def test_an_environment_that_forbids_noise_is_one_clear_error(monkeypatch):
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    base_privacy.check_environment(FedSeITOptions.parse([]))
    with pytest.raises(InputError, match="TF_DETERMINISTIC_OPS in the environment forbids any other; unset it"):
        base_privacy.check_environment(FedSeITOptions.parse(list(DP)))


@pytest.mark.slow
def test_a_whole_run_tells_epsilon(run, no_plots, tmp_path):
    args = ("--dataset", "digits", "--method", "finetune", "--hidden", "5", "--num-clients", "2", "--num-tasks", "2",
            "--num-rounds", "1", "--num-epochs", "1", "--output-dir", "run")  # fmt: skip
    done = run("run", "confedmade", *args, *DP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epsilon" in done.stdout.split("\n")[0]
    told = json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["base_updates"]
    # Two rounds of all clients, sensitivity two clips, noise of two clips: one Gaussian with a ratio of sqrt(2).
    # The root of its closed form (Balle, Wang, 2018, theorem 8) is 6.57297.
    assert told["epsilon"] == pytest.approx(6.57297, rel=1e-3)
    assert "privacy: the updates of the base are (6.57, 1e-05)-differentially private for a whole client" in done.stdout
    assert "not covered, nor what it tells: metrics and counts of examples" in done.stdout
