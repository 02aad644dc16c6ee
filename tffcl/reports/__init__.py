"""Tables and plots from a run directory."""

from tffcl.reports.curves import plot_accuracy_per_round, plot_communication
from tffcl.reports.heat_maps import plot_accuracy_matrix
from tffcl.reports.run_files import load_history, load_results
from tffcl.reports.run_plots import write_plots
from tffcl.reports.tables import accuracy_matrix_table, results_table

__all__ = [
    "accuracy_matrix_table",
    "load_history",
    "load_results",
    "plot_accuracy_matrix",
    "plot_accuracy_per_round",
    "plot_communication",
    "results_table",
    "write_plots",
]
