"""Reporters for boards and trackers outside: TensorBoard's files, Weights & Biases, MLflow. No TensorFlow here.

A file for TensorBoard is made of records of scalars and pictures, in the format that every reader of them takes:
scalars are simple values, not tensors, which only some readers know.

Each tracker hands the headline of a run on, and is an extra of its own: `--track wandb` needs
`pip install tffcl[wandb]`, `--track mlflow` needs `tffcl[mlflow]`. Where a tracker keeps what it gets, and whether it
sends it anywhere, is its own matter (WANDB_MODE=offline, MLFLOW_TRACKING_URI=file:...).
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import pathlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tffcl import storage
from tffcl.errors import InputError
from tffcl.program.events import Event, Headline
from tffcl.storage import PathLike

PICTURES = ".plots"  # what the file of pictures ends in; that of scalars is another, which a run writes


def file_name(suffix: str = "") -> str:
    """A new name as TensorBoard looks for."""
    return f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}{suffix}"


def header() -> bytes:
    """What a file begins with."""
    return _record(file_version="brain.Event:2")


def scalars(step: int, numbers: Mapping[str, float]) -> bytes:
    """A record of numbers by tag."""
    from tensorboard.compat.proto import summary_pb2

    values = [summary_pb2.Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
    return _record(step=step, summary=summary_pb2.Summary(value=values))


def picture(tag: str, png: bytes) -> bytes:
    """A record of a picture; its size stands in the first bytes of every PNG."""
    from tensorboard.compat.proto import summary_pb2

    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    image = summary_pb2.Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
    return _record(step=0, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=image)]))


def _record(**content: Any) -> bytes:
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(event_pb2.Event(wall_time=time.time(), **content).SerializeToString())
    return buffer.getvalue()


class Board:
    """A folder for TensorBoard with the headline of a run as scalars (`tffcl.program.events.Headline`).

    The format of the file is TensorBoard's own; TensorFlow has no part in it. A run that goes on writes it anew.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        storage.make_folder(self._folder, "a folder for TensorBoard")
        try:
            for path in self._folder.glob("events.out.tfevents.*"):
                path.unlink()
        except OSError as error:
            raise storage.cannot_write(self._folder, error) from error
        self._path = self._folder / file_name()
        self._headline = Headline(num_tasks, num_rounds)
        found = [self._headline.add(event) for event in past]
        storage.write_whole(self._path, header() + b"".join(scalars(*each) for each in found))

    def report(self, event: Event) -> None:
        step, numbers = self._headline.add(event)
        storage.append(self._path, scalars(step, numbers))

    def close(self) -> None:
        """Every scalar is in the file."""


class Tracker:
    """What trackers share: the package, the run's name and identity, and its headline, round by round."""

    package = ""

    def __init__(self, config: Mapping[str, Any], output_dir: Optional[PathLike]):
        try:
            self.api: Any = importlib.import_module(self.package)
        except ImportError as error:
            raise InputError(
                f"--track {self.package}: the package is not installed: pip install 'tffcl[{self.package}]' ({error})"
            ) from error
        self.config = dict(config)
        self.name = os.path.basename(os.path.abspath(output_dir)) if output_dir else str(config.get("method", "run"))
        # A resumed run goes on in the tracker too: it is known by its directory.
        where = os.path.abspath(output_dir) if output_dir else os.urandom(8).hex()
        self.identity = hashlib.sha256(str(where).encode()).hexdigest()[:16]

    # The three methods of `Reporter`:

    def start(self, num_tasks: int, num_rounds: int, past: Sequence[Event]) -> None:
        self.headline = Headline(num_tasks, num_rounds)
        self.open()
        for event in past:  # a killed run may not have told of its last events; a step twice is a step once
            self.report(event)

    def report(self, event: Event) -> None:
        self.log(*self.headline.add(event))

    def open(self) -> None:
        """Begins the run there, or goes on with the one of `identity`."""
        raise NotImplementedError

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Hands on what `Headline.add` gives."""
        raise NotImplementedError

    def close(self) -> None:
        """The run has ended, or failed."""
        raise NotImplementedError


class WeightsAndBiases(Tracker):
    """Weights & Biases: a run of the project `tffcl` (WANDB_PROJECT), the headline under its own names."""

    package = "wandb"

    def open(self) -> None:
        project = os.environ.get("WANDB_PROJECT", "tffcl")
        self._run = self.api.init(
            project=project, name=self.name, id=self.identity, resume="allow", config=self.config, reinit=True
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log({"round": step, **numbers})

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """MLflow: a run of the experiment `tffcl` (MLFLOW_EXPERIMENT_NAME), the headline as metrics."""

    package = "mlflow"

    def open(self) -> None:
        self._client = self.api.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tffcl")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        there = self._client.search_runs([experiment], f"tags.tffcl_run = '{self.identity}'", max_results=1)
        tags = {"tffcl_run": self.identity}
        self._run = there[0] if there else self._client.create_run(experiment, run_name=self.name, tags=tags)
        if not there:
            for option, value in self.config.items():
                self._client.log_param(self._run.info.run_id, option, str(value)[:500])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run.info.run_id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run.info.run_id)


TRACKERS: Mapping[str, type[Tracker]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def tracker(name: str, config: Mapping[str, Any], output_dir: Optional[PathLike]) -> Tracker:
    """The tracker that is called so.

    Raises:
      InputError: none is, or its package is not installed.
    """
    if name not in TRACKERS:
        raise InputError(f"--track: expected one of {', '.join(TRACKERS)}; found {name!r}")
    return TRACKERS[name](config, output_dir)
