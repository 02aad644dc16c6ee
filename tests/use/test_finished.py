"""load_run, predict and evaluate on a run of text; what is wrong with each command's input is one line."""

from __future__ import annotations

import csv
import functools
import io
import json
import pathlib
import re
import shutil

import command_line
import numpy as np
import pytest
import tensorflow as tf
from command_line import wrong

import tffcl
from tffcl import datasets, storage, use
from tffcl.errors import DatasetError, InputError, RunError
from tffcl.experiment import record

pytestmark = pytest.mark.usefixtures("built_once")

TEXTS = datasets.load("sample")


def _trained(folder, output_dir, **options):
    """A run on a table of the user's, as the command line starts it."""
    with open(folder / "questions.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "question", "topic"])
        rows.writerows(
            (n, text, TEXTS.label_names[label])
            for n, (text, label) in enumerate(zip(TEXTS.train_texts[:400], TEXTS.train_labels))
        )
    tffcl.Experiment(
        "fedweit", data=str(folder / "questions.csv"), text_column="question", label_column="topic",
        embeddings=str(command_line.small_vectors(folder)), num_filters=4, num_clients=2, num_tasks=2, num_rounds=1,
        num_epochs=1, learning_rate=1e-2, labels_per_task=2, runtime="in-process", output_dir=str(output_dir),
        **options,
    ).run()  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("text")
    _trained(made, made / "run")
    yield made
    _run.cache_clear()


@functools.cache
def _run(folder):
    return tffcl.load_run(folder / "run")


# -- the view ---------------------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_was(folder):
    run, results = _run(folder), json.loads((folder / "run" / "results.json").read_text())
    assert run.finished
    assert (run.num_clients, run.num_tasks, run.ended) == (2, 2, 2)
    np.testing.assert_allclose(run.scores, np.array(results["accuracy"], float))
    assert run.config.loc[0, "num_filters"] == 4
    assert run.config.shape[0] == 1
    table = datasets.from_directory(folder / "questions.csv", text_column="question", label_column="topic")
    plan = tffcl.Experiment.from_config(
        {}, method="fedweit", data=str(folder / "questions.csv"), text_column="question", label_column="topic",
        embeddings=str(folder / "small.txt"), num_clients=2, num_tasks=2, labels_per_task=2,
    ).plan()  # fmt: skip
    for client in run.clients:
        for task in client.tasks:
            expected = plan.stream.task(client.number, task.number)
            for name in ("train", "validation", "test"):
                np.testing.assert_array_equal(getattr(task, name), getattr(expected, name))
            assert task.labels == tuple(table.label_names[label] for label in expected.labels)
            assert task.score == results["accuracy"][client.number][1][task.number]


def test_frames_are_tidy(folder):
    run, results = _run(folder), json.loads((folder / "run" / "results.json").read_text())
    assert list(run.history.columns) == ["method", "seed", "client", "task", "round", "metric", "value"]
    sent = run.history.query("metric == 'bytes_up'").groupby("client").value.sum()
    assert sent.tolist() == [sum(each) for each in results["bytes_up"]]
    scores = run.accuracy
    end = scores[(scores.after_task == 1) & scores["round"].isna()]
    assert end.groupby(["client", "task"]).value.first().unstack().to_numpy().tolist() == [
        of_client[1] for of_client in results["accuracy"]
    ]
    assert set(scores.metric) == {"accuracy"}
    assert (run.history.method == "fedweit").all()


def test_a_run_prints_as_a_short_table(folder):
    run = _run(folder)
    text, page = repr(run), run._repr_html_()
    mean = f"{100 * json.loads((folder / 'run' / 'results.json').read_text())['task_averaged_test_accuracy']:.1f}"
    assert len(text.split("\n")) == 4
    for part in ("fedweit", "questions", "2 x 2", mean):
        assert part in text
        assert part in page
    assert page.count("<circle") == 2
    assert 'fill="currentColor"' in page  # readable in a notebook of dark colours
    assert "accuracy %, mean of the tasks so far, after each task</small>" in page
    assert "Traceback" not in text


def test_the_process_is_that_of_the_run(folder):
    from tffcl import runtime

    with runtime.in_process():
        process = _run(folder).process()
    assert process.num_foreign == 1
    assert process.max_classes == 2


@pytest.mark.slow
def test_states_that_clients_keep_are_read_where_they_lie(folder, tmp_path):
    _trained(folder, tmp_path / "run", client_dir=str(tmp_path / "clients"))
    run, text = tffcl.load_run(tmp_path / "run"), tf.constant(TEXTS.test_texts[:50])
    found, expected = (each.model(1, 1)(text)["probabilities"] for each in (run, _run(folder)))
    np.testing.assert_allclose(found, expected, atol=0.01)  # what a run keeps itself is rounded
    assert list(run.state.store[0]) == list(_run(folder).state.store[0])  # in the order that computations take
    shutil.rmtree(tmp_path / "clients")
    with pytest.raises(RunError, match="its clients keep their states themselves; client 0: cannot read") as raised:
        tffcl.load_run(tmp_path / "run").model(0, 0)
    assert "\n" not in str(raised.value)


def test_a_run_directory_holds_no_pickle_and_nothing_is_written_to_it(folder):
    run = folder / "run"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    tffcl.load_run(run).parameters(0, 1)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    for path in run.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                assert arrays[name].dtype.kind in "biufU", (path, name)
    recorded = storage.read_object(run / record.NAME, "a record")
    assert recorded["tffcl"] == tffcl.__version__
    assert recorded["packages"]["tensorflow"]
    assert len(recorded["code"]) == 16
    vocabulary = storage.read_object(run / "vocabulary.json", "a vocabulary")
    assert vocabulary["words"][:2] == ["<padding>", "<unknown>"]
    assert vocabulary["tokeniser"] == "unicode"


# -- predictions ------------------------------------------------------------------------------------------------

ROWS = [("1", "Who wrote it, then?"), ("2", 'What is "it"?'), ("3", ""), ("4", "L'\u00e9t\u00e9 \u2028 o\u00f9?")]


def _predicted(run, client, task, texts):
    import tensorflow as tf

    found = run.model(client, task)(tf.constant(texts))
    return [each.decode() for each in found["label"].numpy()], found["probability"].numpy()


def _written(kind, folder):
    """A file of `ROWS`, and how its rows are read back from an output."""
    path = folder / f"rows.{kind}"
    if kind == "csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([("id", "question"), *ROWS])
        return path, lambda text: list(csv.DictReader(io.StringIO(text)))
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"id": n, "question": text}, ensure_ascii=False) + "\n" for n, text in ROWS))
        return path, lambda text: [json.loads(line) for line in text.split("\n")[:-1]]
    if kind == "tsv":
        path.write_text("id\tquestion\n" + "".join(f"{n}\t{text}\n" for n, text in ROWS))
    else:
        path.write_text("".join(f"{text}\n" for _, text in ROWS))
    names = ["question", "label", "probability"]

    def read(text):
        lines = [line.split("\t") for line in text.split("\n")[:-1]]
        return [dict(zip(names if kind == "txt" else lines[0], line)) for line in lines[kind == "tsv" :]]

    return path, read


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "txt"])
@pytest.mark.parametrize("whole", [True, False])
def test_rows_come_back_with_label_and_probability(folder, tmp_path, run, kind, whole):
    path, read = _written(kind, tmp_path)
    flags = ["--client", "1", "--task", "0", "--text-column", "question"]
    flags += ["--output", tmp_path / "out"] if whole else []
    done = run("predict", folder / "run", path, *flags)
    assert done.returncode == 0, done.stderr
    rows = read((tmp_path / "out").read_text() if whole else done.stdout)
    labels, sure = _predicted(_run(folder), 1, 0, [text for _, text in ROWS])
    assert [row["question"] for row in rows] == [text for _, text in ROWS]
    assert [row["label"] for row in rows] == labels
    np.testing.assert_allclose([float(row["probability"]) for row in rows], sure, atol=1e-5)


