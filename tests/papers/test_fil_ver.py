"""`tffcl reproduce fil-ver --table leak`: three disjoint sets, and what an attacker makes of what is sent."""

from __future__ import annotations

import numpy as np
import pytest

from tffcl import datasets
from tffcl.errors import InputError, RunError
from tffcl.papers import fil_ver

SMALL = ("--data", "digits", "--hidden", "8", "--filters", "4", "--embedding-size", "8", "--pretraining-epochs", "1",
         "--runtime", "in-process")  # fmt: skip


def test_three_disjoint_sets_of_equal_size():
    domains = datasets.mild(datasets.load_images("digits"))
    stream = fil_ver.three_sets(domains, 42)
    sets = [set(stream.task(client, 0).train.tolist()) for client in range(3)]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 3 * 460
    labels = domains.domains[0].train_labels
    assert all(np.bincount(labels[sorted(rows)]).tolist() == [46] * 10 for rows in sets)


def test_means_over_seeds_in_the_order_of_the_rows():
    def row(name, beta, top1):
        return {"name": name, "beta": beta, "times": 1, "top1": top1, "top5": 1.0, "mean_rank": 1.0, "r2": 0.5}

    rows = [row("sampled", 1e-4, 0.9), row("raw", None, 1.0), row("sampled", 1e-4, 0.8), row("stats", 1e-3, 1.0)]
    means = fil_ver._means(rows)
    assert [one["name"] for one in means] == ["raw", "stats", "sampled"]
    assert means[2]["top1"] == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("rows", "flags", "words"),
    [(["samples"], [], "'samples' is none of raw, ebr"), (["raw"], ["--learning-rate", "0"], "a number above 0")],
)
def test_wrong_rows_and_flags(tmp_path, rows, flags, words):
    with pytest.raises(Exception, match=words) as error:
        fil_ver.reproduce_leak(rows, [1], flags, tmp_path)
    assert isinstance(error.value, InputError) or "Bad" in type(error.value).__name__


@pytest.mark.slow
def test_the_leak_of_an_encoder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fil_ver, "CANDIDATES", 200)
    monkeypatch.setattr(fil_ver, "BETAS", (1e-2,))
    fil_ver.reproduce_leak(["stats", "sampled"], [1], SMALL, tmp_path)
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| s")][1:]
    assert [(row[0].strip(), row[1].strip(), row[2].strip()) for row in rows] == [
        ("stats", "0.01", "1x"), ("sampled", "0.01", "1x"), ("sampled", "0.01", "6x"),
    ]  # fmt: skip
    top1 = [float(row[4]) for row in rows]
    # What has no noise is always linked; six samples tell more than one, and one more than chance.
    assert top1[0] == 100
    assert 100 / 200 < top1[1] < top1[2] <= 100
    # What has been measured is not measured again, and not mixed with other settings.
    monkeypatch.setattr(fil_ver, "measure", None)
    fil_ver.reproduce_leak(["sampled"], [1], SMALL, tmp_path)
    kept = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| sampled")]
    assert [float(line.split("|")[5]) for line in kept] == top1[1:]
    with pytest.raises(RunError, match="other settings"):
        fil_ver.reproduce_leak(["sampled"], [1], (*SMALL, "--pretraining-epochs", "2"), tmp_path)
