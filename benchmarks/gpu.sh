#!/usr/bin/env bash
# The three examples on this machine's GPU and on its CPU, one after the other, and the ratio of their seconds in rounds:
#
#     benchmarks/gpu.sh [docs/results.md]     # prints a Markdown table; with a page, between its markers `gpu`
#
# Needs a GPU that TensorFlow 2.14 can use; brings the CUDA libraries of the extra `cuda` into an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:-}
export UV_PROJECT_ENVIRONMENT=${UV_PROJECT_ENVIRONMENT:-.venv-gpu}
uv sync --quiet --extra cuda
# What would be in vain comes before hours of runs: no GPU, or a page without a place for the table.
uv run --extra cuda python - "$page" <<'PYTHON'
import sys

from tffcl.errors import InputError
from tffcl.papers import tables
from tffcl.runtime import quiet

quiet.quiet_logs()
import tensorflow as tf

if not tf.config.list_physical_devices("GPU"):
    sys.exit("gpu.sh: TensorFlow finds no GPU here; nothing was run")
try:
    sys.argv[1] and tables.write_table(f"{sys.argv[1]}#gpu")
except InputError as error:
    sys.exit(f"gpu.sh: {error}")
PYTHON

runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
for example in fedseit_trec confedmade_mnist fil_ver_emnist; do
  for device in gpu cpu; do
    visible=-1
    [ "$device" = cpu ] || visible=${CUDA_VISIBLE_DEVICES:-0}
    CUDA_VISIBLE_DEVICES=$visible uv run --extra cuda "examples/$example.py" \
      --output-dir "$runs/$example-$device" >"$runs/$example-$device.log" 2>&1 ||
      { tail -n 5 "$runs/$example-$device.log" >&2; exit 1; }
  done
done

uv run --extra cuda python - "$runs" "$page" <<'PYTHON'
import json
import pathlib
import sys

from tffcl.papers import tables

runs, page = pathlib.Path(sys.argv[1]), sys.argv[2]
rows = []
for example in ("fedseit_trec", "confedmade_mnist", "fil_ver_emnist"):
    seconds = {}
    for device in ("gpu", "cpu"):
        results = sorted((runs / f"{example}-{device}").rglob("results.json"))
        seconds[device] = sum(json.loads(path.read_text())["seconds"]["total"] for path in results)
    ratio = seconds["cpu"] / seconds["gpu"]
    rows.append([f"`examples/{example}.py`", f"{seconds['gpu']:.1f}", f"{seconds['cpu']:.1f}", f"{ratio:.2f}"])
table = tables.markdown(["example", "GPU, s in rounds", "CPU, s in rounds", "CPU / GPU"], rows)
print(table)
if page:
    tables.write_table(f"{page}#gpu", table)
PYTHON
