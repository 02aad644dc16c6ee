"""The domains that the flags ask for, or what is at hand, and which client has which examples of them when."""

from __future__ import annotations

import dataclasses
import pathlib

from tffcl import datasets, streams
from tffcl.commands.entry import say
from tffcl.commands.fil_ver_flags import SCENARIOS, STUDY
from tffcl.commands.fil_ver_options import FilVerOptions
from tffcl.commands.running import checksum
from tffcl.datasets import Domains, ImageDataset, image_registry, raw_files
from tffcl.errors import DatasetError, InputError, StreamError

_MOST_TABLE_BYTES = 1 << 22  # 1,000 clients in 2,000 tasks
_MOST_CLIENTS = 10  # whose enrolment is told


def load_domains(options: FilVerOptions) -> tuple[Domains, FilVerOptions]:
    """The domains, one for each task, and the options with what depends on the data filled in.

    Raises:
      DatasetError: the data set that was asked for is missing or malformed.
      InputError: domains that these images cannot give, or images of two sizes.
    """
    complete = options.complete(options.dataset or _default(options))
    every = _domains(complete)
    if complete.num_tasks > len(every):
        raise InputError(
            f"--num-tasks {complete.num_tasks}: {every.name} has {len(every)} domains, and each task is one"
        )
    domains = dataclasses.replace(every, domains=every.domains[: complete.num_tasks])
    height, width = domains.image_size
    say(
        f"data: {domains.name}, images of {height} x {width}, {domains.num_labels} labels; tasks: "
        f"{', '.join(domain.name for domain in domains.domains)}; {complete.num_rounds} rounds a task"
    )
    return domains, complete


def _default(options: FilVerOptions) -> str:
    wanted = ("mnist",) if options.method in STUDY else ("emnist-balanced", "fashion-mnist", "mnist")
    found = [name for name in (*wanted, "digits") if image_registry.has_files(name, options.data_dir)]
    if found[0] != wanted[0]:
        missing = " and ".join(wanted[: wanted.index(found[0])] if found[0] in wanted else wanted)
        say(
            f"data: {missing} not at hand: taking {found[0]}; --data-dir DIR or --dataset NAME for other data"
        )
    return found[0]


def _domains(options: FilVerOptions) -> Domains:
    def images(name: str) -> ImageDataset:
        return datasets.load_images(name, options.data_dir)

    if options.dataset == "mnist+fashion":
        return datasets.mnist_fashion(images("mnist"), images("fashion-mnist"))
    one, count = images(str(options.dataset)), options.num_tasks
    if options.domains == "classes":
        return datasets.emnist_balanced(one)
    if options.domains == "mild":
        return datasets.mild(one)
    if options.domains == "permutations":
        # Section 5.1 permutes every task. Else the first is as it is, so that a convolution has something to learn.
        kept = options.method not in STUDY
        return datasets.permutations(one, count, options.split_seed, keep_first=kept)
    return datasets.rotations(one, [360 * turn / count for turn in range(count)])


def load_enrollment(options: FilVerOptions) -> streams.Enrollment:
    """Who is enrolled when: a scenario of section 4, or the table in a file.

    Raises:
      StreamError: a table of another size, or with a cell that is no state or cannot follow the one before it.
      InputError: no such scenario or file.
    """
    clients, tasks = options.num_clients, options.num_tasks
    if options.enrollment in SCENARIOS:
        return getattr(streams.Enrollment, options.enrollment)(clients, tasks)
    path = pathlib.Path(options.enrollment)
    try:
        lines = raw_files.split_lines(raw_files.read_text(path, max_bytes=_MOST_TABLE_BYTES))
    except DatasetError as error:
        raise InputError(
            f"--enrollment {options.enrollment}: neither one of {', '.join(SCENARIOS)} nor a table in a file ({error})"
        ) from error
    try:
        rows = [_cells(line.strip()) for line in lines if line.strip()]
        found = streams.Enrollment.from_table(rows, num_clients=clients, num_tasks=tasks, name=path.stem)
    except StreamError as error:
        raise StreamError(f"{path}: {error}") from error
    for client, row in enumerate(found.table()[:_MOST_CLIENTS]):
        say(f"enrolment of client {client + 1}: {row}")
    return found


def _cells(line: str) -> list[str]:
    """The cells of a line: separated by tabs or commas, or signs one after the other."""
    separator = next((sign for sign in "\t,;" if sign in line), None)
    return list(line) if separator is None else [cell.strip() for cell in line.split(separator)]


def split(options: FilVerOptions, domains: Domains, enrollment: streams.Enrollment) -> streams.TaskStream:
    """Which examples each client has in each task.

    Raises:
      StreamError: the domains have too few.
    """
    return streams.domain_sequence(
        domains.train_labels,
        domains.test_labels,
        num_clients=options.num_clients,
        examples_per_task=options.examples_per_task,
        enrollment=enrollment,
        test_examples=options.test_examples,
        seed=options.split_seed,
        shared_base=domains.shared_base,
    )


def fingerprint(domains: Domains, stream: streams.TaskStream) -> str:
    """A short sum over what is learned and tested, so that a run is not resumed with other data."""
    sums = []
    for number, domain in enumerate(domains.domains):
        for client in range(stream.num_clients):
            task = stream.task(client, number)
            sums += [domain.train_images(task.train), domain.train_labels[task.train]]
            sums += [domain.test_images(task.test), domain.test_labels[task.test]]
    return checksum(sums)
