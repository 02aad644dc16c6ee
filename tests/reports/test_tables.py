"""Tables, cell by cell."""

import pytest

from tffcl import reports
from tffcl.errors import InputError

FEDSEIT = {
    "method": "fedseit",
    "dataset": "trec6",
    "seed": 1,
    "num_clients": 2,
    "num_tasks": 2,
    "accuracy": [[[0.9, None], [0.8, 0.7]], [[0.5, None], [None, 0.6]]],
    "task_averaged_test_accuracy": 0.7,
    "forgetting": 0.1,
    "bytes_up": {"0": [1_500_000, 500_000]},
    "bytes_down": 999,
    "seconds": {"total": 12.34, "per_client_epoch": 0.08},
}
MADE = {
    "method": "confedmade",
    "dataset": "mnist",
    "seed": 1,
    "nll": [[[98.8]]],
    "average_nll": 98.765,
    "forgetting": float("nan"),
    "seconds": 250.0,
}


def test_results_as_text():
    assert reports.results_table([FEDSEIT]).splitlines() == [
        "method   dataset  seed  clients x tasks  TTA %  forgotten %  sent up  sent down  seconds in rounds",
        "-------  -------  ----  ---------------  -----  -----------  -------  ---------  -----------------",
        "fedseit  trec6       1            2 x 2   70.0         10.0     2 MB      999 B               12.3",
    ]


def test_densities_have_columns_of_their_own_and_no_data_is_a_dash():
    table = reports.results_table([FEDSEIT, MADE], form="markdown").splitlines()
    header, _, first, second = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    assert dict(zip(header, second)) == {
        "method": "confedmade",
        "dataset": "mnist",
        "seed": "1",
        "clients x tasks": "-",
        "TTA %": "-",
        "NLL nats": "98.77",
        "forgotten %": "-",
        "sent up": "-",
        "sent down": "-",
        "seconds in rounds": "250",
    }
    assert dict(zip(header, first))["NLL nats"] == "-"


def test_markdown_keeps_a_bar_in_a_name_inside_its_cell():
    assert r"a\|b" in reports.results_table([{"method": "a|b"}], form="markdown")


def test_accuracy_matrix_is_the_mean_of_what_is_known():
    rows = [line.split() for line in reports.accuracy_matrix_table(FEDSEIT).splitlines()]
    assert rows[2] == ["after", "task", "1", "70.0", "-"]
    assert rows[3] == ["after", "task", "2", "80.0", "65.0"]
    rows = [line.split() for line in reports.accuracy_matrix_table(FEDSEIT, client=1).splitlines()]
    assert rows[3] == ["after", "task", "2", "-", "60.0"]
    assert "NLL nats" in reports.accuracy_matrix_table(MADE)
    assert "98.80" in reports.accuracy_matrix_table(MADE)


def test_wrong_requests():
    with pytest.raises(InputError, match="at least one run"):
        reports.results_table([])
    with pytest.raises(InputError, match="client 2 is not in the results; clients are 0..1"):
        reports.accuracy_matrix_table(FEDSEIT, client=2)
    with pytest.raises(InputError, match="neither 'accuracy' nor 'nll'"):
        reports.accuracy_matrix_table({"method": "fedseit"})


# -- leaks and noise ------------------------------------------------------------------------------------------

LEAKS = [
    {"sharing": "raw", "beta": None, "times": 1, "top1": 1.0, "r2": 1.0},
    {"sharing": "sampled", "beta": 1e-4, "times": 6, "top1": 0.9988, "r2": -0.004},
]


def test_cells_as_markdown_and_text():
    assert reports.leak_table(LEAKS, form="markdown").splitlines() == [
        "| sharing |   beta | sent | top-1 % |   R2 |",
        "|:--------|-------:|-----:|--------:|-----:|",
        "| raw     |      - |   1x |   100.0 | 1.00 |",
        "| sampled | 0.0001 |   6x |    99.9 | 0.00 |",
    ]
    assert reports.leak_table(LEAKS).splitlines()[2].split() == ["raw", "-", "1x", "100.0", "1.00"]


def test_columns_that_some_row_has():
    more = {**LEAKS[1], "epsilon": 9.99726, "candidates": 3000, "top5": 1, "mean_rank": 1.25}
    header, _, raw, sampled = reports.leak_table([LEAKS[0], more], form="markdown").splitlines()
    header, raw, sampled = ([cell.strip() for cell in line.strip("|").split("|")] for line in (header, raw, sampled))
    assert dict(zip(header, sampled)) == {
        "sharing": "sampled",
        "beta": "0.0001",
        "epsilon": "10",
        "sent": "6x",
        "candidates": "3,000",
        "top-1 %": "99.9",
        "top-5 %": "100.0",
        "mean rank": "1.2",
        "R2": "0.00",
    }
    assert dict(zip(header, raw))["candidates"] == "-"


def test_rows_that_lack_something():
    with pytest.raises(InputError, match="at least one row"):
        reports.leak_table([])
    with pytest.raises(InputError, match="row 2 of the leak table has no times, top1"):
        reports.leak_table([LEAKS[0], {"sharing": "raw", "r2": 0.5}])


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
