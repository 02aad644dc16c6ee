"""The command `tffcl`. TensorFlow is imported only when there is something to do, so help and errors come at once."""

from __future__ import annotations

import pathlib
from typing import Any, Optional

import click

from tffcl import storage
from tffcl.algorithms import registry
from tffcl.experiment import loading
from tffcl.experiment.groups import SCENARIOS
from tffcl.flags import RunGroup, exit_with
from tffcl.models.registry import NETWORKS
from tffcl.papers import CONFEDMADE_TABLES, FIL_VER_TABLES
from tffcl.papers.suites import SUITES
from tffcl.runtime import quiet
from tffcl.transfers.options import TRANSFERS


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tffcl", prog_name="tffcl")
def tffcl() -> None:
    """Federated continual learning on TensorFlow Federated."""


@tffcl.group(cls=RunGroup)
def run() -> None:
    """Run a method on data, and leave a run directory."""


@tffcl.command("list")
def list_parts() -> None:
    """Methods and the kinds of data that they take, data sets, networks, transfers."""
    click.echo(f"{'method':20}" + "".join(f"{kind:9}" for kind in loading.KINDS) + "about")
    for name in registry.METHODS.names:
        method = registry.find_method(name)
        marks = ["x" if kind in method.kinds else "-" for kind in loading.KINDS]
        click.echo(f"{name:20}" + "".join(f"{mark:9}" for mark in marks) + method.about)
    for kind in loading.KINDS:
        click.echo(f"\n{kind} data: {', '.join(each for each, found in loading.NAMES.items() if found == kind)}")
    others = [name for name in loading.DATA.names if name not in loading.NAMES]
    if others:
        click.echo(f"\ndata of installed packages: {', '.join(others)}")
    for title, registry_of in (
        ("networks", NETWORKS), ("scenarios", SCENARIOS), ("transfers (--selection)", TRANSFERS),
    ):  # fmt: skip
        click.echo(f"\n{title}: {', '.join(registry_of.names)}")
    click.echo(
        "\nimages are rows of 0 and 1 to methods that take binary data alone, or with --network made; vectors with "
        "--network mlp\nmy_file.py:NAME names a method, data, network, scenario or transfer of one's own"
    )


_SEEDS = click.option(
    "--seed", "seeds", type=int, multiple=True, default=(1, 2), show_default=True, help="Seeds; may be repeated."
)
_SPLITS = click.option(
    "--split-seed",
    "splits",
    type=int,
    multiple=True,
    help="Each seed with each of these; may be repeated.  [default: 42]",
)
_ROWS = click.option(
    "--row",
    "rows",
    multiple=True,
    help="A row, or how rows begin (a wrong name lists them); may be repeated.  [default: all]",
)
_JOBS = click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time.")
_WRITE = click.option(
    "--write",
    "page",
    metavar="FILE.md#NAME",
    help="Also put the table on a page, from <!-- table: NAME --> to <!-- end -->.",
)
_FLAGS = click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS...]")


def _passing(*names: str) -> Any:
    """Flags of `tffcl run` that a command takes too, and hands on."""

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            passed = f"passed_{name.replace('-', '_')}"
            command = click.option(f"--{name}", passed, help="As for `tffcl run`.")(command)
        return command

    return decorate


_passed_on = _passing("num-rounds", "num-epochs", "data-dir", "runtime")


def _as_flags(passed: dict[str, Any], flags: tuple[str, ...]) -> list[str]:
    given = [
        text
        for name, value in passed.items()
        if name.startswith("passed_") and value is not None
        for text in (f"--{name[7:].replace('_', '-')}", str(value))
    ]
    return [*given, *flags]


def _folder(paper: str) -> Any:
    return click.option(
        "--output-dir", default=f"runs/reproduce-{paper}", show_default=True, help="The folder of all runs."
    )


@tffcl.group()
def reproduce() -> None:
    """Run the experiments of a paper, and put the figures beside the paper's.

    Stopped and given again, it goes on where it was. FLAGS after `--` are those of `tffcl run`, and stand over the
    table's own.
    """


