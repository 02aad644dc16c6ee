from __future__ import annotations

import pytest

from tffcl import reports

UPDATES = {
    "epsilon": 8.391, "epsilon_participants_hidden": 2.0, "delta": 1e-5,
    "neighbouring": "all that one client has is replaced",
    "sampling": "a fixed number of clients, without replacement", "rounds": 4, "uncovered": ["adaptives", "metrics"],
}  # fmt: skip


def test_a_run_without_noise_has_nothing_to_say():
    assert reports.privacy_lines({"accuracy": []}) == []
    assert "epsilon" not in reports.results_table([{"method": "fedavg"}])


@pytest.mark.parametrize("hidden", [2.0, 8.391, None])
def test_updates_of_the_base(hidden):
    results = {"method": "fedavg", "privacy": {"base_updates": {**UPDATES, "epsilon_participants_hidden": hidden}}}
    (line,) = reports.privacy_lines(results)
    assert line.startswith(
        "privacy: the updates of the base are (8.39, 1e-05)-differentially private for a whole client"
    )
    assert "over 4 rounds, a fixed number of clients, without replacement" in line
    assert line.endswith("not covered, nor what it tells: adaptives, metrics")
    assert ("; 2 for whoever cannot know who took part" in line) == (hidden == 2.0)
    header, _, row = reports.results_table([results]).split("\n")
    assert (header.split()[1], row.split()[1]) == ("epsilon", "8.39")


def test_summaries():
    told = {"epsilon": 1.5, "delta": 1e-6, "neighbouring": "one document is replaced"}
    (line,) = reports.privacy_lines({"privacy": {"summaries": told}})
    assert "(1.5, 1e-06)-differentially private for each of its documents (one document is replaced)" in line
