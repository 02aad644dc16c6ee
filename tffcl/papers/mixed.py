"""`tffcl reproduce fedseit --table mixed|projection`: selection where tasks come from several sets of texts; and W_f.

FedSeIT's paper speaks of past tasks that help and of others that interfere, and measures on one set at a time. Here
each task is of one of four sets, so that about one past task in four is of its own, and fewer have a label in common.
Sizes and schedule are this library's, for two cores; K = 3, lambda_1 and lambda_2 = 1 are the paper's. On the
same tasks, and on two sets by themselves, `projections` compares one W_f for the mean of foreign features with a block
for each.
"""

from __future__ import annotations

from tffcl.papers.tables import Measure, Row, Table, megabytes_kept, percent

COMMON = (
    "--data", "trec6+r8+tmn+subj", "--scenario", "mixed", "--num-clients", "12", "--num-tasks", "6",
    "--labels-per-task", "2", "--max-train-documents", "64", "--max-test-documents", "50", "--max-words", "30",
    "--num-filters", "32", "--num-rounds", "3", "--num-epochs", "10", "--batch-size", "32", "--learning-rate", "1e-3",
    "--evaluate-every", "task",
)  # fmt: skip
SELECTIONS: dict[str, tuple[str, ...]] = {
    "sampled": ("sampled",),
    "sit": ("sit",),
    "sit-centred_cosine": ("sit", "--similarity", "centred_cosine"),
    "sit-best_match": ("sit", "--similarity", "best_match"),
    "sit-mmd": ("sit", "--similarity", "mmd"),
    "labels": ("labels",),
    "domain": ("domain",),
    "own": ("own",),
    "zeros": ("sampled", "--foreign", "zeros"),
}
CONTROL = "sampled"


def table() -> Table:
    """Every selection, with dense parts of one's own and with those of the server at the start of a task."""
    rows = [
        Row(
            f"{name}{mark}",
            (sharing, name),
            ("fedseit", *COMMON, "--share-dense", sharing, "--top-k", "3", "--selection", *flags),
            control="" if name == CONTROL else f"{CONTROL}{mark}",
        )
        for sharing, mark in (("no", ""), ("start", "+start"))
        for name, flags in SELECTIONS.items()
    ]
    alone = Row("alone+warm", ("-", "alone+warm"), ("alone", *COMMON, "--warm-start"), control=CONTROL)
    measures: dict[str, tuple[Measure, int]] = {
        "TTA %": (percent("task_averaged_test_accuracy"), 2),
        "same set %": (percent("selection_same_domain"), 0),
        "a common label %": (percent("selection_label_overlap"), 0),
    }
    return Table(("dense parts", "selection"), measures, (), (*rows, alone), compared={"TTA %": f"over {CONTROL}"})


def projections() -> Table:
    """A block of W_f for each foreign adaptive, as published, and one for the mean of their features."""
    schedule = ("--num-rounds", "3", "--num-epochs", "10", "--evaluate-every", "task")
    settings = [
        *((data, "5", ("--data", data, *schedule, "--selection", "sit")) for data in ("trec6", "r8")),
        *(("mixed", k, (*COMMON, "--selection", "sampled")) for k in ("3", "20")),
    ]
    rows = [
        Row(
            f"{data}-{k}-{projection}",
            (data, k, projection),
            ("fedseit", *flags, "--top-k", k, "--foreign-projection", projection),
            control="" if projection == "each" else f"{data}-{k}-each",
        )
        for data, k, flags in settings
        for projection in ("each", "mean")
    ]
    measures: dict[str, tuple[Measure, int]] = {
        "TTA %": (percent("task_averaged_test_accuracy"), 1),
        "forgotten %": (percent("forgetting"), 1),
        "MB kept": (megabytes_kept, 1),
    }
    return Table(("data set", "K", "W_f"), measures, (), tuple(rows), compared={"TTA %": "over each"})