@reproduce.command("fedseit")
@click.option(
    "--table", "number", type=click.Choice(("2", "mixed", "projection")), default="2", show_default=True,
    help="2: one data set at a time; mixed: whether selection matters where tasks are of four sets; projection: what "
    "one W_f for all foreign adaptives costs (of these two, --variant alone chooses among the rows).",
)  # fmt: skip
@click.option("--data", "--dataset", "names", multiple=True, help="A data set; may be repeated.  [default: all five]")
@click.option("--variant", "variants", multiple=True, help="A row of the table; may be repeated.  [default: all]")
@click.option(
    "--retention", "retentions", type=float, multiple=True, default=(1.0, 0.1), show_default=True, help="lambda_2."
)
@click.option("--embeddings", metavar="FILE|NAME", help="As for `tffcl run fedseit`.")
@_SEEDS
@_SPLITS
@_passed_on
@_folder("fedseit")
@_JOBS
@_WRITE
@_FLAGS
def reproduce_fedseit(
    number: str, names: tuple[str, ...], variants: tuple[str, ...], retentions: tuple[float, ...],
    embeddings: Optional[str], seeds: tuple[int, ...], splits: tuple[int, ...], output_dir: str, jobs: int,
    page: Optional[str], flags: tuple[str, ...], **passed: Any,
) -> None:  # fmt: skip
    """Table 2 of the FedSeIT paper, or mixed domains, of which it speaks."""
    from tffcl.papers import fedseit, tables

    others = {"mixed": fedseit.mixed, "projection": fedseit.projections}
    table = others[number]() if number in others else fedseit.table(names, variants, retentions)
    given = _as_flags({**passed, "passed_embeddings": embeddings}, flags)
    rows = table.chosen(variants) if number in others else table.rows
    tables.reproduce(table, rows, seeds, given, pathlib.Path(output_dir), jobs, page, splits)


@reproduce.command("confedmade")
@click.option(
    "--table", "name", type=click.Choice(CONFEDMADE_TABLES), default="3", show_default=True,
    help="1: masks over clients; 2: choices of MADE; 3: all methods; 4: cut-off of the gates; weights: what those of "
    "EWC, FedProx and FedCurv are chosen by.",
)  # fmt: skip
@click.option("--num-clients", "passed_num_clients", help="As for `tffcl run`; not where a row assigns its tasks.")
@_ROWS
@_SEEDS
@_SPLITS
@_passed_on
@_folder("confedmade")
@_JOBS
@_WRITE
@_FLAGS
def reproduce_confedmade(
    name: str, rows: tuple[str, ...], seeds: tuple[int, ...], splits: tuple[int, ...], output_dir: str, jobs: int,
    page: Optional[str], flags: tuple[str, ...], **passed: Any,
) -> None:  # fmt: skip
    """A table of the ConFedMADE paper."""
    from tffcl.papers import confedmade, tables

    table, root = confedmade.table(name), pathlib.Path(output_dir) / (f"table{name}" if name.isdigit() else name)
    tables.reproduce(table, table.chosen(rows), seeds, _as_flags(passed, flags), root, jobs, page, splits)


@reproduce.command("fil-ver")
@click.option(
    "--table", "name", type=click.Choice(FIL_VER_TABLES), default="rotations", show_default=True,
    help="Domains of Fashion-MNIST; classes: MNIST and Fashion-MNIST under the same labels; pretraining: what its "
    "epochs are chosen by; enrollment: figure 8; permuted: figure 5; privacy: noise on what is sent; leak: what an "
    "attacker makes of what is sent.",
)  # fmt: skip
@_ROWS
@_SEEDS
@_SPLITS
@_passed_on
@_folder("fil-ver")
@_JOBS
@_WRITE
@_FLAGS
def reproduce_fil_ver(
    name: str, rows: tuple[str, ...], seeds: tuple[int, ...], splits: tuple[int, ...], output_dir: str, jobs: int,
    page: Optional[str], flags: tuple[str, ...], **passed: Any,
) -> None:  # fmt: skip
    """A table or figure of the FIL-VER paper."""
    root, given = pathlib.Path(output_dir) / name, _as_flags(passed, flags)
    from tffcl.papers import fil_ver, tables

    if name == "leak":
        if splits or page is not None:
            raise click.UsageError("--table leak takes neither --split-seed nor --write")
        fil_ver.reproduce_leak(rows, seeds, given, root)
        return
    table = fil_ver.table(name)
    tables.reproduce(table, table.chosen(rows), seeds, given, root, jobs, page, splits)


