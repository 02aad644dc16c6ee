"""What every `tffcl run` command does around its run: the directory before, the runtime, tables and plots after."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional

import click
import numpy as np

from tffcl import reports, storage
from tffcl.commands import base_privacy
from tffcl.commands.entry import collect_as_usual, say
from tffcl.commands.run_options import RunOptions
from tffcl.errors import RunError, run_exists

if TYPE_CHECKING:
    from tffcl.program import ClientData, ClientFiles
    from tffcl.program.state import RunState
    from tffcl.templates import ContinualProcess
    from tffcl.transfers import Transfer


def choose_directory(options: RunOptions, dataset: str) -> pathlib.Path:
    """--output-dir, else the first of runs/METHOD-DATASET-seedN, ...-2, ...-3 that is not there yet.

    Raises:
      RunError: a run is there, and it is not to be resumed; or it, or --client-dir, is nowhere to write to.
    """
    base = pathlib.Path("runs") / f"{options.label}-{dataset}-seed{options.seed}"
    names = itertools.chain(
        [base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))
    )
    folder = pathlib.Path(options.output_dir or next(name for name in names if not os.path.lexists(name)))
    # Said before anything heavy begins.
    storage.check_folder(folder, "a run directory")
    if options.client_dir is not None and options.runtime != "remote":
        storage.check_folder(options.client_dir, "the folder of clients' states")
    if not options.resume and os.path.lexists(folder / "config.json"):
        raise run_exists(folder)
    say(f"run directory: {folder}")
    return folder


def open_runtime(options: RunOptions) -> contextlib.AbstractContextManager:
    """The TFF runtime of --runtime, to be entered."""
    from tffcl import runtime

    collect_as_usual()  # rounds come now, of pre-training or of the run
    base_privacy.check_environment(options)
    if options.runtime == "in-process":
        return runtime.in_process()
    if options.workers is not None:
        return runtime.remote(
            options.addresses, call_timeout=options.call_timeout, on_lost_worker=options.on_lost_worker
        )
    return runtime.local(repeatable=not options.base_is_noised)


def client_files(options: RunOptions) -> Optional[ClientFiles]:
    """Where --client-dir has the clients keep their states; None without it.

    Raises:
      InputError: a path that is not absolute, for workers on other machines.
    """
    from tffcl import program

    if options.client_dir is None:
        return None
    here = options.runtime != "remote"
    return program.ClientFiles(os.path.abspath(options.client_dir) if here else options.client_dir)


def last_state(options: RunOptions, folder: pathlib.Path, process: ContinualProcess) -> RunState:
    """The state at the end of the run in `folder`, with the clients' states in it.

    Of these there are none, and a line says so, where clients keep them in files that this program does not see.
    """
    from tffcl import program
    from tffcl.program import run_directory, settings, state

    config, files = reports.load_results(folder)["config"], client_files(options)
    known = settings.Settings(config["num_rounds"], config["seed"])
    template = state.first_state(process, config["num_clients"], known, files)
    last = run_directory.RunDirectory(folder).restore(template)
    if last.task < config["num_tasks"]:
        raise RunError(f"{folder}: the checkpoint of its end is damaged: resume the run")
    if files is not None:
        try:
            last.store = files.read(last.store)
        except RunError as error:
            say(f"what needs the states of clients is left out of the results: {error}")
            last.store = program.ClientStore([])
    return last


def learn(
    options: RunOptions,
    process: ContinualProcess,
    data: ClientData,
    transfer: Transfer,
    folder: pathlib.Path,
    config: Mapping[str, Any],
    **more: Any,
) -> None:
    """All tasks and rounds that the flags ask for, in the TFF runtime that is entered.

    `more` goes to `tffcl.program.run_program` as it is.
    """
    from tffcl import program

    program.run_program(
        process,
        data,
        transfer,
        num_rounds=options.num_rounds,
        seed=options.seed,
        clients_per_round=options.clients_per_round,
        evaluate_every=options.evaluate_every,
        output_dir=folder,
        resume=options.resume,
        config=config,
        privacy=base_privacy.privacy_of(options),
        client_files=client_files(options),
        **more,
    )


def checksum(arrays: Iterable[np.ndarray]) -> str:
    """A short sum over all data of a run, so that it is not resumed with other ones."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"


def show(folder: pathlib.Path) -> None:
    """Prints the results of a run directory as tables on stdout, and draws its plots."""
    results = reports.load_results(folder)
    click.echo(reports.results_table([results]))
    for line in reports.privacy_lines(results):
        click.echo(line)
    click.echo()
    click.echo(reports.accuracy_matrix_table(results))
    if results.get("nll"):
        click.echo(f"\n{reports.nll_by_task_table(results)}")
    plots = reports.write_plots(folder)
    click.echo(f"\nrun directory: {folder} ({len(plots)} plots in {folder / 'plots'})")
