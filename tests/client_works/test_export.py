"""export_keras_model against the client work's own evaluation, and without this library."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from bare import run_bare

from tffcl import errors
from tffcl.client_works import DecomposedWork, Decomposition, LocalTraining, export_keras_model
from tffcl.models import AlignedTextCNN, KerasNetwork, TextCNN, TextCNNConfig

D, V, C, PLACES = 5, 9, 4, 3
CONFIG = TextCNNConfig(embedding_size=D, max_classes=C, kernel_sizes=(2, 3), num_filters=3)
# Full, short, empty, unknown words only, and shorter than the widest filter.
TOKENS = np.array(
    [[2, 3, 4, 5, 6], [7, 8, 7, 8, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0], [5, 0, 0, 0, 0], [8, 6, 4, 2, 2]], np.int32
)
NETWORKS = {
    "fedweit": lambda: TextCNN(CONFIG, PLACES),
    "fedweit without foreign": lambda: TextCNN(CONFIG),
    "fedseit": lambda: AlignedTextCNN(CONFIG, PLACES),
    "fedseit of means": lambda: AlignedTextCNN(dataclasses.replace(CONFIG, foreign_projection="mean"), PLACES),
}


def _vectors():
    vectors = np.random.default_rng(1).normal(size=(V, D)).astype("f")
    vectors[:2] = 0
    return vectors


def _work(name, form):
    options = Decomposition(sparsity=0.1, retention_form=form)
    return DecomposedWork(NETWORKS[name](), LocalTraining(), options, seed=5)


def _randomised(state, seed):
    """The state as if it had been trained: parameters of the current task and base at random."""
    rng = np.random.default_rng(seed)
    for name in ("base", "mask_logits", "adaptive", "attention", "local"):
        state[name] = tf.constant(rng.normal(size=state[name].shape), tf.float32)
    return state


def _foreign(work, entries, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(entries, work.knowledge_size)).astype("f")


def _client(work, entries):
    """A client in its second task, and the foreign adaptives of both: `entries` of them each."""
    state = dict(work.initialize_client(work.initialize_shared(), work.initialize_plan(), tf.constant([1, 2])))
    foreign = [_foreign(work, entries, seed) for seed in (10, 11)]
    shared = work.initialize_shared()
    state = _randomised(dict(work.begin_task(state, shared, tf.constant(foreign[0]))), 1)
    ended = {"train": {"label": tf.zeros([len(TOKENS)], tf.int32)}}
    state, _ = work.end_task(state, work.initialize_shared(), ended)
    state = _randomised(dict(work.begin_task(state, shared, tf.constant(foreign[1]))), 2)
    return {name: np.array(value) for name, value in state.items()}, foreign


def _evaluated(work, state, task, foreign):
    """Logits as `DecomposedWork.evaluate` scores them, and what it returns."""
    labels = tf.constant(np.arange(len(TOKENS)) % C, tf.int32)
    context = {"vectors": tf.constant(_vectors()), "tokens": tf.constant(TOKENS[TOKENS > 0])}
    length = np.count_nonzero(TOKENS, axis=1).astype(np.int32)
    view = {name: tf.constant(value) for name, value in work.task_view(state, task).items()}
    examples = {"start": np.cumsum(length, dtype=np.int32) - length, "length": length, "label": labels}
    prepared = work.prepare(state, tf.constant(foreign), context, examples)
    kernel = work.evaluated_kernel(view)
    logits = work.network.logits(kernel, view["local"], view["attention"], context, prepared, None)
    return logits.numpy(), labels, work.evaluate(view, None, context, prepared)


CASES = [
    ("fedweit", 0, "closed_form"),
    ("fedweit", 2, "gradient"),
    ("fedweit without foreign", 0, "closed_form"),
    ("fedseit", 0, "gradient"),
    ("fedseit", 2, "closed_form"),
    ("fedseit of means", 2, "closed_form"),
]


@functools.cache
def _exported(name, entries, form):
    """The work, the client, its foreign adaptives, and the models of both tasks."""
    work = _work(name, form)
    state, foreign = _client(work, entries)
    models = [export_keras_model(work, state, task, _vectors(), foreign[task]) for task in (0, 1)]
    return work, state, foreign, models


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_predicts_what_the_client_predicts(case):
    work, state, foreign, models = _exported(*case)
    predictions = []
    for task, model in enumerate(models):
        expected, labels, sums = _evaluated(work, state, task, foreign[task])
        found = model(TOKENS).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found))
        assert float(sums["loss"]) == pytest.approx(float(loss), rel=1e-4)
        predictions.append(found)
    assert np.abs(predictions[0] - predictions[1]).max() > 1e-2


@pytest.mark.parametrize("case", [CASES[1], CASES[4]])
def test_a_document_scores_the_same_alone_and_in_any_batch(case):
    work, state, foreign, models = _exported(*case)
    model = tf.function(models[1], reduce_retracing=True)
    expected, _, _ = _evaluated(work, state, 1, foreign[1])
    for row, document in enumerate(TOKENS):
        alone = document[None, : np.count_nonzero(document)]  # no column at all for the empty one
        np.testing.assert_allclose(model(tf.constant(alone))[0], expected[row], rtol=1e-4, atol=1e-4)
    wide = tf.constant(np.pad(TOKENS, [[0, 0], [0, 4]]))
    np.testing.assert_allclose(model(wide), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[1], CASES[4]])  # which have all the layers between them
def test_tensorflow_lite_predicts_the_same_with_built_in_operations_only(case):
    *_, models = _exported(*case)
    converter = tf.lite.TFLiteConverter.from_keras_model(models[1])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    (given,), (found,) = interpreter.get_input_details(), interpreter.get_output_details()
    for tokens in (TOKENS, TOKENS[4:, :1], np.pad(TOKENS, [[0, 0], [0, 4]])):
        interpreter.resize_tensor_input(given["index"], tokens.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], tokens)
        interpreter.invoke()
        expected = models[1](tokens).numpy()
        np.testing.assert_allclose(interpreter.get_tensor(found["index"]), expected, rtol=1e-4, atol=1e-4)


SCRIPT = """
import numpy as np, tensorflow as tf
tokens = np.load("tokens.npy")
for name in sys.argv[1:]:
    model = tf.keras.models.load_model(name + ".keras")
    np.testing.assert_allclose(model(tokens), np.load(name + ".npy"), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.slow
def test_a_saved_model_loads_without_this_library(tmp_path):
    np.save(tmp_path / "tokens.npy", TOKENS)
    names = ["fedweit", "fedseit"]  # which have all the layers between them
    for name, case in zip(names, (CASES[1], CASES[4])):
        model = _exported(*case)[-1][0]
        model.save(tmp_path / f"{name}.keras")
        np.save(tmp_path / f"{name}.npy", model(TOKENS))
    run_bare(SCRIPT, tmp_path, *names)


def test_wrong_arguments_are_input_errors():
    work, state, foreign, _ = _exported(*CASES[4])
    vectors = _vectors()
    for task in (-1, 2):
        with pytest.raises(errors.InputError, match="task: expected 0 to 1"):
            export_keras_model(work, state, task, vectors, foreign[0])
    with pytest.raises(errors.InputError, match="foreign: expected .* found nothing"):
        export_keras_model(work, state, 0, vectors)
    for rows in (foreign[0][:, 1:], foreign[0][0], np.zeros([PLACES + 1, work.knowledge_size], "f")):
        with pytest.raises(errors.InputError, match="foreign: expected float32"):
            export_keras_model(work, state, 0, vectors, rows)
    with pytest.raises(errors.InputError, match=r"vectors: expected float32 \[V, 5\]"):
        export_keras_model(work, state, 0, vectors[:, 1:], foreign[0])


def test_only_text_networks_can_be_exported():
    layers = tf.keras.layers
    network = KerasNetwork(tf.keras.Sequential([tf.keras.Input([5]), layers.Dense(4), layers.Dense(3)]))
    work = DecomposedWork(network, LocalTraining(), Decomposition())
    with pytest.raises(errors.InputError, match="KerasNetwork"):
        export_keras_model(work, {"task": 0}, 0, _vectors())


def test_no_task_has_begun():
    work = _work("fedweit", "closed_form")
    state = work.initialize_client(work.initialize_shared(), work.initialize_plan(), tf.constant([1, 2]))
    with pytest.raises(errors.InputError, match="no task"):
        export_keras_model(work, state, 0, _vectors())
