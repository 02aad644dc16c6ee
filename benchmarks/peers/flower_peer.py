# /// script
# requires-python = ">=3.11,<3.12"
# dependencies = ["flwr[simulation]==1.23.0", "tensorflow-cpu==2.14.1", "setuptools<81"]
# ///
"""Flower: its simulation with an actor for each core; a client trains by the compiled function of `tf_client`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # for the actors

import flwr
import numpy as np
import work
from flwr.common import Context, ndarrays_to_parameters
from flwr.server.strategy import FedAvg

ROUNDS = 10_000  # more than are asked for


class Worker(flwr.client.NumPyClient):
    """A client, whose documents an actor reads once."""

    kept: dict = {}

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]
        """One epoch."""
        import tf_client

        if self.number not in self.kept:
            self.kept[self.number] = tf_client.Client(self.number)
        weights, loss = self.kept[self.number].train(parameters, int(config["seed"]) + self.number)
        return weights, work.DOCUMENTS, {"loss": loss}


class Asked(FedAvg):
    """FedAvg whose rounds begin when one is asked for."""

    def __init__(self, wanted: Iterator[int], answer) -> None:  # type: ignore[no-untyped-def]
        super().__init__(min_available_clients=work.MOST_CLIENTS, fraction_evaluate=0.0)
        self.wanted, self.answer = wanted, answer
        self.start = 0.0

    def initialize_parameters(self, client_manager):  # type: ignore[no-untyped-def]
        return ndarrays_to_parameters(work.initial())

    def configure_fit(self, server_round, parameters, client_manager):  # type: ignore[no-untyped-def]
        number = next(self.wanted, None)
        if number is None:
            os._exit(0)  # nothing is asked any more; the simulation would go on to its last round
        client_manager.wait_for(work.MOST_CLIENTS)
        self.start = time.perf_counter()
        asked = flwr.common.FitIns(parameters, {"seed": server_round * work.MOST_CLIENTS})
        return [(client, asked) for client in client_manager.sample(number)]

    def aggregate_fit(self, server_round, results, failures):  # type: ignore[no-untyped-def]
        found = super().aggregate_fit(server_round, results, failures)
        seconds = time.perf_counter() - self.start
        if failures:
            raise RuntimeError(f"{failures[0]}")
        loss = float(np.mean([result.metrics["loss"] for _, result in results]))
        self.answer({"seconds": seconds, "loss": loss})
        return found


def main() -> None:
    """Answers requests for rounds."""
    wanted, answer = work.requests()

    def client_fn(context: Context) -> flwr.client.Client:
        return Worker(int(context.node_config["partition-id"])).to_client()

    def server_fn(context: Context) -> flwr.server.ServerAppComponents:
        config = flwr.server.ServerConfig(num_rounds=ROUNDS)
        return flwr.server.ServerAppComponents(strategy=Asked(wanted, answer), config=config)

    flwr.simulation.run_simulation(
        server_app=flwr.server.ServerApp(server_fn=server_fn),
        client_app=flwr.client.ClientApp(client_fn=client_fn),
        num_supernodes=work.MOST_CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": os.cpu_count()}},
    )


if __name__ == "__main__":
    main()
