"""All plots of one run."""

from __future__ import annotations

import pathlib

from tffcl.reports.curves import clients_of, plot_accuracy_per_round, plot_communication
from tffcl.reports.heat_maps import plot_accuracy_matrix
from tffcl.reports.run_files import PathLike, load_history, load_results

MOST_CLIENTS = 10  # with a picture of their own


def write_plots(run_dir: PathLike) -> list[pathlib.Path]:
    """Writes `plots/*.png` in a run directory, each whole or not at all.

    The accuracy matrix needs `results.json`, and is left out while the run has not ended. Of more than ten
    clients, the last ten get a picture of accuracy per round.

    Returns:
      The paths written.

    Raises:
      InputError: no history, or one without a round, or a damaged file.
      RunError: the disk is full, or the folder cannot be written to.
    """
    folder = pathlib.Path(run_dir) / "plots"
    history = load_history(run_dir)
    paths = [plot_communication(history, folder / "communication.png")]
    for client in clients_of(history)[-MOST_CLIENTS:]:
        path = folder / f"accuracy_per_round_client_{client + 1}.png"
        paths.append(plot_accuracy_per_round(history, path, client=client))
    if (pathlib.Path(run_dir) / "results.json").exists():
        paths.append(plot_accuracy_matrix(load_results(run_dir), folder / "accuracy_matrix.png"))
    return paths
