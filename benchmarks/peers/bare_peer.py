"""The work of a round in plain TensorFlow: one client after another, then the mean. No framework, no messages."""

from __future__ import annotations

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tf_client
import work


def main() -> None:
    """Answers requests for rounds."""
    clients = [tf_client.Client(number) for number in range(work.MOST_CLIENTS)]
    weights = work.initial()
    wanted, answer = work.requests()
    for done, number in enumerate(wanted):
        start = time.perf_counter()
        trained = [client.train(weights, done * work.MOST_CLIENTS + n) for n, client in enumerate(clients[:number])]
        weights = [np.mean(each, axis=0) for each in zip(*(found for found, _ in trained))]
        loss = float(np.mean([loss for _, loss in trained]))
        answer({"seconds": time.perf_counter() - start, "loss": loss})


if __name__ == "__main__":
    main()