def test_rows_are_written_while_others_are_still_to_come(folder):
    run, seen = _run(folder), []

    class Out(io.StringIO):
        def flush(self):
            seen.append(self.getvalue().count("\n"))

    import contextlib

    path = folder / "many.txt"
    path.write_text("Who?\n" * 600)
    with contextlib.redirect_stdout(Out()):
        assert use.predict(run, str(path), 0, 1) == 600
    assert seen[:3] == [256, 512, 600]


def test_without_a_task_the_surest_model_says_the_label(folder, tmp_path, run):
    path, read = _written("csv", tmp_path)
    done = run("predict", folder / "run", path, "--client", 0, "--text-column", "question")
    texts = [text for _, text in ROWS]
    each = [_predicted(_run(folder), 0, task, texts) for task in (0, 1)]
    for number, row in enumerate(read(done.stdout)):
        best = int(each[1][1][number] > each[0][1][number])  # both have two classes
        assert (row["task"], row["label"]) == (str(best), each[best][0][number])


def test_new_data_are_scored_by_client_and_task(folder, run):
    known = {label for client in _run(folder).clients for task in client.tasks for label in task.labels}
    rows = [n for n in range(400) if TEXTS.label_names[TEXTS.train_labels[n]] in known]
    with open(folder / "known.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [("question", "topic"), *((TEXTS.train_texts[n], TEXTS.label_names[TEXTS.train_labels[n]]) for n in rows)]
        )
    frame = use.evaluate(_run(folder), str(folder / "known.csv"), text_column="question", label_column="topic")
    for _, line in frame.iterrows():
        names = line.labels.split("+")
        chosen = [n for n in rows if TEXTS.label_names[TEXTS.train_labels[n]] in names]
        labels, _ = _predicted(_run(folder), line.client, line.task, [TEXTS.train_texts[n] for n in chosen])
        right = np.mean([label == TEXTS.label_names[TEXTS.train_labels[n]] for label, n in zip(labels, chosen)])
        assert (line.rows, line.accuracy) == (len(chosen), pytest.approx(right))
    done = run("evaluate", folder / "run", "--data", folder / "known.csv", "--text-column", "question",
               "--label-column", "topic", "--client", 1)  # fmt: skip
    assert done.stdout.split("\n")[0].split() == ["client", "task", "labels", "rows", "accuracy", "%"]
    assert [line.split()[0] for line in done.stdout.split("\n")[1:3]] == ["1", "1"]


