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
        "method   dataset  seed  clients x tasks  TTA %  forgotten %  sent up  sent down  seconds",
        "-------  -------  ----  ---------------  -----  -----------  -------  ---------  -------",
        "fedseit  trec6       1            2 x 2   70.0         10.0     2 MB      999 B     12.3",
    ]


def test_densities_have_columns_of_their_own_and_no_data_is_a_dash():
    table = reports.results_table([FEDSEIT, MADE], markdown=True).splitlines()
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
        "seconds": "250",
    }
    assert dict(zip(header, first))["NLL nats"] == "-"


def test_markdown_keeps_a_bar_in_a_name_inside_its_cell():
    assert r"a\|b" in reports.results_table([{"method": "a|b"}], markdown=True)


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
