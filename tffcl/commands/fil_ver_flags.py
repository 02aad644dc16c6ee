"""Every flag of `tffcl run fil-ver`, and how its text is read; what they mean together stands in the options."""

from __future__ import annotations

from typing import Any, Optional

import click

from tffcl.commands import run_options
from tffcl.commands.run_options import WHOLE, ByCase

# What clients send for rehearsal at the server, by method; the first three trust a variational encoder (VEE).
SHARED = {"fil-ver": "sampled", "ver-stats": "stats", "ver": "none", "ebr": "embeddings", "ebr-no-sst": "none",
          "vanilla": "none"}  # fmt: skip
OFFLINE = ("offline", "offline-ebr", "offline-end-to-end")
# Section 5.1: one client, ever new permutations of the pixels. What rehearses, and through which encoder.
STUDY = ("none", "noise", "random-encoder", "naive", "naive-end-to-end", "ebr-1x", "ebr-16x")
METHODS = (*SHARED, *OFFLINE, *STUDY)
VARIATIONAL = ("fil-ver", "ver-stats", "ver", "vanilla", "offline")
END_TO_END = ("offline-end-to-end", "naive-end-to-end")  # nothing is pre-trained, nothing frozen

DATASETS = ("digits", "mnist", "fashion-mnist", "emnist-balanced", "mnist+fashion")
CLASSES = ("emnist-balanced", "mnist+fashion")  # where other classes come under the same labels
DOMAINS = ("rotations", "permutations", "mild", "classes")
SCENARIOS = ("full", "decreasing", "increasing", "scattered")


def _widths(context: Any, parameter: Any, given: Optional[str]) -> Optional[tuple[int, ...]]:
    """Sizes of layers, from `--hidden 1000,1000`."""
    if given is None:
        return None
    texts = [text.strip() for text in given.split(",")]
    if not all(text.isdecimal() and int(text) > 0 for text in texts):
        raise click.BadParameter(f"a layer needs 1 or more; found {', '.join(texts)}", context, parameter)
    return tuple(map(int, texts))


# Defaults are the sizes of section 5, with a schedule for two cores in the place of its 50 rounds. For digits, 8 x 8
# pixels and 1,442 of them in all, a small network and many steps in few rounds.
DIGITS, OF_STUDY, OF_STUDY_DIGITS = "for digits", "for section 5.1", "for section 5.1 with digits"
OF_CLASSES = f"for {' and '.join(CLASSES)}"


