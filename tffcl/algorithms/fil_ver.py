"""FIL-VER (Park et al., 2021): classifiers of frozen embeddings that rehearse at the clients and at the server.

Its baselines are the same parts left out: VER without SST (`server_side_training=False` and `sharing="none"`), plain
federated averaging (no `client_memory` either), EBR (a deterministic encoder with `sharing="embeddings"`).
"""

from __future__ import annotations

import tensorflow_federated as tff

from tffcl import errors
from tffcl.aggregators import ConcatenationFactory, by_name, gated
from tffcl.client_works import EmbeddingPrivacy, LocalTraining, RehearsalModel, RehearsalWork, Sharing
from tffcl.finalizers import ServerSideTraining, build_server_side_training, build_server_update
from tffcl.models import IdentityEncoder
from tffcl.templates import ContinualProcess, compose_continual_process
from tffcl.templates.compose import AggregationFactory

TRAINING = LocalTraining(num_epochs=2, batch_size=64, learning_rate=1e-3, patience=0)


@errors.checked_arguments
def build_fil_ver(
    model: RehearsalModel,
    *,
    sharing: str = "sampled",
    send_per_round: int = 50,
    server_side_training: bool | ServerSideTraining = True,
    client_memory: int = 300,
    task_memory: int | None = None,
    training: LocalTraining | None = None,
    proximal: float = 0.0,
    privacy: EmbeddingPrivacy | None = None,
    aggregator: AggregationFactory | None = None,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    share_raw_data: bool = False,
    seed: int = 0,
) -> ContinualProcess:
    """FIL-VER with its variants and baselines.

    Args:
      model: the frozen encoder and the classifier.
      sharing: what clients send for rehearsal at the server: "sampled" (VER-Sampled), "stats" (VER-Stats),
        "embeddings" (EBR, of a deterministic encoder), or "none".
      send_per_round: examples that a client sends in a round, each once in the whole run.
      server_side_training: S_max, eta_s and the server's memory; True for the defaults, False for no SST.
      client_memory: rows that each client remembers of its past tasks; 0 for no rehearsal at the clients.
      task_memory: most rows that it remembers of one task, even while there is room for more; None for no limit.
      training: epochs, batches, learning rate; `TRAINING` unless given.
      proximal: mu of FedProx, 0 for FedAvg.
      privacy: clipping and noise on each vector that is sent.
      aggregator: of the classifier's update; None for the mean weighted by examples (eq. 1), or any
        `tff.aggregators` factory for a float32 vector (secure, differentially private, robust).
      server_optimizer: of the classifier; None to take the aggregate, or a `tff.learning.optimizers.Optimizer`.
      share_raw_data: allows sharing with an encoder that is none: what is sent is then the clients' raw data.
      seed: of everything random at the server.

    Raises:
      InputError: SST without a sharing, a sharing without SST, a sharing that does not go with the encoder, or raw
        data that would be shared.
    """
    if sharing != "none" and not server_side_training:
        raise errors.InputError(
            f"sharing {sharing!r} without server-side training: clients would send what nobody uses; take 'none'"
        )
    if sharing == "none" and server_side_training:
        raise errors.InputError(
            "server-side training: needs a sharing; with 'none' nothing comes to train on"
        )
    encoder = model.encoder.encoder
    if isinstance(encoder, IdentityEncoder) and sharing != "none" and not share_raw_data:
        raise errors.InputError(
            "naive rehearsal at the server sends the clients' raw data to it; pass share_raw_data=True if that is meant"
        )
    told = Sharing(encoder, sharing, send_per_round, privacy)
    work = RehearsalWork(
        model,
        training or TRAINING,
        told,
        client_memory=client_memory,
        task_memory=task_memory,
        proximal=proximal,
        seed=seed,
    )
    factory = gated(aggregator or tff.aggregators.MeanFactory(no_nan_division=True))
    update = build_server_update(work.shared_type, server_optimizer)
    if sharing == "none":
        return compose_continual_process(work, factory, update)
    options = server_side_training if isinstance(server_side_training, ServerSideTraining) else None
    finalizer = build_server_side_training(update, model.classifier, told, options, seed)
    rows = by_name(weights=factory, rehearsal=ConcatenationFactory())
    return compose_continual_process(work, rows, finalizer)
