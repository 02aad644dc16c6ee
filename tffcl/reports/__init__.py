"""Tables and plots from a run directory."""

from tffcl.reports.attention_maps import plot_attention
from tffcl.reports.bars import plot_accuracy_bars
from tffcl.reports.by_round import plot_accuracy_by_round
from tffcl.reports.by_task import nll_by_task_table, plot_nll_by_task
from tffcl.reports.comparisons import compare_plots
from tffcl.reports.curves import plot_accuracy_per_round, plot_communication
from tffcl.reports.heat_maps import plot_accuracy_matrix
from tffcl.reports.leak_tables import leak_table
from tffcl.reports.privacy_lines import privacy_lines
from tffcl.reports.run_files import load_history, load_results
from tffcl.reports.run_plots import write_plots
from tffcl.reports.sample_grids import load_samples, plot_samples
from tffcl.reports.tables import accuracy_matrix_table, results_table

__all__ = [
    "accuracy_matrix_table",
    "compare_plots",
    "leak_table",
    "load_history",
    "load_results",
    "load_samples",
    "nll_by_task_table",
    "plot_accuracy_bars",
    "plot_accuracy_by_round",
    "plot_accuracy_matrix",
    "plot_accuracy_per_round",
    "plot_attention",
    "plot_communication",
    "plot_nll_by_task",
    "plot_samples",
    "privacy_lines",
    "results_table",
    "write_plots",
]
