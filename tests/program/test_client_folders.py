"""Data sets in files at the clients: the same run, and what is wrong with a file."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from run_directories import history

from tffcl.errors import InputError, RunError
from tffcl.program import ClientFiles, StoredData, write_client_data
from tffcl.transfers import SIT


@pytest.fixture(scope="module")
def written(tiny, process, tmp_path_factory):
    """A folder with the data of 3 clients in 2 tasks, written by two that have them."""
    folder, data = tmp_path_factory.mktemp("data"), tiny.TinyData(3, 2)
    write_client_data(data, folder, process=process, clients=[0, 2])
    write_client_data(data, folder, clients=[1])
    return folder


@pytest.mark.slow
def test_the_same_run_to_the_bit(tiny, process, written, tmp_path):
    tiny.run(process, tmp_path / "memory", tiny.TinyData(3, 2), num_rounds=1)
    data, files = StoredData(str(written), 3, 2), ClientFiles(str(tmp_path / "clients"))
    tiny.run(process, tmp_path / "files", data, num_rounds=1, client_files=files)
    assert history(tmp_path / "files") == history(tmp_path / "memory")


def test_what_the_program_knows_of_them(tiny, tff_context, written):
    data = StoredData(str(written), 3, 2)
    assert data.task(1, 1).counts == {"train": 12, "validation": 4, "test": 6}
    assert data.task(2, 0).num_classes == tiny.CLASSES
    names = sorted(path.name for path in (written / "client-0002").glob("*.index"))
    assert names == [f"data-{t:03d}-{split}.index" for t in (0, 1) for split in ("test", "train", "validation")]


def test_wrong_data_are_not_written(tiny, process, tmp_path):
    train = {"x": np.zeros((4, 3), "f"), "label": np.full(4, 7, np.int32)}
    with pytest.raises(InputError, match="client 1, task 0, train: label 7"):
        write_client_data(tiny.TinyData(2, 1, client_1_task_0={"train": train}), tmp_path, process=process)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be a folder of clients' data: .*file is a file"):
        write_client_data(tiny.TinyData(1, 1), tmp_path / "file")


def test_files_that_cannot_be_used(tiny, process, written, tmp_path):
    with pytest.raises(RunError, match="client 0, task 2: cannot read its data below .*Failed to find"):
        StoredData(str(written), 3, 3).task(0, 0)
    for part in ("index", "data-00000-of-00001"):
        (tmp_path / "client-0000").mkdir(exist_ok=True)
        for split in ("train", "validation", "test"):
            content = (written / "client-0001" / f"data-000-{split}.{part}").read_bytes()
            (tmp_path / "client-0000" / f"data-000-{split}.{part}").write_bytes(content)
    with pytest.raises(RunError, match="client 0, task 0: .* is of another client or task"):
        StoredData(str(tmp_path), 1, 1).task(0, 0)
    with pytest.raises(InputError, match="absolute path"):
        StoredData("data", 3, 2)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_named_with_its_client_at_once(written, tmp_path, make):
    folder = shutil.copytree(written, tmp_path / "data")
    path = folder / "client-0002" / "data-001-train.index"
    path.unlink()
    make(path)
    with pytest.raises(RunError, match=f"client 2: {path} is no regular file"):
        StoredData(str(folder), 3, 2).task(0, 0)


def test_what_has_to_be_said_for_them(tiny, process, written, tmp_path):
    data = StoredData(str(written), 3, 2)
    with pytest.raises(InputError, match="stored data: needs client_files"):
        tiny.run(process, data=data)
    with pytest.raises(InputError, match="stored data: .*not SIT"):
        tiny.run(process, data=data, transfer=SIT(k=2), client_files=ClientFiles(str(tmp_path)))
