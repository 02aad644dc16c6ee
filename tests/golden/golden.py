"""Golden runs: small runs of every method, whose configuration, history and results are recorded here.

    python tests/golden/golden.py record [NAME...]     # writes tests/golden/records/NAME.json
    python tests/golden/golden.py check [NAME...]      # compares with them; --runtime local for a worker

Numbers are compared to the digit on a machine whose floating-point units give the recorded bits (`probe`), and within
`TOLERANCE` elsewhere: another instruction set rounds sums in another order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

RECORDS = pathlib.Path(__file__).parent / "records"
TOLERANCE = {"accuracy": 0.15, "nll": 0.02}  # absolute, and relative
_TIMES = ("seconds", "training_seconds")
_CODE_VERSION = ("version", "packages", "code")
_SCORES = ("method", "dataset", "num_clients", "num_tasks", "accuracy", "nll", "accuracy_by_task", "average_nll")

_TEXT = ["--dataset", "sample", "--num-clients", "2", "--num-tasks", "3", "--num-rounds", "2", "--num-epochs", "2",
         "--learning-rate", "1e-3", "--embeddings", "own"]  # fmt: skip
_DENSITY = ["--dataset", "digits", "--num-clients", "2", "--num-tasks", "3", "--num-rounds", "2", "--num-epochs", "3",
            "--hidden", "20"]  # fmt: skip
_DOMAIN = ["--dataset", "digits", "--num-tasks", "3", "--num-rounds", "2", "--num-epochs", "2", "--hidden", "20",
           "--embedding-size", "8", "--filters", "4,8", "--pretraining-epochs", "3", "--examples-per-task", "60",
           "--client-memory", "30", "--send-per-round", "10", "--server-memory", "60", "--sst-steps", "20"]  # fmt: skip
_CLIENTS = ["--num-clients", "3"]


def _runs() -> Iterator[tuple[str, list[str]]]:
    for name, flags in {
        "fedseit": [],
        "fedseit-sit": ["--selection", "sit", "--top-k", "2"],
        "fedseit-dls": ["--share-dense"],
        "fedseit-aligned": ["--share-dense", "start"],
        "fedseit-closed-form": ["--retention-form", "closed_form"],
        "alone-warm": ["--method", "alone", "--warm-start"],
        "fedseit-zeros": ["--foreign", "zeros"],
        "fedseit-random": ["--foreign", "random"],
        "fedseit-lambda": ["--retention", "0.1", "--clients-per-round", "1", "--evaluate-every", "task"],
        "fedweit": ["--method", "fedweit"],
        "fedavg": ["--method", "fedavg"],
        "local": ["--method", "local"],
    }.items():
        yield f"text-{name}", ["run", "fedseit", *_TEXT, *flags]
    for method in ("confedmade", "fedweit-made-sync", "fedweit-made", "finetune", "fedprox-ewc", "fedcurv", "fedprox",
                   "replay", "cl-finetune", "cl-ewc", "cl-replay", "federated-offline", "offline"):  # fmt: skip
        yield f"density-{method}", ["run", "confedmade", *_DENSITY, "--method", method]
    for name, flags in {
        "agnostic": ["--order-agnostic", "--connectivity-agnostic", "--num-masks", "2"],
        "distinct": ["--method", "finetune", "--distinct-masks", "--order", "random"],
        "sampled": ["--selection", "sampled", "--top-k", "1", "--clients-per-round", "1"],
    }.items():
        yield f"density-{name}", ["run", "confedmade", *_DENSITY, *flags]
    for method in ("fil-ver", "ver-stats", "ver", "ebr", "ebr-no-sst", "vanilla", "offline", "offline-ebr",
                   "offline-end-to-end"):  # fmt: skip
        yield f"domain-{method}", ["run", "fil-ver", *_DOMAIN, *_CLIENTS, "--method", method]
    for method in ("none", "noise", "random-encoder", "naive", "naive-end-to-end", "ebr-1x", "ebr-16x"):
        yield f"domain-{method}", ["run", "fil-ver", *_DOMAIN, "--method", method]
    yield "domain-federated", ["run", "fil-ver", *_DOMAIN, *_CLIENTS, "--pretraining", "federated",
                               "--enrollment", "scattered", "--proximal", "0.1"]  # fmt: skip


RUNS = dict(_runs())
# The whole run of a method on a kind of data that tests need not do again.
PAIRS = {
    ("local", "text"): "text-local", ("fedweit", "text"): "text-fedweit", ("fedseit", "text"): "text-fedseit-sit",
    ("replay", "binary"): "density-replay", ("fedcurv", "binary"): "density-fedcurv",
    ("confedmade", "binary"): "density-confedmade", ("fil-ver", "image"): "domain-fil-ver",
}  # fmt: skip


def probe() -> str:
    """A checksum of what this machine makes of a matrix product, a convolution and transcendental functions.

    The gradient of a convolution's kernel is a sum whose parts are those of the threads that TensorFlow has. Other sums
    have parts of the size of a core's cache: the processor's model counts, too.
    """
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal([64, 300]).astype(np.float32), rng.standard_normal([300, 128]).astype(np.float32))
    image, kernel = a[:, :256].reshape(64, 16, 16, 1), b[:225, :4].reshape(15, 15, 1, 4)
    values = [tf.matmul(a, b), tf.exp(a), tf.tanh(a), tf.nn.conv2d(image, kernel, 1, "SAME"), tf.reduce_sum(a, 1)]
    images, errors = rng.standard_normal([64, 28, 28, 1]), rng.standard_normal([64, 28, 28, 16])
    values.append(tf.raw_ops.Conv2DBackpropFilter(
        input=images.astype(np.float32), filter_sizes=[3, 3, 1, 16], out_backprop=errors.astype(np.float32),
        strides=[1, 1, 1, 1], padding="SAME",
    ))  # fmt: skip
    cores = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].split("\n")
    model = [line for line in cores if line.startswith(("vendor_id", "cpu family", "model\t", "cache size"))]
    made = b"".join(value.numpy().tobytes() for value in values)
    return hashlib.sha256(made + "\n".join(model).encode()).hexdigest()[:16]


def run(name: str, runtime: str = "in-process") -> dict[str, Any]:
    """Runs one and returns config, history and results, without times."""
    from tffcl.flags import parse_run

    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        os.environ.pop("TFFCL_DATA_DIR", None)
        target = pathlib.Path(folder) / "run"
        parse_run([*RUNS[name][1:], "--runtime", runtime, "--output-dir", str(target)]).run()
        history = [json.loads(line) for line in (target / "history.jsonl").read_text().split("\n") if line]
        found = {
            "config": json.loads((target / "config.json").read_text()),
            "history": history,
            "results": json.loads((target / "results.json").read_text()),
        }
    return _timeless(found)


def compared(found: dict[str, Any], recorded: dict[str, Any], runtime: str = "in-process") -> list[str]:
    """Where a run differs from its record.

    All numbers, to the digit, where this machine and this runtime round as those of the record do; else the scores
    alone, within `TOLERANCE`: how many bits are sent, and when patience runs out, hangs from the last digit of a loss.
    """
    record = {name: value for name, value in recorded.items() if name != "probe"}
    if recorded["probe"] == probe() and runtime == "in-process":
        return differences(found, record, True)
    return differences(*({name: run["results"].get(name) for name in _SCORES} for run in (found, record)), False)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _timeless(entry) for key, entry in value.items() if key not in (*_TIMES, *_CODE_VERSION, "checksum")
        }
    return [_timeless(entry) for entry in value] if isinstance(value, list) else value


def differences(found: Any, recorded: Any, exact: bool, path: str = "") -> list[str]:
    """Where two records differ; numbers may by `TOLERANCE` unless `exact`."""
    if isinstance(found, dict) and isinstance(recorded, dict):
        different = [f"{path}.{key}: only in one" for key in set(found) ^ set(recorded)]
        for key in sorted(set(found) & set(recorded)):
            different += differences(found[key], recorded[key], exact, f"{path}.{key}")
        return different
    if isinstance(found, list) and isinstance(recorded, list):
        if len(found) != len(recorded):
            return [f"{path}: {len(found)} entries, {len(recorded)} recorded"]
        return [
            line
            for place, pair in enumerate(zip(found, recorded))
            for line in differences(*pair, exact, f"{path}[{place}]")
        ]
    if found == recorded or (not exact and _near(found, recorded)):
        return []
    return [f"{path}: {found!r}, recorded {recorded!r}"]


def _near(found: Any, recorded: Any) -> bool:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (found, recorded))
    return numbers and (
        abs(found - recorded) <= TOLERANCE["accuracy"] or math.isclose(found, recorded, rel_tol=TOLERANCE["nll"])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("record", "check", "list"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runtime", default="in-process")
    parser.add_argument("--records", type=pathlib.Path, default=RECORDS)
    parser.add_argument(
        "--common-config", action="store_true", help="Settings that only one side records do not count."
    )
    given = parser.parse_args()
    if given.action == "list":
        print("\n".join(RUNS))
        return 0
    names = [name for name in RUNS if not given.names or any(name.startswith(each) for each in given.names)]
    given.records.mkdir(parents=True, exist_ok=True)
    here, failures = probe(), 0
    for name in names:
        path = given.records / f"{name}.json"
        if given.action == "record" and path.exists():
            continue
        found = run(name, given.runtime)
        if given.action == "record":
            path.write_text(json.dumps({"probe": here, **found}, indent=1) + "\n")
            print(f"{name}: recorded", file=sys.stderr)
            continue
        recorded = json.loads(path.read_text())
        if given.common_config:
            for side in (found, recorded):
                side["results"].pop("config")
            shared = set(found["config"]) & set(recorded["config"])
            for side in (found, recorded):
                side["config"] = {key: value for key, value in side["config"].items() if key in shared}
        different = compared(found, recorded, given.runtime)
        failures += bool(different)
        print(f"{name}: {'differs' if different else 'as recorded'}", *different[:5], sep="\n  ", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.path.append(str(pathlib.Path(__file__).parents[1]))
    import repeatable  # noqa: F401 (before NumPy)

    from tffcl.runtime import quiet

    quiet.quiet_logs()
    sys.exit(main())
