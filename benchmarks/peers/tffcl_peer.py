"""tffcl: a round of `build_fed_avg` over `TextCNN`, on the runtime that is named."""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict

from tffcl.runtime import quiet_logs

quiet_logs()

import numpy as np  # noqa: E402
import tensorflow_federated as tff  # noqa: E402
import work  # noqa: E402

from tffcl import runtime  # noqa: E402
from tffcl.algorithms import build_fed_avg  # noqa: E402
from tffcl.client_works import LocalTraining  # noqa: E402
from tffcl.models import TextCNN, TextCNNConfig  # noqa: E402
from tffcl.program import project  # noqa: E402
from tffcl.transfers import KnowledgeBase, NoTransfer  # noqa: E402

RUNTIMES = {"in-process": runtime.in_process, "local": runtime.local}


def data_of(client: int) -> OrderedDict:
    """A client's documents one after another, as a text process takes them; nothing is held out."""
    words, labels = work.documents(client)
    length = np.full(work.DOCUMENTS, work.WORDS, np.int32)
    documents = OrderedDict(start=np.cumsum(length, dtype=np.int32) - length, length=length, label=labels)
    context = OrderedDict(vectors=work.vectors(), tokens=words.reshape(-1))
    none = OrderedDict((name, values[:0]) for name, values in documents.items())
    return OrderedDict(context=context, train=documents, validation=none)


def main() -> None:
    """Answers requests for rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=RUNTIMES, default="in-process")
    options = parser.parse_args()
    config = TextCNNConfig(
        work.DIMENSION, work.LABELS, kernel_sizes=work.WIDTHS, num_filters=work.FILTERS, dropout=0.0, base_scale=1.0
    )
    optimizer = tff.learning.optimizers.build_sgdm(work.RATE)
    training = LocalTraining(1, work.BATCH, work.RATE, patience=0, optimizer=optimizer)
    data = [data_of(client) for client in range(work.MOST_CLIENTS)]
    wanted, answer = work.requests()
    with RUNTIMES[options.runtime]():
        process = build_fed_avg(TextCNN(config), training=training)
        server = process.initialize()
        states = process.initialize_clients(server, [[client, 1] for client in range(work.MOST_CLIENTS)])
        nothing = NoTransfer().transfer_in(KnowledgeBase(0), [[] for _ in states], len(states))
        states = process.begin_task(server, states, nothing)
        for number in wanted:
            reads = process.next.type_signature.parameter[1]
            start = time.perf_counter()
            given = [project(state, reads) for state in states[:number]]
            server, changed, metrics, _ = process.next(server, given, data[:number])
            seconds = time.perf_counter() - start
            states[:number] = [{**state, **new} for state, new in zip(states, changed)]
            answer({"seconds": seconds, "loss": float(np.mean([each["loss"] for each in metrics]))})


if __name__ == "__main__":
    main()