@tffcl.command()
@click.option("--suite", type=click.Choice(tuple(SUITES)), default="digits", show_default=True, help="What stream.")
@click.option("--quick", is_flag=True, help="The small schedule: minutes.")
@_ROWS
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=(1, 2, 3, 4, 5),
    show_default=True,
    help="Repeated; two or more.",
)
@_passing("data-dir", "runtime")
@click.option("--output-dir", help="The folder of all runs.  [default: runs/benchmark-SUITE, or -SUITE-quick]")
@_JOBS
@_WRITE
def benchmark(
    suite: str, quick: bool, rows: tuple[str, ...], seeds: tuple[int, ...], output_dir: Optional[str], jobs: int,
    page: Optional[str], **passed: Any,
) -> None:  # fmt: skip
    """Methods side by side on one sealed stream: a leaderboard with intervals.

    Stopped and given again, it goes on where it was. leaderboard.json, .csv, .md and .html stand in the output folder;
    `tffcl verify` computes them again.
    """
    from tffcl.papers import benchmark as made

    root = pathlib.Path(output_dir or f"runs/benchmark-{suite}{'-quick' if quick else ''}")
    made.benchmark(SUITES[suite], rows, seeds, _as_flags(passed, ()), root, jobs, quick, page)


@tffcl.command()
@click.argument("path", metavar="LEADERBOARD|RUN_DIR")
@_ROWS
@click.option("--seed", "seeds", type=int, multiple=True, help="Seeds of each row; may be repeated.  [default: all]")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=1.0, show_default=True,
    help="Points by which a score may differ on another machine; what differs is told.",
)  # fmt: skip
@_passing("data-dir", "runtime")
@_JOBS
def verify(
    path: str, rows: tuple[str, ...], seeds: tuple[int, ...], tolerance: float, jobs: int, **passed: Any
) -> None:
    """Compute rows of a leaderboard, or a run, again, and compare.

    Exit code 2 where one does not hold: it was changed after it was written, its figures do not follow from its seeds,
    or a run comes out otherwise.
    """
    from tffcl.papers import verify as made

    made.tell(made.Check(seeds, _as_flags(passed, ()), tolerance, jobs).of(pathlib.Path(path), rows))


@tffcl.command()
@click.argument("method", metavar="METHOD")
@click.option(
    "--grid", multiple=True, required=True, metavar="NAME=VALUE,VALUE,...",
    help="Values of an option; may be repeated for every combination. With --optuna also NAME=LOW..HIGH.",
)  # fmt: skip
@click.option(
    "--optuna", "trials", type=click.IntRange(min=1), metavar="N",
    help="N combinations that Optuna (the extra `optuna`) draws one after another, in the place of all.",
)  # fmt: skip
@_SEEDS
@click.option("--output-dir", help="The folder of all runs.  [default: runs/sweep-METHOD]")
@_JOBS
@_FLAGS
def sweep(
    method: str, grid: tuple[str, ...], trials: Optional[int], seeds: tuple[int, ...], output_dir: Optional[str],
    jobs: int, flags: tuple[str, ...],
) -> None:  # fmt: skip
    """Choose options of a method on examples held out of its tasks.

    No test example is looked at. FLAGS after `--` are those of `tffcl run`, for all runs alike.
    """
    from tffcl.papers import sweep as made

    made.sweep(method, grid, seeds, flags, pathlib.Path(output_dir or f"runs/sweep-{method}"), jobs, trials)


@tffcl.group()
def streams() -> None:
    """Tasks and clients' rows, apart from any run."""


@streams.command("export")
@click.argument("file", metavar="FILE.npz")
@click.option("--method", default="fedavg", show_default=True, help="As `tffcl run` calls it; the stream is before it.")
@_FLAGS
def export_stream(file: str, method: str, flags: tuple[str, ...]) -> None:
    """Write a stream for other code: x, y, client and task of every row that clients get.

    FLAGS after `--` are those of `tffcl run`. FILE has x_train, y_train, client_train, task_train, the same of
    validation and test (client -1: all of them), and label_names; numpy loads it without pickle.
    """
    from tffcl.experiment import record
    from tffcl.flags import parse_run

    plan = parse_run((method, *flags)).replace(evaluate_on="test").plan()
    arrays = record.export_stream(plan, file)
    counts = ", ".join(f"{len(arrays[f'task_{split}'])} {split}" for split in ("train", "validation", "test"))
    click.echo(f"{file}: {counts} rows, {plan.stream.num_clients} clients, {plan.stream.num_tasks} tasks")


