"""Fashion-MNIST in 5 tasks of 2 classes, one growing head: methods by how unlike clients are, over seeds.

    python benchmarks/class_incremental.py --output-dir runs/ci --data-dir DATA

One process, no worker; what is there already is left, and a run that was stopped goes on. Weights of penalties are
chosen by what clients hold out of the first two tasks (`search.json`), with a seed that is not among the others; no
test example takes part in that. At the end `table.md`: the mean over seeds with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time

import tffcl
from tffcl.reports import summary

ALPHAS, SEEDS, SEARCH_SEED = (0.5, 0.1), (1, 2, 3, 4, 5), 100
METHODS = ("fedavg", "fedprox", "ewc", "lwf", "er", "afcl", "prototypes", "offline")
TRAINED = {
    "network": "mlp",
    "hidden": (256,),
    "num_rounds": 5,
    "num_epochs": 2,
    "batch_size": 64,
    "learning_rate": 1e-3,
}
CANDIDATES = {
    "fedprox": ("proximal", (0.01, 0.1, 1.0)),
    "ewc": ("penalty", (10.0, 1000.0, 100000.0)),
    "lwf": ("distillation", (1.0, 3.0, 10.0)),
}


def experiment(method: str, alpha: float, seed: int, arguments: argparse.Namespace, **options) -> tffcl.Experiment:
    """One run; the split and everything that is drawn follow from the seed."""
    sizes = {} if method in ("afcl", "prototypes") else TRAINED
    return tffcl.Experiment(
        method, data="fashion-mnist", data_dir=arguments.data_dir, **{
            "scenario": "class-incremental", "num_tasks": 5, "labels_per_task": 2, "num_clients": 5,
            "partition": "dirichlet", "alpha": alpha, "seed": seed, "split_seed": seed, "validation_share": 0.0,
            "evaluate_every": "task", "keep": "none", "quiet": True, "resume": True, **sizes, **options,
        },
    )  # fmt: skip


def searched(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The weight of each penalty with the best mean of A_t on held-out examples of tasks 1 and 2."""
    path = arguments.output_dir / "search.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for method, (name, values) in CANDIDATES.items():
        for value in values:
            if str(value) in found.get(method, {}):
                continue
            folder = arguments.output_dir / "search" / f"{method}-{value:g}"
            run = experiment(
                method, 0.5, SEARCH_SEED, arguments, num_tasks=2, validation_share=0.1, evaluate_on="validation",
                output_dir=str(folder), **{name: value},
            )  # fmt: skip
            figure = run.run().more["incremental"]["average_incremental_accuracy"]
            found.setdefault(method, {})[str(value)] = figure
            path.write_text(json.dumps(found, indent=1))
            print(f"search: {method} {name} {value:g}: {100 * figure:.1f} %", flush=True)
    return {
        method: {name: float(max(found[method], key=found[method].get))} for method, (name, _) in CANDIDATES.items()
    }


def main() -> None:
    """Runs what is missing, then writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", type=pathlib.Path, required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    chosen = searched(arguments)
    print(f"chosen on held-out examples: {chosen}", flush=True)
    for seed in arguments.seeds:  # all rows of a seed first: the table fills from above
        for alpha in ALPHAS:
            for method in arguments.methods:
                folder = arguments.output_dir / f"{method}-dirichlet{alpha:g}-seed{seed}"
                if (folder / "results.json").exists():
                    continue
                start = time.perf_counter()
                run = experiment(method, alpha, seed, arguments, output_dir=str(folder), **chosen.get(method, {}))
                figures = run.run().more["incremental"]
                print(
                    f"{folder.name}: A_T {100 * figures['last_accuracy']:.1f} %, mean A_t "
                    f"{100 * figures['average_incremental_accuracy']:.1f} %, {time.perf_counter() - start:.0f} s",
                    flush=True,
                )
    folders = [path.parent for path in sorted(arguments.output_dir.glob("*-seed*/results.json"))]
    summary.report(folders, form="markdown", output=arguments.output_dir / "table.md", plots=False)


if __name__ == "__main__":
    main()
