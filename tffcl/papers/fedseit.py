"""`tffcl reproduce fedseit`: table 2 of Chaudhary et al., 2022 (FedSeIT); tasks of several sets of texts; W_f.

The paper speaks of past tasks that help and of others that interfere, and measures on one set at a time. In `mixed`
each task is of one of four sets, so that about one past task in four is of its own, and fewer have a label in common.
Sizes and schedule are this library's, for two cores; K = 3, lambda_1 and lambda_2 = 1 are the paper's. On the
same tasks, and on two sets by themselves, `projections` compares one W_f for the mean of foreign features with a block
for each.
"""

from __future__ import annotations

from collections.abc import Sequence

from tffcl.papers.tables import Measure, Row, Table, check_names, learned_later, megabytes_kept, megabytes_up, percent

DATASETS = ("r8", "tmn", "trec6", "trec50", "subj")
VARIANTS: dict[str, tuple[str, ...]] = {
    "fedweit": ("fedweit",),
    "fedseit": ("fedseit",),
    "fedseit+sit3": ("fedseit", "--selection", "sit", "--top-k", "3"),
    "fedseit+sit5": ("fedseit", "--selection", "sit", "--top-k", "5"),
    "fedseit+dls": ("fedseit", "--share-dense", "position"),
    "fedseit+sit3+dls": ("fedseit", "--selection", "sit", "--top-k", "3", "--share-dense", "position"),
    "fedseit+sit5+dls": ("fedseit", "--selection", "sit", "--top-k", "5", "--share-dense", "position"),
    "fedseit+aligned": ("fedseit", "--share-dense", "start"),
    "fedseit+aligned-round": ("fedseit", "--share-dense", "round"),
    "fedseit+aligned+zeros": ("fedseit", "--share-dense", "start", "--foreign", "zeros"),
    "fedseit+zeros": ("fedseit", "--foreign", "zeros"),
    "fedseit+random": ("fedseit", "--foreign", "random"),
    "alone": ("alone",),
    "alone+warm": ("alone", "--warm-start"),
    "store-all": ("store-all",),
    "store-all+warm": ("store-all", "--warm-start"),
    "local": ("local",),
    "fedavg": ("fedavg",),
}
CONTROL = "alone+warm"  # the same network, which exchanges nothing and keeps its head
# TTA in per cent, by lambda_2 and data set, in the order of VARIANTS.
_TABLE_2 = {
    ("1", "r8"): (79.1, 90.5, 90.5, 90.6, 83.1, 82.3, 82.4),
    ("1", "tmn"): (84.2, 88.2, 88.3, 88.6, 84.7, 84.3, 83.6),
    ("1", "trec6"): (78.2, 83.6, 83.6, 83.3, 78.2, 78.3, 77.7),
    ("1", "trec50"): (85.1, 88.4, 88.5, 88.7, 86.4, 86.3, 85.2),
    ("1", "subj"): (86.5, 88.5, 88.6, 89.5, 88.9, 89.7, 89.0),
    ("0.1", "r8"): (68.1, 89.9, 89.9, 89.7, 60.7, 61.9, 65.3),
    ("0.1", "tmn"): (80.9, 88.5, 88.4, 88.3, 72.8, 73.3, 71.1),
    ("0.1", "trec6"): (77.1, 84.7, 84.9, 84.7, 78.3, 78.9, 76.8),
    ("0.1", "trec50"): (76.1, 81.2, 81.2, 80.9, 69.8, 69.4, 68.9),
    ("0.1", "subj"): (85.6, 89.1, 88.8, 90.4, 88.1, 90.2, 84.2),
}


def table(
    datasets: Sequence[str] = (), variants: Sequence[str] = (), retentions: Sequence[float] = (1.0, 0.1)
) -> Table:
    """The rows for some data sets, variants and values of lambda_2; all for none.

    Raises:
      InputError: no such data set or variant.
    """
    check_names(datasets, DATASETS)
    check_names(variants, tuple(VARIANTS))
    rows = [
        _row(data, f"{retention:g}", variant)
        for data in datasets or DATASETS
        for retention in retentions
        for variant in variants or VARIANTS
    ]
    measures: dict[str, tuple[Measure, int]] = {
        "TTA %": (percent("task_averaged_test_accuracy"), 1),
        "learned %": (learned_later, 1),
        "forgotten %": (percent("forgetting"), 1),
        "MB kept": (megabytes_kept, 1),
        "MB up": (megabytes_up, 0),
    }
    return Table(
        ("data set", "lambda_2", "method"),
        measures,
        ("paper",),
        tuple(rows),
        compared={"TTA %": f"over {CONTROL}", "learned %": f"learned, over {CONTROL}"},
    )


def _row(data: str, retention: str, variant: str) -> Row:
    printed = dict(zip(VARIANTS, _TABLE_2.get((retention, data), ())))
    method, *flags = VARIANTS[variant]
    own = () if method == "fedavg" else ("--retention", retention)
    return Row(
        f"{data}-lambda{retention}-{variant}",
        (data, retention, variant),
        (method, "--data", data, *flags, *own, "--evaluate-every", "task"),
        (str(printed.get(variant, "-")),),
        control="" if variant == CONTROL else f"{data}-lambda{retention}-{CONTROL}",
    )


_MIXED = (
    "--data", "trec6+r8+tmn+subj", "--scenario", "mixed", "--num-clients", "12", "--num-tasks", "6",
    "--labels-per-task", "2", "--max-train-documents", "64", "--max-test-documents", "50", "--max-words", "30",
    "--num-filters", "32", "--num-rounds", "3", "--num-epochs", "10", "--batch-size", "32", "--learning-rate", "1e-3",
    "--evaluate-every", "task",
)  # fmt: skip
_SELECTIONS: dict[str, tuple[str, ...]] = {
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


def mixed() -> Table:
    """Every selection, with dense parts of one's own and with those of the server at the start of a task."""
    rows = [
        Row(
            f"{name}{mark}",
            (sharing, name),
            ("fedseit", *_MIXED, "--share-dense", sharing, "--top-k", "3", "--selection", *flags),
            control="" if name == "sampled" else f"sampled{mark}",
        )
        for sharing, mark in (("no", ""), ("start", "+start"))
        for name, flags in _SELECTIONS.items()
    ]
    alone = Row("alone+warm", ("-", "alone+warm"), ("alone", *_MIXED, "--warm-start"), control="sampled")
    measures: dict[str, tuple[Measure, int]] = {
        "TTA %": (percent("task_averaged_test_accuracy"), 2),
        "same set %": (percent("selection_same_domain"), 0),
        "a common label %": (percent("selection_label_overlap"), 0),
    }
    return Table(("dense parts", "selection"), measures, (), (*rows, alone), compared={"TTA %": "over sampled"})


def projections() -> Table:
    """A block of W_f for each foreign adaptive, as published, and one for the mean of their features."""
    schedule = ("--num-rounds", "3", "--num-epochs", "10", "--evaluate-every", "task")
    settings = [
        *((data, "5", ("--data", data, *schedule, "--selection", "sit")) for data in ("trec6", "r8")),
        *(("mixed", k, (*_MIXED, "--selection", "sampled")) for k in ("3", "20")),
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
