"""`tffcl reproduce fil-ver`: figures 5, 7 and 8 of Park et al., 2021 (FIL-VER), as tables.

The paper prints figures only. The last column is what an independent version in plain TensorFlow, without any
federation framework, gave on Fashion-MNIST, give or take 3 points: the average over the tasks after the last one.

Where each figure comes from:
- average: accuracy (%) after the last task, mean over tasks and clients.
- task 1, task 2, ...: accuracy (%) on a task after the last one, mean over the clients that have it; of pooled tasks,
  of the one model on each original one.
- over ver-12-epochs, over ver: the average less that of a method without SST, seed by seed.
- MB up: all that all clients sent in the whole run.
- client kB, server kB: what the client with most, and the server, hold for rehearsal at the end, as they hold it;
  "as raw images" is one byte for each pixel of as many images.
- epsilon: at delta 1e-5, of each vector by itself.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

import click
import numpy as np

from tffcl import metrics, program, reports, storage, streams
from tffcl.algorithms.fil_ver import STUDY
from tffcl.datasets import Domains
from tffcl.errors import InputError, RunError
from tffcl.experiment.groups import ENROLLMENTS
from tffcl.flags import parse_run
from tffcl.papers.tables import Found, Measure, Row, Table, check_names, megabytes_up, percent

if TYPE_CHECKING:
    from tffcl.experiment.plan import Plan

logger = logging.getLogger(__name__)

_METHODS = ("vanilla", "ver", "ver-stats", "fil-ver", "ebr-no-sst", "ebr", "offline", "offline-ebr",
            "offline-end-to-end")  # fmt: skip
_PLAIN = {
    "rotations": ("31-36", "51-53", "56-59", "57-65", "-", "64-67", "62-68", "76", "80"),
    "permutations": ("43", "49", "54", "53-54", "-", "62", "61", "72", "79"),
    "mild": ("69", "70", "-", "72", "-", "-", "77", "-", "-"),
}
_CLASSES = ("--data", "mnist+fashion")
_FASHION = ("--data", "fashion-mnist")
# The standard deviation of the noise on each vector, in units of the norm that it is clipped to.
_NOISE = ("0.02", "0.1", "0.5")
_CLIP = "10"


def table(name: str) -> Table:
    """One of `tffcl.papers.FIL_VER_TABLES` but "leak", which takes no runs (`reproduce_leak`)."""
    if name == "enrollment":
        return _enrollment()
    if name == "permuted":
        return _permuted()
    if name == "privacy":
        return _privacy()
    if name == "pretraining":
        return _pretraining()
    data = _CLASSES if name == "classes" else (*_FASHION, "--domains", name)
    printed: list[tuple[str, ...]] = [(each,) for each in _PLAIN.get(name, ())] or [()] * len(_METHODS)
    rows = [Row(method, (method,), (*_run(method), *data), plain, name) for method, plain in zip(_METHODS, printed)]
    if name == "classes":
        rows = [*_compared(rows), *(
            Row(f"ver-{epochs}-epochs", (f"ver, {epochs} epochs a round",),
                (*_run("ver"), *data, "--num-epochs", str(epochs)), (), name)
            for epochs in _AS_MANY_STEPS
        )]  # fmt: skip
    measures = ("average", "forgotten", "task 1", "task 2", "task 3", "task 4", "MB up", "client kB", "server kB")
    return _table(("method",), measures, rows, "over ver-12-epochs" if name == "classes" else "")


# Epochs of a round with which clients without SST take as many steps more as SST takes at the server, 100: from task 2
# on, where a client has 600 rows and 10 batches, and in task 1, where it has 5.
_AS_MANY_STEPS = (12, 22)


def _compared(rows: Sequence[Row]) -> list[Row]:
    """Rows on the variational encoder beside VER with as many steps at the clients."""
    others = ("ebr-no-sst", "ebr", "offline-ebr", "offline-end-to-end")
    return [row if row.name in others else dataclasses.replace(row, control="ver-12-epochs") for row in rows]


def _pretraining() -> Table:
    """What the epochs of pre-training are chosen by: examples that clients hold out of each task."""
    chosen = ("--evaluate-on", "validation", "--validation-share", "0.1667")
    rows = [
        Row(f"{name}-{epochs}", (name, str(epochs)),
            (*_run("fil-ver"), *data, *chosen, "--pretraining-epochs", str(epochs)))
        for name, data in (("classes", _CLASSES), ("rotations", (*_FASHION, "--domains", "rotations")))
        for epochs in (1, 2, 4, 8)
    ]  # fmt: skip
    return _table(("tasks", "epochs"), ("average", "forgotten", "task 1", "task 2", "task 3", "task 4"), rows)


def _run(method: str) -> tuple[str, ...]:
    return ("fil-ver", "--method", method)


def _enrollment() -> Table:
    """Figure 8: who is there when, on one encoder."""
    rows = [
        Row(
            f"{scenario}-{method}",
            (scenario, method),
            (*_run(method), *_CLASSES, "--enrollment", scenario, "--pretraining-clients", "all"),
            group=scenario,
            control="" if method == "ver" else f"{scenario}-ver",
        )
        for scenario in ENROLLMENTS
        for method in ("vanilla", "ver", "fil-ver")
    ]
    measures = ("average", "forgotten", "task 1", "task 2", "task 3", "task 4", "MB up")
    return _table(("scenario", "method"), measures, rows, "over ver")


def _permuted() -> Table:
    """Figure 5: one client, ten permutations of MNIST."""
    rows = [Row(method, (method,), (*_run(method), "--data", "mnist"), group="permuted") for method in STUDY]
    measures = ("average", "forgotten", "task 1", "task 5", "task 10", "rows", "client kB", "as raw images kB")
    return _table(("rehearsal",), measures, rows)


def _privacy() -> Table:
    """What noise on the vectors that are sent guarantees, and what it costs."""
    flags = (*_FASHION, "--domains", "rotations")
    rows = [Row("fil-ver", ("fil-ver",), (*_run("fil-ver"), *flags), group="privacy")]
    rows += [
        Row(
            f"noise-{noise}",
            (f"clip {_CLIP}, noise {noise}",),
            (*_run("fil-ver"), *flags, "--dp-clip", _CLIP, "--dp-noise-multiplier", noise),
            group="privacy",
        )
        for noise in _NOISE
    ]
    rows.append(Row("ver", ("no SST",), (*_run("ver"), *flags), group="privacy"))
    return _table(("sent",), ("epsilon", "average", "forgotten"), rows)


def _table(left: Sequence[str], measures: Sequence[str], rows: Sequence[Row], compared: str = "") -> Table:
    chosen = {name: (_MEASURES[name], 2 if name == "MB up" else 1) for name in measures}
    return Table(
        tuple(left), chosen, ("plain TensorFlow",), tuple(rows), _draw, {"average": compared} if compared else {}
    )


def _draw(found: Found, root: pathlib.Path) -> list[pathlib.Path]:
    """The runs of the first seed of each group side by side."""
    groups: dict[str, list[pathlib.Path]] = {}
    for row, folders in found.items():
        if folders:
            groups.setdefault(row.group, []).append(folders[0])
    return [
        path for group, folders in groups.items() for path in reports.compare_plots(folders, root / f"plots-{group}")
    ]


def _task(number: int) -> Measure:
    def measure(folder: pathlib.Path) -> Optional[float]:
        row = reports.load_results(folder)["accuracy_by_task"][-1]
        return 100 * row[number - 1] if number <= len(row) and row[number - 1] is not None else None

    return measure


def _memory(name: str, unit: float = 1e3) -> Measure:
    return lambda folder: reports.load_results(folder)["memory"][name] / unit or None


_MEASURES: dict[str, Measure] = {
    **{f"task {number}": _task(number) for number in range(1, 11)},
    "average": percent("average_accuracy_by_task"),
    "forgotten": percent("forgetting"),
    "MB up": megabytes_up,
    "rows": _memory("client_rows", 1),
    "client kB": _memory("client"),
    "server kB": _memory("server"),
    "as raw images kB": _memory("client_raw_images"),
    "epsilon": lambda folder: reports.load_results(folder)["config"]["dp_epsilon"],
}


# -- leak ---------------------------------------------------------------------------------------------------------
# What an attacker who knows the encoder makes of what clients send. Three disjoint sets of images of one domain,
# equally many of each label: the encoder is pre-trained on the first; the second is sent, and is also the candidates
# among which each source is looked for; the third is the attacker's own, from which it learns to reconstruct.

LEAK_ROWS = ("raw", "ebr", "stats", "sampled")
BETAS = (1e-4, 1e-3, 1e-2)
TIMES = (1, 6)  # how often the same example is sampled and sent
CANDIDATES = 3000
_PRE_TRAINING, _SENT, _OWN = range(3)  # the clients that stand for the three sets
_MEASURED = ("top1", "top5", "mean_rank", "r2")

Measured = dict[str, Any]


def reproduce_leak(only: Sequence[str], seeds: Sequence[int], flags: Sequence[str], root: pathlib.Path) -> None:
    """Measures what is missing, and prints the table; figures are means over seeds.

    Args:
      only: of `LEAK_ROWS`; none for all.
      seeds: of pre-training, and of what is drawn.
      flags: of `tffcl run fil-ver`: data, sizes and pre-training.
      root: the folder that keeps what was measured, a file for each encoder and seed.

    Raises:
      InputError: no such row, or flags that `tffcl run fil-ver` does not take.
      RunError: what stands in the folder was measured with other settings, or nothing can be written there.
    """
    check_names(only, LEAK_ROWS)
    wanted = list(only or LEAK_ROWS)
    ebr = [row for row in ("raw", "ebr") if row in wanted]
    vee = [row for row in ("stats", "sampled") if row in wanted]
    encoders = [("ebr", None)] * bool(ebr) + [("fil-ver", beta) for beta in BETAS] * bool(vee)
    asked = [(_flags(method, beta, seed, flags), beta) for seed in seeds for method, beta in encoders]
    found = [_measured_or_kept(whole, beta, root) for whole, beta in asked]
    chosen = [row for rows in found for row in rows if row["name"] in wanted]
    click.echo(reports.leak_table(_means(chosen), form="markdown"))
    click.echo(f"\nmeans over {len(seeds)} seed{'s' * (len(seeds) > 1)}; kept in {root}")


def _flags(method: str, beta: Optional[float], seed: int, flags: Sequence[str]) -> list[str]:
    own = [] if beta is None else ["--beta", str(beta)]
    return ["fil-ver", *flags, "--method", method, "--seed", str(seed), *own]


def _measured_or_kept(flags: Sequence[str], beta: Optional[float], root: pathlib.Path) -> list[Measured]:
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


def measure(plan: Plan) -> list[Measured]:
    """Pre-trains the encoder of a plan on images of its first domain, and attacks what it gives.

    Returns:
      Rows of `tffcl.reports.leak_table`, and what `LEAK_ROWS` calls each.
    """
    from tffcl.experiment import frozen  # TensorFlow comes now

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


def _means(rows: Sequence[Measured]) -> list[Measured]:
    """One row for all seeds, in the order of `LEAK_ROWS`."""
    groups: dict[tuple, list[Measured]] = {}
    for row in rows:
        groups.setdefault((LEAK_ROWS.index(row["name"]), row["beta"] or 0.0, row["times"]), []).append(row)
    return [
        {**groups[key][0], **{name: float(np.mean([row[name] for row in groups[key]])) for name in _MEASURED}}
        for key in sorted(groups)
    ]
