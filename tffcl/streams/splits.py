"""Splits of one labelled dataset over clients and tasks: non-iid, overlapping, iid.

Chaudhary, Rai, Schubert, Schuetze, Gupta: Federated Continual Learning for Text Classification via Selective
Inter-client Transfer, 2022 (FedSeIT), section 3 "Experimental setup" and table 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import numpy as np

from tffcl.streams import labels as labels_lib
from tffcl.streams.building import build_stream, num_common
from tffcl.streams.request import PICK, Request, check_share, generator
from tffcl.streams.stream import TaskStream

_Labels = Union[Sequence[int], np.ndarray]  # row -> dataset label id, integer [n]


def non_iid(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int = 4,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """The paper's non-iid split: tasks share labels, never documents.

    Each of the C x T tasks picks `labels_per_task` labels at random. The documents of a label that n tasks
    picked are divided at random into n disjoint parts, sizes differing by at most 1. A task's test set is
    every test document with one of its labels, not divided.

    >>> stream = non_iid([0, 1] * 20, [0, 1], num_clients=2, num_tasks=1, labels_per_task=2)
    >>> [len(stream.task(client, 0).train) for client in range(2)]
    [17, 17]

    Args:
      train_labels: dataset label id of each training document, int [n].
      test_labels: the same for the test set, int [m].
      num_clients: C.
      num_tasks: T, tasks of each client.
      labels_per_task: |L_c^t|.
      validation_share: share of a task's documents held out, stratified by label; each label keeps at least
        one to learn from.
      seed: decides labels and documents of the tasks ("task generation" in table 4).
      order_seed: decides the order of the tasks at each client, and nothing else.
      label_names: names of all dataset labels, in the order of their ids; also says which ids exist.
      min_documents: training documents (validation included) that a task gets of each of its labels, at
        least. A label goes to at most (its documents // min_documents) tasks; one with too few for a single
        task is picked by none, and listed in `excluded_labels`. Fine-grained TREC needs this: a label of 4
        documents can serve one task, not 15. With 0 any label may be picked, and an empty part is an error.
      require_test: pick only labels that occur in the test set, so that every task can be scored.

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    return overlapping(
        train_labels,
        test_labels,
        overlap=0.0,
        num_clients=num_clients,
        num_tasks=num_tasks,
        labels_per_task=labels_per_task,
        validation_share=validation_share,
        seed=seed,
        order_seed=order_seed,
        label_names=label_names,
        min_documents=min_documents,
        require_test=require_test,
    )


def overlapping(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    overlap: float = 1.0,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int = 4,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """As `non_iid`, but tasks that share a label also share documents of it.

    Of each label's documents, the share `overlap` (rounded) goes to every task that has the label; the
    rest is divided as in `non_iid`, and `overlap=0` is that split exactly. Which shared documents are held
    out for validation is decided once per label: no task learns from a document that another validates with.

    `overlap` is a share from 0 to 1; the other arguments are those of `non_iid`.

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    check_share("overlap", overlap)
    request = Request(
        train_labels,
        test_labels,
        num_clients,
        num_tasks,
        labels_per_task,
        validation_share,
        seed,
        order_seed,
        label_names,
        min_documents,
        require_test,
    )

    def capacity(documents: int) -> int:
        common = num_common(documents, overlap)
        if common >= min_documents:
            return request.total_tasks
        return (documents - common) // (min_documents - common)

    capacities = request.capacities(capacity, min_documents)
    picks = labels_lib.pick_labels(capacities, request.total_tasks, labels_per_task, generator(seed, PICK))
    return build_stream("non_iid" if overlap == 0 else "overlapping", request, capacities, picks, overlap)


def iid(
    train_labels: _Labels,
    test_labels: _Labels,
    *,
    num_clients: int = 3,
    num_tasks: int = 5,
    labels_per_task: int | None = None,
    validation_share: float = 1 / 8,
    seed: int = 42,
    order_seed: int = 1,
    label_names: Sequence[str] | None = None,
    min_documents: int = 4,
    require_test: bool = True,
) -> TaskStream:
    """Every task has the same labels, and an equal random part of the documents of each.

    Both the sizes of the parts of a label and the sizes of the tasks differ by at most 1; parts are disjoint.

    `labels_per_task` is None for all labels with enough documents for every task, else that many of those,
    drawn once for all tasks; the other arguments are those of `non_iid`.

    Raises:
      StreamError: the data cannot give this; the message says what would be possible.
    """
    request = Request(
        train_labels,
        test_labels,
        num_clients,
        num_tasks,
        labels_per_task,
        validation_share,
        seed,
        order_seed,
        label_names,
        min_documents,
        require_test,
    )
    # A label serves all tasks or none: the tasks would not be identically distributed otherwise.
    needed = request.total_tasks * min_documents
    capacities = request.capacities(lambda documents: request.total_tasks if documents >= needed else 0, needed)
    if labels_per_task is None:
        common = tuple(label for label, n in capacities.items() if n)
    else:
        common = labels_lib.pick_labels(capacities, 1, labels_per_task, generator(seed, PICK))[0]
    return build_stream("iid", request, capacities, [common] * request.total_tasks, 0.0)
