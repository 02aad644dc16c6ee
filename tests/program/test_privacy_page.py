"""docs/privacy.md against the types of what crosses, and against what runs record."""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest
import rehearsing
import small
import systems
from placements import leaves, tensors, ways_out

from tffcl import archive, runtime
from tffcl.algorithms import build_afcl, build_confedmade, build_fed_avg, build_fil_ver, build_fot, build_target
from tffcl.client_works import EWC, EmbeddingPrivacy, FedCurv, LocalTraining, LwF
from tffcl.finalizers import ServerSideTraining
from tffcl.models import FrozenEncoder, IdentityEncoder, MADEConfig, TextCNN, Whole, with_label_mask
from tffcl.program import run_program
from tffcl.program.client_files import over_handles
from tffcl.templates.messages import entries
from tffcl.transfers import SIT, CentroidPrivacy, NoTransfer

pytestmark = pytest.mark.slow

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "privacy.md"
TRAINING = LocalTraining(num_epochs=1, batch_size=4, learning_rate=0.01, patience=0)
# Between them they have every entry of a state, every metric and every kind of upload.
PROCESSES = {
    "confedmade": (
        systems.bits, lambda: build_confedmade(MADEConfig(4, (5,)), num_foreign=1, training=TRAINING),
        SIT(k=1, q=2, privacy=CentroidPrivacy(1.0, 1.0)),
    ),
    "fed_avg": (
        systems.documents,
        lambda: build_fed_avg(
            with_label_mask(TextCNN(small.config(), 0), growing=True), training=TRAINING,
            penalty=[EWC(1.0), FedCurv(1.0), LwF(1.0)],
        ),
        NoTransfer(),
    ),
    "target": (
        systems.documents,
        lambda: build_target(
            with_label_mask(Whole(TextCNN(small.config(), 0)), growing=True), training=TRAINING,
            synthetic_examples=4, generator_steps=1,
        ),
        NoTransfer(),
    ),
    "afcl": (
        systems.vectors,
        lambda: build_afcl(FrozenEncoder(IdentityEncoder((2, 2)), np.zeros(0, np.float32)), 3, width=4),
        NoTransfer(),
    ),
    "fot": (systems.documents, lambda: build_fot(TextCNN(small.config(), 0), training=TRAINING), NoTransfer()),
    "fil-ver": (
        systems.vectors,
        lambda: build_fil_ver(
            rehearsing.model(), client_memory=4, training=TRAINING, privacy=EmbeddingPrivacy(1.0, 1.0),
            server_side_training=ServerSideTraining(steps=1, memory=9),
        ),
        NoTransfer(),
    ),
}  # fmt: skip


def table(heading):
    """Rows of the table whose first column has that heading: (names in code font, all cells)."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return rows
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append(([] if cells[1].startswith("in `") else re.findall(r"`([a-z_]+)`", cells[1]), cells))
    return rows


def names(rows):
    return {name for found, _ in rows for name in found}


@pytest.fixture(name="made", scope="module")
def _made(tff_context):
    """Each process."""
    return {name: build() for name, (_, build, _) in PROCESSES.items()}


@pytest.fixture(name="folders", scope="module")
def _folders(made, tmp_path_factory):
    """Directories of runs that between them record everything."""
    folders = {}
    with runtime.in_process():
        for name in ("confedmade", "fil-ver"):
            make, _, transfer = PROCESSES[name]
            folders[name] = tmp_path_factory.mktemp(name) / "run"
            run_program(
                made[name], systems.Data(make), transfer, num_rounds=1, seed=1, reporters=[],
                output_dir=folders[name], keep="all", summarise=lambda one: one.train["x"].astype(np.float32),
            )  # fmt: skip
    return folders


def last(kinds):
    return {path.split("/")[-1] for path in kinds}


def crossing(process):
    """Names of all that leaves a client."""
    message = tensors(process.message_type, "")
    update, weight = last(path for path in message if path.startswith("0/")), {"weight"}
    uploads = leaves(over_handles(process).end_task.type_signature.result[1])
    scores = leaves(process.evaluate.type_signature.result)
    told = leaves(process.next.type_signature.result[2])
    return update | weight | last(uploads) | last(scores) | last(told)


def test_all_that_crosses_is_on_the_page(made):
    listed = names(table("value"))
    assert listed == {"centroids"}.union(*map(crossing, made.values()))


def test_clients_reach_the_server_in_rounds_and_nowhere_else(made):
    """By aggregation; the rest is for each client by itself, and goes to the program as the table says."""
    process = made["confedmade"]
    assert ways_out(process.next)
    for name in ("initialize_clients", "begin_task", "prepare", "end_task", "evaluate"):
        assert not ways_out(getattr(process, name)), name


def test_all_that_a_client_keeps_is_on_the_page_and_what_never_leaves_it_does_not(made):
    rows = table("what a client keeps")
    assert names(rows) == set().union(*(entries(process.client_state_type) for process in made.values()))
    never = {name for found, cells in rows for name in found if cells[2].startswith("never")}
    assert never >= {"mask_logits", "local", "ewc_fisher", "memory_vectors", "secret"}
    assert not never & names(table("value"))


RARE = {"not_reported", "worker_failures", "left_out_reasons", "nothing_learned"}  # of clients and workers that fail


def test_all_that_a_history_has_is_on_the_page(folders):
    recorded = table("what a run records")
    of_rounds = names(recorded[:2]) | {"examples", "remembered"} | names(
        [row for row in table("value") if row[1][0].startswith("how a round went")]
    )  # fmt: skip
    of_tasks = names(recorded[1:3]) | {"event", "task", "bytes_up", "bytes_up_dense", "seconds"}
    seen = set()
    for folder in folders.values():
        for line in map(json.loads, (folder / "history.jsonl").read_text().splitlines()):
            assert set(line) <= (of_rounds if line["event"] == "round" else of_tasks), line["event"]
            seen |= set(line)
    assert names(recorded[:3]) - seen == RARE


def test_all_that_a_checkpoint_has_is_on_the_page(folders, made):
    recorded = table("what a run records")
    of_program = names(recorded[3:])
    seen = set()
    for name, folder in folders.items():
        for path in (folder / "checkpoints").glob("*.npz"):
            if path.name.startswith("client-"):
                assert set(archive.read(path)) <= set(entries(made[name].client_state_type))
            else:
                seen |= {key.split("/")[0] for key in archive.read(path)}
    assert seen == of_program
