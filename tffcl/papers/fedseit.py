"""`tffcl reproduce fedseit`: table 2 of Chaudhary et al., 2022 (FedSeIT)."""

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