METHOD = click.option(
        "--method", type=click.Choice(METHODS), default="fil-ver", show_default=True,
        help="fil-ver is VER-Sampled with server-side training (SST); ver-stats sends mu and sigma, ebr embeddings of "
        "a deterministic encoder; ver and ebr-no-sst have no SST, vanilla has no rehearsal at all; "
        f"offline ones have all data in one place; {', '.join(STUDY)} are those of section 5.1, with one client.",
)  # fmt: skip
FLAGS = (
    METHOD,
    click.option(
        "--dataset", type=click.Choice(DATASETS),
        help="The data.  [default: the first at hand of emnist-balanced, fashion-mnist, mnist and digits, which needs "
        "no files; mnist or digits for the methods of section 5.1]",
    ),
    run_options.DATA_DIR,
    click.option(
        "--domains", cls=ByCase, by_case={"": "rotations", OF_CLASSES: "classes", OF_STUDY: "permutations"},
        type=click.Choice(DOMAINS),
        help="What differs from task to task; classes: other classes under the same labels.",
    ),
    click.option(
        "--num-clients", cls=ByCase, by_case={"": 10, DIGITS: 5, OF_STUDY: 1}, type=WHOLE, help="Clients."
    ),
    click.option(
        "--num-tasks", cls=ByCase, by_case={"": 4, OF_STUDY: 10}, type=WHOLE, help="Tasks, each a domain."
    ),
    click.option(
        "--examples-per-task", cls=ByCase, by_case={"": 300, DIGITS: 150, OF_STUDY: 2000, OF_STUDY_DIGITS: 400},
        type=WHOLE, help="Training examples of a client in a task.",
    ),
    click.option(
        "--test-examples", type=WHOLE, help="Test examples of a task, all clients together.  [default: all]"
    ),
    click.option(
        "--enrollment", default="full", show_default=True, metavar=f"{'|'.join(SCENARIOS)}|FILE",
        help="Who is there when; a file has a line for each client with a cell for each task: x not yet, * active, "
        "o no longer.",
    ),
    click.option("--num-rounds", cls=ByCase, by_case={"": 6, DIGITS: 4}, type=WHOLE, help="Rounds for each task."),
    click.option(
        "--num-epochs", cls=ByCase, by_case={"": 2, DIGITS: 4}, type=WHOLE, help="Epochs of a client in a round."
    ),
    click.option("--batch-size", cls=ByCase, by_case={"": 64, DIGITS: 20}, type=WHOLE, help="Examples in a step."),
    click.option("--learning-rate", type=float, default=1e-3, show_default=True, help="Of Adam."),
    click.option(
        "--beta", type=float, default=1e-4, show_default=True,
        help="Weight of the divergence from N(0, I) when a VEE is pre-trained (eq. 9).",
    ),
    click.option(
        "--embedding-size", cls=ByCase, by_case={"": 256, DIGITS: 32}, type=WHOLE, help="Dimensions of an embedding."
    ),
    click.option(
        "--hidden", cls=ByCase, by_case={"": (1000, 1000), DIGITS: (100,)}, callback=_widths, metavar="N,N,...",
        help="Units of the linear layers, in the encoder as in the classifier.",
    ),
    click.option(
        "--filters", cls=ByCase, by_case={"": (32, 64), DIGITS: (8, 16)}, callback=_widths, metavar="N,N,...",
        help="Of the encoder's 5 x 5 convolutions.",
    ),
    click.option(
        "--pretraining", type=click.Choice(["central", "federated"]), default="central", show_default=True,
        help="How the encoder learns from the first task of the clients that are enrolled in it.",
    ),
    click.option("--pretraining-epochs", cls=ByCase, by_case={"": 8, DIGITS: 30}, type=WHOLE, help="Epochs of it."),
    click.option(
        "--client-memory", cls=ByCase, by_case={"": 300, DIGITS: 150}, type=click.IntRange(min=0),
        help="Rows that each client remembers of its past tasks.",
    ),
    click.option(
        "--memory-share", type=click.FloatRange(0, 1, min_open=True), default=0.1, show_default=True,
        help="In section 5.1: share of each past task's examples that the memory has room for at the last task.",
    ),
    click.option(
        "--memory-per-task", is_flag=True, default=None,
        help="In section 5.1: keep no more than --memory-share of a past task, as the paper does, though there is room "
        "for more of each before the last task.",
    ),
    click.option(
        "--send-per-round", cls=ByCase, by_case={"": 50, DIGITS: 40}, type=WHOLE,
        help="Examples that a client sends for SST in a round, each once in all.",
    ),
    click.option("--sst-steps", type=WHOLE, default=100, show_default=True, help="S_max."),
    click.option("--sst-learning-rate", type=float, default=1e-3, show_default=True, help="eta_s."),
    click.option(
        "--server-memory", cls=ByCase, by_case={"": 6000, DIGITS: 1000}, type=WHOLE, help="Rows that the server keeps."
    ),
    click.option("--proximal", type=float, default=0.0, show_default=True, help="mu of FedProx."),
    click.option("--dp-clip", type=float, help="Norm to which each vector that is sent is clipped."),
    click.option(
        "--dp-noise-multiplier", type=float,
        help="Standard deviation of the noise on each vector that is sent, in units of --dp-clip; tells epsilon.",
    ),
    click.option(
        "--dp-noise-seed", type=click.IntRange(0, 2**31 - 1),
        help="For tests: noise that repeats, and guarantees nothing.  [default: secrets of the operating system]",
    ),
    run_options.DP_BASE,
    run_options.CLIENTS_PER_ROUND,
    run_options.evaluate_every("round"),
    run_options.seed("Of everything that is drawn in training."),
    run_options.SPLIT_SEED,
    run_options.RUNTIME,
    run_options.OUTPUT_DIR,
    run_options.RESUME,
)  # fmt: skip
