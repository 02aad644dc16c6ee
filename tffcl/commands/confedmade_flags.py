"""Every flag of `tffcl run confedmade`, and how its text is read; what they mean together stands in the options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional, Union

import click

from tffcl.commands import run_options
from tffcl.commands.run_options import WHOLE, ByCase

# In the order of the paper's table 3, from below.
DECOMPOSED = ("confedmade", "fedweit-made-sync", "fedweit-made")
FEDERATED = ("finetune", "fedprox-ewc", "fedcurv", "fedprox", "replay")
SINGLE = ("cl-finetune", "cl-ewc", "cl-replay")
POOLED = ("federated-offline", "offline")
METHODS = (*DECOMPOSED, *FEDERATED, *SINGLE, *POOLED)

# Image sets by name, two of them in one sequence, and the four binary sets as a sequence.
DATASETS = (
    "digits",
    "mnist",
    "fashion-mnist",
    "emnist-letters",
    "emnist-balanced",
    "mnist+letters",
    "binary",
)
Order = Union[str, tuple[int, ...]]
Assigned = tuple[tuple[tuple[str, ...], ...], ...]  # [client][task][label]


def _hidden(context: Any, parameter: Any, given: Iterable[str]) -> Optional[tuple[int, ...]]:
    """Units of each layer, from `--hidden 400 --hidden 200` as from `--hidden 400,200`."""
    texts = [text.strip() for one in given for text in one.split(",")]
    if texts == ["none"]:
        return ()
    if not all(text.isdecimal() and int(text) > 0 for text in texts):
        raise click.BadParameter(
            f"a layer needs 1 unit or more; found {', '.join(texts)}", context, parameter
        )
    return tuple(map(int, texts)) or None


def _order(context: Any, parameter: Any, given: str) -> Order:
    """natural, random, or a permutation of 1..D."""
    if given in ("natural", "random"):
        return given
    texts = given.replace(",", " ").split()
    places = [int(text) for text in texts if text.isdecimal()]
    if len(places) < len(texts) or sorted(places) != list(range(1, len(texts) + 1)) or not texts:
        shown = given if len(given) < 60 else f"{given[:57]}..."
        raise click.BadParameter(
            f"{shown!r} is neither 'natural', 'random' nor a permutation of 1..{max(1, len(texts))}",
            context,
            parameter,
        )
    return tuple(places)


def _assigned(context: Any, parameter: Any, given: Iterable[str]) -> Assigned:
    """Labels by client and task, from `--assign 0,1+2 --assign 1,0`."""
    clients = [
        tuple(tuple(name.strip() for name in task.split("+")) for task in one.split(",")) for one in given
    ]
    if len({len(tasks) for tasks in clients}) > 1:
        raise click.BadParameter("every client needs as many tasks as the others", context, parameter)
    return tuple(clients)


# Defaults are those of `tffcl.algorithms.made`; the paper names neither mu of FedProx nor lambda of EWC and FedCurv.
# For digits, 8 x 8 pixels and about 50 pictures a task, a small network and many steps in few rounds.
AGNOSTIC, FED_CURV = "with OA or CA", "for fedcurv"
FLAGS = (
    click.option(
        "--method", type=click.Choice(METHODS), default="confedmade", show_default=True,
        help="The method; cl-... learn the first client's sequence alone, offline ones all tasks at once.",
    ),
    click.option(
        "--dataset", type=click.Choice(DATASETS),
        help="The data; binary is adult, connect4, tretail and rcv1."
        "  [default: mnist; digits, which needs no files, where it is not at hand]",
    ),
    run_options.DATA_DIR,
    click.option(
        "--binarise", type=click.Choice(["threshold", "stochastic"]), default="threshold", show_default=True,
        help="How pixels become 0 or 1: at half intensity, or drawn once with --split-seed.",
    ),
    click.option(
        "--hidden", cls=ByCase, by_case={"": (400,), "for digits": (100,), "for binary": (100,)},
        multiple=True, callback=_hidden, metavar="N[,N...]",
        help="Units of each hidden layer; 'none' for direct connections alone.",
    ),
    click.option(
        "--direct/--no-direct", default=True, show_default=True, help="DC: inputs connected to outputs, too."
    ),
    click.option(
        "--order", default="natural", show_default=True, callback=_order, metavar="natural|random|N,N,...",
        help="Places of the inputs; a list is a permutation of 1..D.",
    ),
    click.option("--order-agnostic", is_flag=True, help="OA: every mask has an order of its own."),
    click.option("--connectivity-agnostic", is_flag=True, help="CA: every mask numbers hidden units anew."),
    click.option(
        "--num-masks", cls=ByCase, by_case={"": 1, AGNOSTIC: 8}, type=WHOLE,
        help="Masks that training goes through and evaluation averages over.",
    ),
    click.option(
        "--distinct-masks", is_flag=True, help="Each client draws its own masks, instead of the server's for all."
    ),
    click.option("--num-clients", type=WHOLE, default=3, show_default=True, help="Clients."),
    click.option(
        "--num-tasks", cls=ByCase, by_case={"": 5, "for binary": 4}, type=WHOLE, help="Tasks of each client."
    ),
    click.option("--labels-per-task", type=WHOLE, default=1, show_default=True, help="Labels of each task."),
    click.option("--same-order", is_flag=True, help="All clients learn the same labels in the same order."),
    click.option(
        "--overlap", type=click.FloatRange(0, 1), default=0.0, show_default=True,
        help="Share of a label's examples that all who hold it get; 1 divides nothing.",
    ),
    click.option(
        "--assign", multiple=True, callback=_assigned, metavar="TASK,TASK,...",
        help="The tasks of one client, once for each client, in the place of a draw; a task is a label, or several "
        "joined by '+'.",
    ),
    click.option(
        "--num-rounds", cls=ByCase, by_case={"": 20, "for digits": 5}, type=WHOLE, help="Rounds for each task."
    ),
    click.option(
        "--num-epochs", cls=ByCase, by_case={"": 1, "for digits": 20}, type=WHOLE,
        help="Epochs of a client in a round.",
    ),
    click.option(
        "--batch-size", cls=ByCase, by_case={"": 100, "for digits": 20}, type=WHOLE, help="Examples in a step."
    ),
    click.option(
        "--learning-rate", cls=ByCase, by_case={"": 5e-3}, type=float, help="Of Adam, at a task's start."
    ),
    click.option(
        "--patience", cls=ByCase, by_case={"": 1, "for digits": 0}, type=click.IntRange(min=0),
        help="Epochs without a better validation loss before the learning rate falls; 0 for never.",
    ),
    click.option(
        "--sparsity", cls=ByCase, by_case={"": 1e-4}, type=float, help="lambda_1: mask and adaptive."
    ),
    click.option(
        "--retention", cls=ByCase, by_case={"": 100.0}, type=float, help="lambda_2: against forgetting."
    ),
    click.option(
        "--gate-cutoff", cls=ByCase, by_case={"": 0.25}, type=click.FloatRange(0, 1, max_open=True),
        help="Units of B whose m is at most this are not sent (table 4).",
    ),
    click.option(
        "--selection", type=click.Choice(["all", "sampled"]), default="all", show_default=True,
        help="Foreign adaptives: all past tasks of all other clients, or --top-k of them, drawn for each task.",
    ),
    click.option("--top-k", type=WHOLE, default=3, show_default=True, help="K of --selection sampled."),
    click.option(
        "--penalty", cls=ByCase, by_case={"": 100.0, FED_CURV: 1.0}, type=float,
        help="Weight of EWC or FedCurv, in the methods that have it.",
    ),
    click.option(
        "--proximal", cls=ByCase, by_case={"": 0.01}, type=float, help="mu of FedProx, in the methods that have it."
    ),
    run_options.DP_BASE,
    run_options.CLIENTS_PER_ROUND,
    run_options.evaluate_every("task"),
    run_options.seed("Of everything that is drawn in training."),
    run_options.SPLIT_SEED,
    run_options.RUNTIME,
    run_options.OUTPUT_DIR,
    run_options.RESUME,
)  # fmt: skip
