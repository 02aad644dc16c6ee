"""Checked download of the published sets into a per-user cache.

What is checked, and when: always before a file enters the cache, which it does by `os.replace`.

* TREC: the sha256 of both files as their authors publish them.
* SUBJ: the sha256 of the two members of the archive that are used (not of the archive itself).
* R8: the sha256 of the parsed rows. The page has moved between hosts, which may have changed line ends on the
  way, so the content is checked rather than the bytes.
* TMN: the authors' archive has no split, while papers use one of 24,817 and 7,780 documents. Its checksum is
  not known to this project: only its form is checked (gzip's own checksum, whole records, the seven labels,
  at least 32,000 of them), and a seeded split is drawn. With the split files at hand, put them into the data
  folder instead.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Callable

from tffcl.datasets import parsers, raw_files
from tffcl.errors import DatasetError

HOME_PAGES = {
    "trec6": "https://cogcomp.seas.upenn.edu/Data/QA/QC/",
    "trec50": "https://cogcomp.seas.upenn.edu/Data/QA/QC/",
    "r8": "https://ana.cachopo.org/datasets-for-single-label-text-categorization",
    "tmn": "http://acube.di.unipi.it/tmn-dataset/",
    "subj": "https://www.cs.cornell.edu/people/pabo/movie-review-data/",
}
_TREC = "https://cogcomp.seas.upenn.edu/Data/QA/QC/"
# the page above links a shared drive, where a file has no address of its own
_R8 = "https://www.cs.umb.edu/~smimarog/textmining/datasets/"
_SUBJ = "https://www.cs.cornell.edu/people/pabo/movie-review-data/rotten_imdb.tar.gz"
_TMN = "http://acube.di.unipi.it/repo/news.gz"

FILE_SHA256 = {
    "train_5500.label": "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
    "TREC_10.label": "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
    "quote.tok.gt9.5000": "73a2dcf8dc3cbcc7f068a70ef9f021c86b2a8e4dac81566b7fd015b3e938f2c5",
    "plot.tok.gt9.5000": "5ddc9b44dc60d64d651347fcd7bdd489b0c70661e3f768215c16eea36f51204a",
}
ROWS_SHA256 = {
    "r8-train-all-terms.txt": "015bddccc661d2e604bbdb2bf0405c184f35af21a48a55d8e5a8e9947698b2ed",
    "r8-test-all-terms.txt": "9ed028ab5dbcc8dfb575b2efde93ecc166529e70849dc041113fed6598b0302c",
}
_TMN_LABELS = {"business", "entertainment", "health", "sci_tech", "sport", "us", "world"}
_TMN_LEAST = 32_000
_MOST_MEMBER_BYTES = 1 << 24  # of a file in an archive; those of SUBJ have half a million


def cache_folder() -> Path:
    """The per-user folder that downloads go to."""
    import pooch

    return Path(pooch.os_cache("tffcl"))


def fetch(name: str, cache: Path) -> None:
    """Downloads the files of a set into `cache`, checked; what is there stays until replaced whole.

    Raises:
      DatasetError: no network, or content that fails its check; the cache is then as it was.
    """
    fetch_with(_FETCHERS[name], name, cache)


def fetch_with(fetcher: Callable[[Path, Path], None], name: str, cache: Path) -> None:
    """Lets `fetcher` download into a passing folder and move what is checked into `cache`; see `fetch`."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # inside the cache: os.replace needs one file system
        with tempfile.TemporaryDirectory(prefix=".download-", dir=cache) as folder:
            fetcher(Path(folder), cache)
    except OSError as error:
        raise DatasetError(
            f"{cache}: the download of {name} cannot be kept there ({error.strerror or error})"
        ) from error


def rows_sha256(rows: parsers.Rows) -> str:
    """A sum over parsed rows that ignores line ends and runs of spaces."""
    sum_ = hashlib.sha256()
    for text, label in rows:
        sum_.update(f"{label}\t{' '.join(text.split())}\n".encode())
    return sum_.hexdigest()


