"""The question set that ships with tffcl, so that everything runs without a network or data.

Written for this project in the manner of TREC (six kinds of answer); none of it is taken from TREC.
"""

from __future__ import annotations

from importlib import resources

from tffcl.datasets import raw_files
from tffcl.datasets.text_dataset import TextDataset, from_texts


def load() -> TextDataset:
    """The shipped sample: questions labelled abbreviation, description, entity, human, location or number."""
    return from_texts(_rows("train.tsv"), _rows("test.tsv"), name="sample", unicode=False)


def _rows(file_name: str) -> list[tuple[str, str]]:
    content = resources.files("tffcl.datasets").joinpath("sample").joinpath(file_name).read_bytes()
    lines = raw_files.split_lines(content.decode("utf-8"))[1:]
    return [(text, label) for label, _, text in (line.partition("\t") for line in lines)]