@tffcl.command()
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--group-by",
    type=click.Choice(("method", "run")),
    default="method",
    show_default=True,
    help="A row for each method, runs that differ in their seeds alone together; or for each run.",
)
@click.option("--against", metavar="ROW", help="Also the paired differences from this row, with their significance.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "markdown", "latex", "html")),
    help="Of the tables; html is one page with curves, settings and clients.  [default: by --output, else text]",
)
@click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE; none for the terminal.")
@click.option("--plots/--no-plots", default=None, help="Draw RUN/plots/.  [default: for a single run]")
@click.option(
    "--plot-format", type=click.Choice(("png", "svg", "pdf")), default="png", show_default=True, help="Of plots."
)
@click.option(
    "--compare", metavar="FILE|DIR",
    help="All runs in one picture: of densities the NLL after each task, in FILE; of classifiers two pictures in DIR, "
    "accuracy on each task at the end, and after each round, or where there are seeds on the tasks so far with a band.",
)  # fmt: skip
def report(run_dirs: tuple[str, ...], **options: Any) -> None:
    """Tables and plots of runs: run directories, or folders that are searched for them.

    Runs of one method are averaged over their seeds, with 95 % intervals; unfinished ones are shown as far as they are.
    """
    from tffcl.reports import summary

    summary.report(run_dirs, **options)


@tffcl.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUN|LEADERBOARD...")
@click.option(
    "--attacks", metavar="DIR",
    help="The folder of `tffcl reproduce fil-ver --table leak`, for runs that send what was attacked there.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(("text", "markdown", "latex", "html")), default="text", show_default=True,
    help="Of the table.",
)  # fmt: skip
@click.option("--picture", metavar="FILE", help="Draw forgetting against each cost (.svg, .png, .pdf).")
def frontier(paths: tuple[str, ...], attacks: Optional[str], form: str, picture: Optional[str]) -> None:
    """What methods forget against what they cost: bytes, memory, epsilon, and the success of the measured attack.

    Of run directories (or folders of them) and of leaderboard.json files. A row on the frontier is one that no other
    beats in everything.
    """
    from tffcl.reports import frontier as made

    points = made.points_of(paths, made.attacks_in(attacks))
    click.echo(made.frontier_table(points, form=form))
    if picture is not None:
        click.echo(f"\npicture: {made.plot_frontier(points, picture)}")


_RUN_DIR = click.argument("run_dir", metavar="RUN_DIR")
_CLIENT = click.option("--client", type=int, required=True, metavar="N", help="Number of the client, from 0.")
_CODE = click.option("--allow-code", is_flag=True, help="Let a method that stands in a file of yours run its code.")
_TEXT = click.option(
    "--text-column", default="text", show_default=True, metavar="NAME", help="The column, or key, of texts."
)
_INPUT = click.option(
    "--input-format", "format", type=click.Choice(("csv", "tsv", "jsonl", "lines", "npz")),
    help="What the file holds.  [default: what its ending says; of standard input, its first line]",
)  # fmt: skip


def _finished(run_dir: str, allow_code: bool) -> Any:
    """The run, which has come to its end."""
    storage.check_run(run_dir)
    quiet.announce_import()
    from tffcl.use import load_run

    run = load_run(run_dir, allow_code=allow_code)
    run.require_finished()
    return run


@tffcl.command()
@_RUN_DIR
@click.argument("out", metavar="OUT")
@_CLIENT
@click.option("--task", type=int, required=True, metavar="N", help="Number of the client's task, from 0.")
@click.option(
    "--format", "format", type=click.Choice(("keras", "savedmodel", "tflite")), default="keras", show_default=True,
    help="A file .keras; a folder with the signature serving_default; a file .tflite with built-in operations alone.",
)  # fmt: skip
@_CODE
def export(run_dir: str, out: str, client: int, task: int, format: str, allow_code: bool) -> None:
    """Take a client's model of a task out of a finished run.

    It loads in TensorFlow by itself. Of text it takes the raw string, and gives class names beside probabilities.
    """
    from tffcl import use

    run = _finished(run_dir, allow_code)
    for path in use.export(run, client, task, format, out):
        click.echo(path)
    if format == "tflite" and run.plan.kind == "text":
        click.echo(
            f"tffcl: built-in operations know no strings: the model takes ids of words; {out}.json holds them",
            err=True,
        )  # fmt: skip


def _task_number(ctx: click.Context, param: click.Parameter, value: str) -> Optional[int]:
    if value == "auto":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"expected a number or auto, found {value!r}")
    return int(value)


