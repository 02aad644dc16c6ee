"""Plain models say what the driver's own evaluation says, of every network, and cut text as the tokeniser does."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import unicodedata

import command_line
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from bare import run_bare
from hypothesis import strategies

import tffcl
from tffcl import datasets, runtime, use
from tffcl.archive import Shelf
from tffcl.errors import RunError
from tffcl.models import MADE
from tffcl.program import cohorts
from tffcl.templates import compose
from tffcl.use import keras_models

SMALL = {"num_clients": 2, "num_tasks": 2, "num_rounds": 1, "num_epochs": 1, "runtime": "in-process"}
TEXT = {"data": "sample", "num_filters": 4, "kernel_sizes": (2,), "learning_rate": 1e-2, **SMALL}
DOMAINS = {"data": "digits", "hidden": (8,), "embedding_size": 4, "filters": (2, 3), "examples_per_task": 40, **SMALL}


def layers(input_shape, num_classes):
    """A network of the user's, with a dropout."""
    layer = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input(input_shape), layer.Dense(6, "relu"), layer.Dropout(0.2), layer.Dense(num_classes)]
    )


RUNS = {
    "fedseit": ("fedseit", {**TEXT, "kernel_sizes": (2, 3)}),
    "fedweit, one head": ("fedweit", {"share_dense": "start", **TEXT}),
    "replay": ("replay", TEXT),
    "fil-ver of text": ("fil-ver", {"data": "sample", "hidden": (8,), "embedding_size": 4, **SMALL}),
    "images": ("fedavg", {"data": "digits", "hidden": (8,), "filters": (2, 3), **SMALL}),
    "columns": ("ewc", {"data": "iris", "network": layers, **SMALL}),
    "made": ("finetune", {"data": "digits", "hidden": (9, 7), "order_agnostic": True, "num_masks": 2, **SMALL}),
    "fil-ver": ("fil-ver", {"pretraining_epochs": 1, **DOMAINS}),
}


@functools.cache
def _run(name: str, folder: pathlib.Path) -> tuple[use.FinishedRun, tffcl.Plan]:
    method, options = RUNS[name]
    if options["data"] == "sample":
        options = {"embeddings": str(command_line.small_vectors(folder)), **options}
    experiment = tffcl.Experiment(method, output_dir=str(folder / name), **options)
    experiment.run()
    return tffcl.load_run(folder / name), experiment.replace(output_dir=None).plan()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("runs")
    _run.cache_clear()


def _driver(run, plan, client, task):
    """What the driver's evaluation of a client's task sums up."""
    with runtime.in_process():
        own = {client: plan.data.task(client, task)}
        prepared = cohorts.prepare_task(run._process, run.state, plan.transfer, own, task, Shelf())[client]
        view = run._process.task_view(run.state.store[client], task)
        return run._process.evaluate(run.state.server, [view], [prepared.test_data()])[0]


def _raw(plan, client, task):
    """Raw test examples, and the names of their labels."""
    rows, data = plan.stream.task(client, task).test, plan.dataset
    if isinstance(data, datasets.Domains):
        return data[task].test_images(rows), [data.label_names[label] for label in data[task].test_labels[rows]]
    labels = [data.label_names[label] for label in data.test_labels[rows]]
    if plan.kind == "text":
        texts = datasets.load("sample").test_texts
        return tf.constant([texts[row] for row in rows]), labels
    x = data.test_images[rows] if plan.kind == "image" else data.test_x[rows]
    return (x * data.scale + data.centre if plan.kind == "vector" else x), labels


