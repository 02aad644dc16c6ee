"""TensorBoard's files: records of scalars and pictures, in the format that every reader of them takes.

Scalars are written as simple values, not as tensors, which only some readers know. No TensorFlow here.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

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
