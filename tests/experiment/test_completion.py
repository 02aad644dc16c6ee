"""What a run adds at its end: how often selections are of the same set and have a label in common."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tffcl.experiment import completion

LABELS = [[("s/a", "s/b"), ("r/a", "r/b")], [("r/a", "r/c"), ("s/c", "s/d")], [("r/c", "r/d"), ("r/b", "r/c")]]
ENTRIES = [(0, 0), (2, 0), (1, 0)]


def test_shares_of_selections_by_hand():
    # Client 0 in task 1 (r/a, r/b): entry 1 is of its set alone, entry 2 has a label in common; both of set r.
    # Client 1 (s/c, s/d): entry 0 is of its set alone, 1 of another. Client 2 is given nothing.
    found = completion.selection_shares(LABELS, ENTRIES, [[[], [], []], [[1, 2], [0, 1], []]])
    assert found == {"selection_same_domain": pytest.approx(0.75), "selection_label_overlap": pytest.approx(0.25)}
    assert set(completion.selection_shares(LABELS, [], [[[], [], []]]).values()) == {None}


@pytest.mark.parametrize(
    ("scenario", "num_foreign", "told"), [("mixed", 2, True), ("mixed", 0, False), ("non-iid", 2, False)]
)
def test_only_mixed_runs_with_foreign_entries_tell_them(scenario, num_foreign, told):
    plan = SimpleNamespace(
        scenario=scenario,
        method=SimpleNamespace(schedule="fedseit", own_network=False, pool="none"),
        stream=SimpleNamespace(named_labels=lambda names: LABELS),
        dataset=SimpleNamespace(label_names=()),
    )
    process = SimpleNamespace(num_foreign=num_foreign, work=None)
    state = SimpleNamespace(base=SimpleNamespace(entries=ENTRIES), selections=[[[], [], []], [[1], [], []]])
    more = completion.finish(plan, process, state, None)
    assert ("selection_same_domain" in more) == ("selection_label_overlap" in more) == told