@pytest.mark.slow
@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize("name", [name for name in RUNS if name != "made"])
def test_a_classifier_predicts_what_the_driver_predicts(folder, name):
    run, plan = _run(name, folder)
    for client, task in ((0, 0), (1, 1)):
        x, labels = _raw(plan, client, task)
        outputs = {key: value.numpy() for key, value in run.model(client, task)(x).items()}
        expected = _driver(run, plan, client, task)
        predicted = np.char.decode(outputs["label"].astype(bytes))
        assert (predicted == labels).sum() == expected["correct"]
        names = run.clients[client].tasks[task].labels
        assert [each.decode() for each in outputs["classes"][0]] == list(names)
        chosen = outputs["probabilities"][np.arange(len(labels)), [names.index(label) for label in labels]]
        assert -np.log(chosen).sum() == pytest.approx(float(expected["loss"]), rel=1e-3)
        np.testing.assert_allclose(outputs["probability"], outputs["probabilities"].max(axis=1))
        assert run.clients[client].tasks[task].score == pytest.approx(float((predicted == labels).mean()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_model_is_made_without_composing_the_process(folder, name, monkeypatch):
    read = _run(name, folder)[0]
    expected = read.state.server["shared"]
    monkeypatch.setattr(compose, "_Composer", None)
    run = tffcl.load_run(read.directory)
    assert isinstance(run.model(1, 1), tf.keras.Model)
    np.testing.assert_array_equal(run._learned.server["shared"], expected)
    with pytest.raises(TypeError):
        run.process()


@pytest.mark.slow
@pytest.mark.usefixtures("built_once")
def test_a_density_gives_the_driver_s_log_densities_and_samples(folder):
    run, plan = _run("made", folder)
    for client, task in ((0, 0), (1, 1)):
        x, _ = _raw(plan, client, task)
        plain, found = keras_models.build(run, client, task), run.parameters(client, task)
        outputs = plain.model(x)
        np.testing.assert_allclose(-outputs["log_density"], _driver(run, plan, client, task)["losses"], rtol=1e-4)
        made = MADE.from_task(found.network, found.kernels, found.local, found.plan)
        drawn = made.sample(5, seed=tf.constant([1, 2]))
        np.testing.assert_array_equal(plain.sample(5, tf.constant([1, 2]))["x"], drawn)
        # The conditionals of a mask are those of its density: their product is p.
        under = made.log_prob_of_pattern(x[:4], 1)
        p, bits = outputs["conditionals"].numpy()[:4, 1].astype(np.float64), x[:4]
        np.testing.assert_allclose(np.log(np.where(bits == 1, p, 1 - p)).sum(axis=1), under, rtol=1e-4)


# -- without this library ---------------------------------------------------------------------------------------

SCRIPT = """
import json, numpy as np, tensorflow as tf
for name, inputs in json.load(open("names.json")).items():
    expected = dict(np.load(name + ".npz"))
    x = expected.pop("given")
    x = tf.constant(x.tolist() if x.dtype.kind == "U" else x)
    signature = tf.saved_model.load(name).signatures["serving_default"]
    for found in (tf.keras.models.load_model(name + ".keras")(x), signature(**{inputs: x})):
        assert set(found) == set(expected), (name, set(found))
        for key, value in expected.items():
            value = found[key].numpy() if value.dtype.kind != "U" else np.char.decode(found[key].numpy().astype(bytes))
            (np.testing.assert_array_equal if value.dtype.kind == "U" else np.testing.assert_allclose)(
                value, expected[key], *([] if value.dtype.kind == "U" else [1e-4, 1e-4]))
rows = tf.saved_model.load("made").signatures["sample"](count=tf.constant(3), seed=tf.constant([1, 2]))["x"]
np.testing.assert_array_equal(rows, np.load("samples.npy"))
"""


DTYPES = {"columns": np.float32}


def _plain(values):
    """Numbers, or text as numpy keeps it."""
    return np.char.decode(values.astype(bytes)) if values.dtype == object else values


@pytest.mark.slow
def test_models_load_and_are_served_without_this_library(folder, tmp_path):
    inputs = {"fedseit": "text", "columns": "features", "fil-ver": "image", "made": "x"}
    for name in inputs:
        run, plan = _run(name, folder)
        x, _ = _raw(plan, 0, 1)
        x = x[:7]
        for format, ending in (("keras", ".keras"), ("savedmodel", "")):
            assert use.export(run, 0, 1, format, tmp_path / f"{name}{ending}") == [tmp_path / f"{name}{ending}"]
        outputs = {key: _plain(value.numpy()) for key, value in run.model(0, 1)(x).items()}
        given = _plain(tf.constant(x).numpy()) if name == "fedseit" else np.asarray(x, DTYPES.get(name, np.uint8))
        np.savez(tmp_path / f"{name}.npz", given=given, **outputs)
    np.save(tmp_path / "samples.npy", keras_models.build(_run("made", folder)[0], 0, 1).sample(3, [1, 2])["x"])
    (tmp_path / "names.json").write_text(json.dumps(inputs))
    run_bare(SCRIPT, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedseit", "columns", "images", "fil-ver", "made"])
def test_tensorflow_lite_says_the_same_with_built_in_operations(folder, tmp_path, name):
    run, plan = _run(name, folder)
    written = use.export(run, 0, 0, "tflite", tmp_path / "model.tflite")
    beside = json.loads(written[1].read_text())
    x, _ = _raw(plan, 0, 0)
    expected = {key: value.numpy() for key, value in run.model(0, 0)(x[:5]).items()}
    if name == "fedseit":
        words = {word: number for number, word in enumerate(beside["words"], beside["first_word_id"])}
        cut = [datasets.tokenise(text.decode(), unicode=beside["tokeniser"] == "unicode") for text in x[:5].numpy()]
        longest = max(map(len, cut))
        given = np.array([[*(words.get(w, 1) for w in row), *[0] * (longest - len(row))] for row in cut], np.int32)
    else:
        given = np.asarray(x[:5])
    interpreter = tf.lite.Interpreter(model_path=str(written[0]))
    (entry,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(entry["index"], given.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(entry["index"], given.astype(entry["dtype"]))
    interpreter.invoke()
    found = {tuple(each["shape"]): interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()}
    for key in ("log_density", "conditionals") if name == "made" else ("probabilities",):
        np.testing.assert_allclose(found[expected[key].shape], expected[key], rtol=1e-3, atol=1e-4)
    if name != "made":
        assert beside["labels"] == list(run.clients[0].tasks[0].labels)


# -- the tokeniser inside the graph -----------------------------------------------------------------------------

ALPHABET = (
    "abcXYZ'stveNTdl ()!?,.-\u2019\u00e9\u0301\u200b\u200d\u00ad\u4e2d\u03a3\u0130\u00df\u017f\u212a\u0085\u0663"
    "\U0001d538"
)
RULES = {True: functools.partial(keras_models.standardised, unicode=True),
         False: functools.partial(keras_models.standardised, unicode=False)}  # fmt: skip


@hypothesis.given(strategies.lists(strategies.text(ALPHABET, max_size=30), min_size=1, max_size=20))
@pytest.mark.parametrize("unicode", [True, False])
def test_the_graph_cuts_text_as_the_tokeniser_does(unicode, texts):
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    found = RULES[unicode](tf.constant(texts)).numpy()
    assert [each.decode().split() for each in found] == [datasets.tokenise(text, unicode=unicode) for text in texts]


def test_all_characters_are_read_as_the_tokeniser_reads_them():
    characters = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000]
    texts = [unicodedata.normalize("NFC", f"a{each}b {each}c") for each in characters]
    found = RULES[True](tf.constant(texts)).numpy()
    wrong = [text for text, each in zip(texts, found) if each.decode().split() != datasets.tokenise(text)]
    # Capitals that are younger than TensorFlow's tables.
    assert len(wrong) < 60
    assert all(any(each.lower() != each for each in text[1:2]) for text in wrong)


def test_a_word_is_known_in_both_of_unicode_s_forms():
    vectors = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    words, extended = keras_models._with_decomposed(("caf\u00e9", "tea"), vectors)
    assert words == ("caf\u00e9", "tea", "cafe\u0301")
    np.testing.assert_array_equal(extended[4], vectors[2])
    assert keras_models._with_decomposed(("tea",), vectors[:3])[0] == ("tea",)


def test_a_tokeniser_of_one_s_own_is_no_part_of_a_model(folder, monkeypatch):
    run, _ = _run("fedweit, one head", folder)
    monkeypatch.setattr(run.plan, "dataset", dataclasses.replace(run.plan.dataset, unicode=None))
    with pytest.raises(RunError, match="tokeniser of your own"):
        keras_models.build(run, 0, 0)