# -- what is wrong ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken(folder, tmp_path):
    """Makes a copy of the run, and takes something away."""

    def copy(*gone):
        target = tmp_path / "copy"
        shutil.copytree(folder / "run", target)
        for name in gone:
            shutil.rmtree(target / name) if (target / name).is_dir() else (target / name).unlink()
        return target

    return copy


COMMANDS = {
    "export": lambda place, tmp: ["export", place, tmp / "out.keras", "--client", 0, "--task", 1],
    "predict": lambda place, tmp: ["predict", place, tmp / "rows.txt", "--client", 0],
    "evaluate": lambda place, tmp: ["evaluate", place, "--data", tmp / "rows.csv"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (None, "no such run directory"),
        (["results.json"], "is not finished: 2 of 2 tasks"),
        (["run.json"], "comes from an older tffcl"),
        (["vocabulary.json"], "vocabulary"),
        (["data.npz"], "data.npz"),
        (["split.npz"], "split.npz"),
        (["checkpoints"], "holds no checkpoint"),
    ],
)
def test_a_run_that_cannot_be_used_is_one_line(run, broken, tmp_path, command, gone, words):
    (tmp_path / "rows.txt").write_text("Who?\n")
    (tmp_path / "rows.csv").write_text("text,label\nWho?,human\nIt,entity\nIt,description\nWhere,location\nNo,number\n")
    place = tmp_path / "nothing" if gone is None else broken(*gone)
    wrong(run(*COMMANDS[command](place, tmp_path)), words)
    assert not (tmp_path / "out.keras").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["export", "RUN", "out.keras", "--client", 2, "--task", 0], "has no client 2; its clients are 0 to 1"),
        (["export", "RUN", "out.keras", "--client", 0, "--task", -1], "has no task -1"),
        (["export", "RUN", "out.keras", "--client", 0, "--task", 5], "has no task 5; its tasks are 0 to 1"),
        (["export", "RUN", "out.keras", "--client", 0, "--task", 0, "--format", "onnx"], "'onnx' is not one of"),
        (["export", "RUN", "out.h5", "--client", 0, "--task", 0], "ends in .keras"),
        (["export", "RUN", "there.keras", "--client", 0, "--task", 0], "is there already"),
        (["export", "RUN", "rows.txt/a.keras", "--client", 0, "--task", 0], "is a file"),
        (["export", "RUN", "/proc/a.keras", "--client", 0, "--task", 0], "cannot write /proc/a.keras"),
        (["export", "RUN", "/proc/a", "--client", 0, "--task", 0, "--format", "savedmodel"], "cannot write /proc/a"),
        (["export", "RUN", "/proc/a.tflite", "--client", 0, "--task", 0, "--format", "tflite"], "cannot write /proc/a"),
        (["predict", "RUN", "rows.txt", "--client", 7], "has no client 7"),
        (["predict", "RUN", "rows.txt", "--client", 0, "--task", 9], "has no task 9"),
        (["predict", "RUN", "rows.txt", "--client", 0, "--task", "best"], "expected a number or auto"),
        (["predict", "RUN", "nothing.txt", "--client", 0], "no such file"),
        (["predict", "RUN", "empty.txt", "--client", 0], "holds no rows"),
        (["predict", "RUN", "empty.csv", "--client", 0], "holds no rows"),
        (["predict", "RUN", "rows.csv", "--client", 0, "--text-column", "words"], "expected one column 'words'"),
        (["predict", "RUN", "rows.jsonl", "--client", 0], "line 2: expected an object with 'text'"),
        (["predict", "RUN", "broken.jsonl", "--client", 0], "line 1: not valid JSON"),
        (["predict", "RUN", "ragged.csv", "--client", 0], "line 3: expected 2 fields, found 1"),
        (["predict", "RUN", "latin.txt", "--client", 0], "not UTF-8"),
        (["predict", "RUN", "images.npz", "--client", 0], "learned from text, and this holds arrays"),
        (["predict", "RUN", "rows.txt", "--client", 0, "--output", "no/where"], "cannot write"),
        (["evaluate", "RUN", "--data", "rows.csv", "--client", 3], "has no client 3"),
        (["evaluate", "RUN", "--data", "rows.csv"], "line 3: the label 'weather' is in no task"),
        (["evaluate", "RUN", "--data", "rows.csv", "--label-column", "topic"], "expected one column 'topic'"),
        (["evaluate", "RUN", "--data", "rows.txt"], "plain lines have no labels"),
        (["evaluate", "RUN", "--data", "unlabelled.csv"], "line 2: expected a text or a whole number as label"),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else "",
)
def test_input_that_does_not_fit_is_one_line(folder, tmp_path, run, flags, words):
    files = {
        "rows.txt": "Who?\n", "empty.txt": "", "empty.csv": "text,label\n", "there.keras": "",
        "rows.csv": "text,label\nWho?,human\nRain?,weather\n", "unlabelled.csv": "text,label\nWho?,\n",
        "rows.jsonl": '{"text": "Who?"}\n{"txt": "Who?"}\n', "broken.jsonl": "{\n",
        "ragged.csv": "text,label\na,b\nc\n",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait\n")
    np.savez(tmp_path / "images.npz", x=np.zeros([2, 8, 8]))
    done = run(*[folder / "run" if each == "RUN" else each for each in flags], cwd=tmp_path)
    wrong(done, words)
    assert not done.stdout
    assert not (tmp_path / "out.keras").exists()


def test_rows_that_do_not_fit_are_told_before_a_model_is_made(folder, tmp_path, monkeypatch):
    (tmp_path / "broken.jsonl").write_text("{\n")
    monkeypatch.setattr(use.FinishedRun, "model", None)
    with pytest.raises(DatasetError, match="line 1: not valid JSON"):
        use.predict(_run(folder), str(tmp_path / "broken.jsonl"), 0)


def test_a_method_in_a_file_runs_its_code_only_where_that_is_allowed(broken, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('this code ran')\n")
    target = broken()
    recorded = json.loads((target / record.NAME).read_text())
    (target / record.NAME).write_text(json.dumps({**recorded, "method": f"{tmp_path}/mine.py:method"}))
    with pytest.raises(RunError, match="whose code would run"):
        tffcl.load_run(target).plan  # noqa: B018
    with pytest.raises((InputError, RunError, SystemExit), match="this code ran"):
        tffcl.load_run(target, allow_code=True).plan  # noqa: B018


@pytest.mark.parametrize("name", ["run.json", "config.json", "vocabulary.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 99}'])
def test_a_damaged_file_is_one_error(broken, name, content):
    target = broken()
    (target / name).write_text(content)
    with pytest.raises(RunError) as raised:
        tffcl.load_run(target).model(0, 0)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_snippets_of_the_pages_on_runs_run(folder, tmp_path, monkeypatch, capsys):
    docs = pathlib.Path(__file__).parents[2] / "docs"
    pages = "".join((docs / name).read_text() for name in ("from-run-to-use.md", "runs.md"))
    snippets = re.findall(r"<!-- run -->\n```python\n(.*?)```", pages, re.S)
    assert len(snippets) == 3
    (tmp_path / "runs").mkdir()
    shutil.copytree(folder / "run", tmp_path / "runs" / "questions")
    for format, name in (("keras", "model.keras"), ("savedmodel", "model")):
        use.export(_run(folder), 0, 1, format, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for snippet in snippets:
        exec(compile(snippet, "docs", "exec"), {})
    assert "fedweit" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} >= {"questions-matrix.pdf", "questions-rounds.pdf", "average.svg"}


def test_results_in_memory_have_no_directory_to_read():
    with pytest.raises(RunError, match="in memory alone"):
        tffcl.load_run(None)


def test_a_reader_that_has_enough_ends_the_command_quietly(folder, monkeypatch):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    assert use.predict(_run(folder), str(folder / "questions.csv"), 0, 1, text_column="question") == 0


def test_a_classifier_in_closed_form_is_said_to_have_no_model_and_its_checkpoint_not_to_be_damaged(tmp_path):
    tffcl.Experiment(
        "afcl", data="iris", num_clients=2, num_tasks=2, labels_per_task=1, width=8, quiet=True,
        output_dir=str(tmp_path / "run"),
    ).run()  # fmt: skip
    with pytest.raises(RunError, match=r"run: no model can be taken out of a AnalyticWork"):
        tffcl.load_run(tmp_path / "run").model(0, 1)