def _fetch_trec(folder: Path, cache: Path) -> None:
    for file_name in ("train_5500.label", "TREC_10.label"):
        path = retrieve(_TREC + file_name, folder)
        _check_bytes(path.read_bytes(), file_name, _TREC + file_name)
    keep(folder, ("train_5500.label", "TREC_10.label"), cache / "trec")


def _fetch_r8(folder: Path, cache: Path) -> None:
    for file_name, expected in ROWS_SHA256.items():
        path = retrieve(_R8 + file_name, folder)
        found = rows_sha256(parsers.read_tab_separated(path))
        check_sum(found, expected, _R8 + file_name)
    keep(folder, tuple(ROWS_SHA256), cache / "r8")


def _fetch_subj(folder: Path, cache: Path) -> None:
    names = ("quote.tok.gt9.5000", "plot.tok.gt9.5000")
    archive = retrieve(_SUBJ, folder).read_bytes()
    for file_name in names:
        content = _member(archive, file_name)
        _check_bytes(content, file_name, f"{_SUBJ} ({file_name})")
        (folder / file_name).write_bytes(content)
    keep(folder, names, cache / "subj")


def _fetch_tmn(folder: Path, cache: Path) -> None:
    rows = parsers.read_news(retrieve(_TMN, folder))
    labels = {label for _, label in rows}
    if labels != _TMN_LABELS or len(rows) < _TMN_LEAST:
        raise DatasetError(
            f"{_TMN}: expected at least {_TMN_LEAST} records with the labels "
            f"{', '.join(sorted(_TMN_LABELS))}, found "
            f"{len(rows)} with {', '.join(sorted(labels))[:120]}; see {HOME_PAGES['tmn']}"
        )
    keep(folder, ("news.gz",), cache / "tmn")


_FETCHERS: dict[str, Callable[[Path, Path], None]] = {
    "trec6": _fetch_trec,
    "trec50": _fetch_trec,
    "r8": _fetch_r8,
    "tmn": _fetch_tmn,
    "subj": _fetch_subj,
}


def retrieve(url: str, folder: Path, instead: str = "sample") -> Path:
    """Downloads one file into `folder`; the caller checks it. `instead` needs no download; errors name it."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)  # it would print a checksum to copy
    file_name = url.rsplit("/", 1)[1]
    try:
        downloader = pooch.HTTPDownloader(timeout=30)
        return Path(pooch.retrieve(url, known_hash=None, fname=file_name, path=folder, downloader=downloader))
    except Exception as error:  # requests has no common base with urllib3 and pooch
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = type(error).__name__ if status is None else f"HTTP status {status}"
        raise DatasetError(
            f"{url}: cannot be downloaded ({reason}); put the files into a folder and pass it as data_dir or "
            f"$TFFCL_DATA_DIR, or use the data set {instead!r}, which needs no download"
        ) from error


def _member(archive: bytes, file_name: str) -> bytes:
    """One file of a tar.gz, read in memory: nothing is extracted to a path that the archive chooses."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member)  # None for a folder or a device
                if content is not None and member.name.rsplit("/", 1)[-1] == file_name:
                    return raw_files.read_at_most(content, f"{_SUBJ} ({file_name})", _MOST_MEMBER_BYTES)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DatasetError(f"{_SUBJ}: not a whole tar.gz archive ({error})") from error
    raise DatasetError(f"{_SUBJ}: the archive holds no {file_name}")


def _check_bytes(content: bytes, file_name: str, url: str) -> None:
    check_sum(hashlib.sha256(content).hexdigest(), FILE_SHA256[file_name], url)


def check_sum(found: str, expected: str, url: str) -> None:
    """Raises DatasetError unless the sha256 that was found is the expected one."""
    if found != expected:
        raise DatasetError(f"{url}: has sha256 {found}, expected {expected}; broken or changed, so it is not kept")


def keep(folder: Path, names: tuple[str, ...], target: Path) -> None:
    """Moves checked files to their place in the cache, each at once."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        os.replace(folder / name, target / name)
