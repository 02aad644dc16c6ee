"""The leak table of FIL-VER: what an attacker who knows the encoder makes of what clients send.

Three disjoint sets of images of one domain, equally many of each label: the encoder is pre-trained on the first; the
second is sent, and is also the candidates among which each source is looked for; the third is the attacker's own, from
which it learns to reconstruct.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import click
import numpy as np

from tffcl import metrics, program, reports, storage, streams
from tffcl.datasets import Domains
from tffcl.errors import InputError, RunError
from tffcl.experiment import frozen
from tffcl.experiment.plan import Plan
from tffcl.flags import parse_run
from tffcl.papers.tables import check_names

logger = logging.getLogger(__name__)

ROWS = ("raw", "ebr", "stats", "sampled")
BETAS = (1e-4, 1e-3, 1e-2)
TIMES = (1, 6)  # how often the same example is sampled and sent
CANDIDATES = 3000
_PRE_TRAINING, _SENT, _OWN = range(3)  # the clients that stand for the three sets
_MEASURED = ("top1", "top5", "mean_rank", "r2")

Row = dict[str, Any]


def reproduce(only: Sequence[str], seeds: Sequence[int], flags: Sequence[str], root: pathlib.Path) -> None:
    """Measures what is missing, and prints the table; figures are means over seeds.

    Args:
      only: of `ROWS`; none for all.
      seeds: of pre-training, and of what is drawn.
      flags: of `tffcl run fil-ver`: data, sizes and pre-training.
      root: the folder that keeps what was measured, a file for each encoder and seed.

    Raises:
      InputError: no such row, or flags that `tffcl run fil-ver` does not take.
      RunError: what stands in the folder was measured with other settings, or nothing can be written there.
    """
    check_names(only, ROWS)
    wanted = list(only or ROWS)
    ebr = [row for row in ("raw", "ebr") if row in wanted]
    vee = [row for row in ("stats", "sampled") if row in wanted]
    encoders = [("ebr", None)] * bool(ebr) + [("fil-ver", beta) for beta in BETAS] * bool(vee)
    asked = [(_flags(method, beta, seed, flags), beta) for seed in seeds for method, beta in encoders]
    found = [_measured_or_kept(whole, beta, root) for whole, beta in asked]
    chosen = [row for rows in found for row in rows if row["name"] in wanted]
    click.echo(reports.leak_table(_means(chosen), markdown=True))
    click.echo(f"\nmeans over {len(seeds)} seed{'s' * (len(seeds) > 1)}; kept in {root}")


def _flags(method: str, beta: Optional[float], seed: int, flags: Sequence[str]) -> list[str]:
    own = [] if beta is None else ["--beta", str(beta)]
    return ["fil-ver", *flags, "--method", method, "--seed", str(seed), *own]


def _measured_or_kept(flags: Sequence[str], beta: Optional[float], root: pathlib.Path) -> list[Row]:
    """The rows of one encoder, from its file if it is there."""
    experiment = parse_run(flags)
    name = f"{experiment.method.name}{'' if beta is None else f'-beta{beta:g}'}-seed{experiment.seed}.json"
    path = root / name
    settings = json.loads(json.dumps({**experiment.config(), "dataset": experiment.data}))
    if path.exists():
        kept = storage.read_object(path, "kept measurements")
        if kept.get("settings") != settings or not isinstance(kept.get("rows"), list):
            raise RunError(f"{path} was measured with other settings: give another --output-dir")
        return kept["rows"]
    rows = measure(experiment.plan())
    storage.make_folder(root, "the folder of all measurements")
    storage.write_whole(path, json.dumps({"settings": settings, "rows": rows}, allow_nan=False).encode())
    return rows


def measure(plan: Plan) -> list[Row]:
    """Pre-trains the encoder of a plan on images of its first domain, and attacks what it gives.

    Returns:
      Rows of `tffcl.reports.leak_table`, and what `ROWS` calls each.
    """
    domains: Any = plan.dataset
    stream = three_sets(domains, plan.split_seed)
    one = dataclasses.replace(domains, domains=domains.domains[:1])
    plan.dataset, plan.stream = one, streams.TaskStream("pre-training", stream.tasks[:1])
    data = program.DomainClientData(one, stream)
    with plan.open_runtime():
        model = frozen.freeze(plan, True, False).model
        sent, own = (data.task(client, 0).train for client in (_SENT, _OWN))
        stats = [np.asarray(model.encoder.encode({}, examples), np.float64) for examples in (sent, own)]
    count = len(sent["label"])
    logger.info(
        "attack: %d images, told from each other by an attacker who knows the encoder and %d others",
        count, len(own["x"]),
    )  # fmt: skip
    raw = [examples["x"].reshape(len(examples["x"]), -1) / domains.max_value for examples in (sent, own)]
    labels = [examples["label"] for examples in (sent, own)]
    variational = plan.method.encoder == "variational"
    rows = []
    for name, times, link, vectors in _attacks(plan, raw, stats):
        r2 = metrics.reconstruction_r2(vectors[1], raw[1], labels[1], vectors[0], raw[0], labels[0], seed=plan.seed)
        found = {"top1": link.top1, "top5": link.top5, "mean_rank": link.mean_rank, "r2": r2}
        rows.append({"name": name, "sharing": name, "times": times, "candidates": count, **found,
                     "beta": plan.beta if variational and name != "raw" else None})  # fmt: skip
    return rows


def three_sets(domains: Domains, seed: int) -> streams.TaskStream:
    """Three clients with one task of disjoint images, `CANDIDATES` each or as many as there are.

    Raises:
      InputError: too few images for an attack.
    """
    labels = domains.domains[0].train_labels
    fewest = int(np.bincount(labels[labels >= 0], minlength=domains.num_labels).min())
    count = min(CANDIDATES, fewest // 3 * domains.num_labels)
    if not count:
        raise InputError(f"{domains.name}: {fewest} images of a label are too few to divide into three sets")
    return streams.domain_sequence(
        [labels], [domains.domains[0].test_labels], num_clients=3, examples_per_task=count, seed=seed
    )


def _attacks(
    plan: Plan, raw: Sequence[np.ndarray], stats: Sequence[np.ndarray]
) -> Iterator[tuple[str, int, metrics.LinkResult, Sequence[np.ndarray]]]:
    """Of everything that may be sent: its name, how often, the link, and what the two sets would send."""
    truth = np.arange(len(raw[0]))
    if plan.method.encoder != "variational":
        yield "raw", 1, metrics.link_by_distance(raw[0], raw[0], truth), raw
        yield "ebr", 1, metrics.link_by_distance(stats[0], stats[0], truth), stats
        return
    yield "stats", 1, metrics.link_by_distance(stats[0], stats[0], truth), stats
    size = plan.embedding_size
    rng = np.random.default_rng((plan.seed, 1))
    mean, log_scale = stats[0][:, :size], stats[0][:, size:]
    for times in TIMES:
        samples = [
            both[:, :size] + np.exp(both[:, size:]) * rng.standard_normal((times, len(both), size)) for both in stats
        ]
        link = metrics.link_by_likelihood(samples[0], mean, log_scale, truth)
        yield "sampled", times, link, [drawn.mean(axis=0) for drawn in samples]


def _means(rows: Sequence[Row]) -> list[Row]:
    """One row for all seeds, in the order of `ROWS`."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((ROWS.index(row["name"]), row["beta"] or 0.0, row["times"]), []).append(row)
    return [
        {**groups[key][0], **{name: float(np.mean([row[name] for row in groups[key]])) for name in _MEASURED}}
        for key in sorted(groups)
    ]
