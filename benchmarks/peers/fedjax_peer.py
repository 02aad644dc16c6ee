# /// script
# requires-python = ">=3.11,<3.12"
# dependencies = ["fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3"]
# ///
"""FedJAX: federated averaging as its own algorithm does it, with its default backend, `jit`."""

from __future__ import annotations

import time

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import work


def loss_of(weights, batch, rng):  # type: ignore[no-untyped-def]
    """The mean loss of a batch."""
    features = []
    for index in range(len(work.WIDTHS)):
        kernel, bias = weights[2 * index : 2 * index + 2]
        response = jax.lax.conv_general_dilated(
            VECTORS[batch["words"]], kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        features.append(jnp.max(jax.nn.relu(response + bias), axis=1))
    logits = jnp.concatenate(features, axis=1) @ weights[-2] + weights[-1]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][:, None], axis=1)
    return -jnp.mean(chosen)


VECTORS = jnp.asarray(work.vectors())


def main() -> None:
    """Answers requests for rounds."""
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss_of),
        fedjax.optimizers.sgd(work.RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.BATCH, num_epochs=1),
    )
    clients = []
    for number in range(work.MOST_CLIENTS):
        words, labels = work.documents(number)
        clients.append((str(number).encode(), fedjax.ClientDataset({"words": words, "labels": labels})))
    state, loss = algorithm.init([jnp.asarray(each) for each in work.initial()]), jax.jit(loss_of)
    wanted, answer = work.requests()
    for done, number in enumerate(wanted):
        keys = jax.random.split(jax.random.PRNGKey(done), number)
        start = time.perf_counter()
        state, _ = algorithm.apply(state, [(*client, key) for client, key in zip(clients, keys)])
        jax.block_until_ready(state.params)
        seconds = time.perf_counter() - start
        losses = [loss(state.params, dict(data.all_examples()), None) for _, data in clients[:number]]
        answer({"seconds": seconds, "loss": float(np.mean(losses))})


if __name__ == "__main__":
    main()
