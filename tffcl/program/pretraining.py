"""Pre-training: an encoder learns from the first task, with a classifier on top, and is frozen (FIL-VER 3.1, 5.2)."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Optional, Union

import numpy as np

from tffcl import archive
from tffcl.algorithms import build_fed_avg
from tffcl.client_works import LocalTraining
from tffcl.errors import InputError, RunError
from tffcl.models import EmbeddingClassifier, Encoder, FrozenEncoder
from tffcl.program import events
from tffcl.program.client_data import ClientData, ClientTask
from tffcl.program.cohorts import train_round
from tffcl.program.reporters import Reporter, default_reporters
from tffcl.program.results import Settings
from tffcl.program.run_directory import History
from tffcl.program.state import ClientStore, client_key
from tffcl.program.task_data import check_task, num_examples, ordered
from tffcl.templates import ContinualProcess
from tffcl.transfers import KnowledgeBase, NoTransfer

_FORMAT = 1


def pretrain(
    network: EmbeddingClassifier,
    data: ClientData,
    *,
    training: LocalTraining,
    num_rounds: int,
    seed: int,
    clients: Optional[Sequence[int]] = None,
    reporters: Optional[Sequence[Reporter]] = None,
) -> tuple[FrozenEncoder, np.ndarray]:
    """Trains an encoder on the clients' first task by FedAvg, in the TFF context that is installed.

    With one client, as `tffcl.streams.offline` makes it, this is central training on held-out data. The optimizer of a
    client starts anew in every round: centrally, one round of many epochs is what is usually meant.

    Shown in docs/contract.md.

    Args:
      network: the encoder and the classifier that it is trained with, by eq. 9 or eq. 7.
      data: its task 0 is learned; the other tasks are not looked at.
      training: epochs in a round, batches, learning rate.
      num_rounds: rounds.
      seed: root of all randomness; the same seed gives the same weights.
      clients: who takes part; None for all that have training examples in task 0.
      reporters: get every round; None for a progress bar.

    Returns:
      The frozen encoder, and the weights of the classifier that was trained with it, float32 `[mlp.weights.size]`.

    Raises:
      InputError: data or settings that cannot be used; the message names the client.
      RunError: a round in which no client's update counts, since none is finite for example.
    """
    settings, tasks = Settings(num_rounds, seed), _first_tasks(data, clients)
    process = build_fed_avg(network, training=training, seed=seed)
    for client, task in tasks.items():
        check_task(process, task, f"client {client}, task 0")
    reporting = default_reporters(None) if reporters is None else reporters
    for reporter in reporting:
        reporter.start(1, num_rounds, [])
    try:
        weights = _fed_avg(process, settings, tasks, reporting)
    finally:
        for reporter in reporting:
            reporter.close()
    encoder, classifier = (np.array(part) for part in network.split(weights))
    return FrozenEncoder(network.encoder, encoder), classifier


def _first_tasks(data: ClientData, clients: Optional[Sequence[int]]) -> dict[int, ClientTask]:
    """Task 0 of each client that takes part, by the client's number."""
    if clients is None:
        tasks = ((client, data.task(client, 0)) for client in range(data.num_clients))
        taking_part = {client: task for client, task in tasks if num_examples(task.train)}
    else:
        if len(set(clients)) < len(clients):
            raise InputError(f"clients: expected each client once, found {list(clients)}")
        wrong = [client for client in clients if not 0 <= client < data.num_clients]
        if wrong:
            raise InputError(f"clients: there is no client {wrong[0]}; expected numbers in 0..{data.num_clients - 1}")
        taking_part = {client: data.task(client, 0) for client in clients}
    if not taking_part:
        raise InputError("pre-training: no client has training examples in task 0")
    return taking_part


def _fed_avg(
    process: ContinualProcess, settings: Settings, tasks: Mapping[int, ClientTask], reporters: Sequence[Reporter]
) -> np.ndarray:
    """The server's weights after all rounds, float32 `[kernels.size]`."""
    server, clients = process.initialize(), list(tasks)
    keys = [client_key(settings.seed, client) for client in clients]
    store = ClientStore(process.initialize_clients(server, keys))
    everybody = range(len(clients))
    nothing = NoTransfer().transfer_in(KnowledgeBase(0), [[] for _ in clients], len(clients))
    store.merge(everybody, process.begin_task(server, [store[place] for place in everybody], nothing))
    history = History()
    # This network prepares nothing: its examples are what `prepare` would make of them.
    kind = process.next.type_signature.parameter[2].member
    training = [
        ordered(
            OrderedDict(context=task.context, train=task.train, validation=task.validation),
            kind,
            f"client {client}, task 0",
        )
        for client, task in tasks.items()
    ]
    for number in range(settings.num_rounds):
        server, reported, measured = train_round(process, server, store, everybody, training)
        of_client = {clients[place]: one for place, one in reported.items()}
        event = events.round_event(0, number, clients, of_client, measured, None)
        if event["left_out"] == clients:
            reasons = event["left_out_reasons"].items()
            raise RunError(
                f"pre-training, round {number}: nobody's update counts "
                f"({', '.join(f'client {client}: {reason}' for client, reason in reasons)}); "
                "a smaller learning rate may help"
            )
        line = history.append(event)
        for reporter in reporters:
            reporter.report(line)
    return np.asarray(server["shared"])


def save_encoder(path: Union[str, os.PathLike[str]], frozen: FrozenEncoder) -> None:
    """Writes weights and architecture to one .npz file, whole or not at all.

    Shown with `pretrain`.

    Raises:
      RunError: the file cannot be written; what stood there still stands.
    """
    archive.write(
        path, {"format": np.array(_FORMAT), "encoder": np.array(repr(frozen.encoder)), "values": frozen.values}
    )


def load_encoder(path: Union[str, os.PathLike[str]], encoder: Encoder) -> FrozenEncoder:
    """Reads what `save_encoder` wrote.

    Shown with `pretrain`.

    Args:
      path: the file.
      encoder: the architecture that is expected in it.

    Raises:
      RunError: no such file, or one that is damaged or of another kind.
      InputError: the file is of another architecture.
    """
    arrays = archive.read(path, "format", "encoder", "values")
    if arrays["format"].tolist() != _FORMAT:
        raise RunError(f"{os.fspath(path)} holds no encoder of this version")
    if str(arrays["encoder"]) != repr(encoder):
        raise InputError(f"{os.fspath(path)} holds {arrays['encoder']}, expected {encoder!r}")
    return FrozenEncoder(encoder, arrays["values"])