@tffcl.command()
@_RUN_DIR
@click.argument("file", metavar="FILE|-")
@_CLIENT
@click.option(
    "--task", default="auto", show_default=True, callback=_task_number, metavar="N|auto",
    help="Number of the task; auto takes for each row the task whose model is surest, and names it.",
)  # fmt: skip
@_TEXT
@_INPUT
@click.option("--output", metavar="FILE", help="Where to write.  [default: standard output]")
@_CODE
def predict(
    run_dir: str, file: str, client: int, task: Optional[int], text_column: str, format: Optional[str],
    output: Optional[str], allow_code: bool,
) -> None:  # fmt: skip
    """Label new data with a client's models: the same rows, with label and probability.

    FILE is a table (.csv, .tsv, .jsonl), arrays (.npz with x), or else a text a line.
    """
    from tffcl import use

    run = _finished(run_dir, allow_code)
    use.predict(run, file, client, task, text_column=text_column, format=format, output=output)


@tffcl.command()
@_RUN_DIR
@click.option("--data", required=True, metavar="FILE|-", help="A table (.csv, .tsv, .jsonl), or arrays (.npz: x, y).")
@click.option("--client", "clients", type=int, multiple=True, metavar="N", help="May be repeated.  [default: all]")
@_TEXT
@click.option(
    "--label-column", default="label", show_default=True, metavar="NAME", help="The column, or key, of labels."
)
@_INPUT
@_CODE
def evaluate(
    run_dir: str, data: str, clients: tuple[int, ...], text_column: str, label_column: str, format: Optional[str],
    allow_code: bool,
) -> None:  # fmt: skip
    """Score new labelled data: each client's model of each task, on the rows whose label is one of the task's."""
    from tffcl import use

    run = _finished(run_dir, allow_code)
    frame = use.evaluate(run, data, clients or None, text_column=text_column, label_column=label_column, format=format)
    score = frame.columns[-1]
    if score == "accuracy":
        frame[score] = 100 * frame[score]
        frame = frame.rename(columns={score: "accuracy %"})
    click.echo(frame.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.1f}"))


@tffcl.command("continue")
@_RUN_DIR
@click.option("--tasks", "data", required=True, metavar="NAME|PATH", help="New data of the run's kind, as for --data.")
@click.option("--num-tasks", type=click.IntRange(min=1), default=1, show_default=True, help="Tasks of each client.")
@click.option("--labels-per-task", type=click.IntRange(min=1), help="Labels of each.  [default: as the run]")
@click.option("--num-rounds", type=click.IntRange(min=1), help="Rounds of each.  [default: as the run]")
@click.option("--num-epochs", type=click.IntRange(min=1), help="Epochs of a round.  [default: as the run]")
@_TEXT
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="That of labels.")
@click.option("--embeddings", metavar="FILE|NAME", help="Word vectors for new words.  [default: they are unknown]")
@click.option("--output-dir", metavar="DIR", help="The new run directory.  [default: RUN_DIR-continued]")
@click.option("--runtime", type=click.Choice(("local", "in-process")), help="As for `tffcl run`.")
@click.option("--resume", is_flag=True, help="Go on with the run in --output-dir where it stopped.")
@_CODE
def continue_(run_dir: str, data: str, allow_code: bool, **options: Any) -> None:
    """Learn further tasks from new data, without those of the run at hand.

    What server and clients have learned goes on in a new run directory; the old one stays as it is.
    """
    from tffcl import reports, use

    run = _finished(run_dir, allow_code)
    results = use.continue_run(run, data, **{name: value for name, value in options.items() if value is not None})
    if results.directory is not None:
        reports.show(results.directory)


@tffcl.command()
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 for a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 or :: for all.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of the worker.  [default: all cores, 1 for an operation]"
)
@click.option("--check", "address", metavar="HOST:PORT", help="Only ask whether a worker answers there: 0 or 1.")
def worker(port: Optional[int], host: str, threads: Optional[int], address: Optional[str]) -> Optional[int]:
    """Run a TFF worker for `tffcl run ... --runtime remote --workers HOST:PORT,...`, until SIGTERM or Ctrl-C.

    It runs any graph that it is sent, by anybody who reaches its port.
    """
    from tffcl.runtime import serve

    if address is not None:
        return serve.check(address)
    if port is None:
        raise click.UsageError("give --port to run a worker, or --check HOST:PORT to ask whether one answers")
    serve.serve(host, port, threads)
    return None


def main() -> None:
    """Entry point of the program `tffcl`."""
    exit_with(tffcl)


if __name__ == "__main__":
    main()
