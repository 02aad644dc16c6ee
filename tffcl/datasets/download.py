"""Files of the published sets: where they are looked for, and their checked download into a per-user cache.

Every file is checked before it enters the cache, which it does by `os.replace`: see the `Source` of each set.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Optional, TypeVar

from tffcl.datasets import raw_files
from tffcl.datasets.raw_files import PathLike
from tffcl.errors import DatasetError

ENVIRONMENT_VARIABLE = "TFFCL_DATA_DIR"
SPLIT_SEED = 20240607  # for the sets that come without a split; changing it changes every figure for them
_MOST_MEMBER_BYTES = 1 << 24  # of a file in an archive; those of SUBJ have half a million
_Paths = TypeVar("_Paths")


def check_sum(found: str, expected: str, url: str) -> None:
    """Raises DatasetError unless the sha256 that was found is the expected one."""
    if found != expected:
        raise DatasetError(f"{url}: has sha256 {found}, expected {expected}; broken or changed, so it is not kept")


def check_file(path: Path, expected: str, url: str) -> None:
    """Raises DatasetError unless the sha256 of a file is the expected one."""
    import pooch

    check_sum(pooch.file_hash(str(path), alg="sha256"), expected, url)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a published set is downloaded from, and how its files are checked."""

    folder: str  # of the set in the cache
    address: str  # what the URL of each file begins with
    sums: Mapping[str, str]  # file name -> sha256 as `check` takes it
    check: Callable[[Path, str, str], None] = check_file  # DatasetError for (path, sum, URL) of another file
    archive: str = ""  # the tar.gz file at `address` that holds the files; empty where each is downloaded by itself
    instead: str = "sample"  # a data set that needs no download, for messages

    def fetch(self, name: str, cache: Path) -> None:
        """Downloads the files of set `name` into `cache`, checked; what is there stays until replaced whole.

        Raises:
          DatasetError: no network, or content that fails its check; the cache is then as it was.
        """
        try:
            cache.mkdir(parents=True, exist_ok=True)
            # inside the cache: os.replace needs one file system
            with tempfile.TemporaryDirectory(prefix=".download-", dir=cache) as passing:
                folder = Path(passing)
                content = self._retrieve(self.archive, folder).read_bytes() if self.archive else b""
                for file_name, expected in self.sums.items():
                    url = self.address + file_name
                    if self.archive:
                        url = f"{self.address}{self.archive} ({file_name})"
                        (folder / file_name).write_bytes(_member(content, file_name, self.address + self.archive))
                    else:
                        self._retrieve(file_name, folder)
                    self.check(folder / file_name, expected, url)
                (cache / self.folder).mkdir(exist_ok=True)
                for file_name in self.sums:
                    os.replace(folder / file_name, cache / self.folder / file_name)
        except OSError as error:
            raise DatasetError(
                f"{cache}: the download of {name} cannot be kept there ({error.strerror or error})"
            ) from error

    def _retrieve(self, file_name: str, folder: Path) -> Path:
        import pooch

        pooch.get_logger().setLevel(logging.WARNING)  # it would print a checksum to copy
        url = self.address + file_name
        try:
            downloader = pooch.HTTPDownloader(timeout=30)
            return Path(pooch.retrieve(url, known_hash=None, fname=file_name, path=folder, downloader=downloader))
        except Exception as error:  # requests has no common base with urllib3 and pooch
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = type(error).__name__ if status is None else f"HTTP status {status}"
            raise DatasetError(
                f"{url}: cannot be downloaded ({reason}); put the files into a folder and pass it as data_dir or "
                f"${ENVIRONMENT_VARIABLE}, or use the data set {self.instead!r}, which needs no download"
            ) from error


def _member(archive: bytes, file_name: str, url: str) -> bytes:
    """A file of a tar.gz, read in memory: nothing is extracted to a path that the archive chooses."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member)  # None for a folder or a device
                if content is not None and member.name.rsplit("/", 1)[-1] == file_name:
                    return raw_files.read_at_most(content, f"{url} ({file_name})", _MOST_MEMBER_BYTES)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DatasetError(f"{url}: not a whole tar.gz archive ({error})") from error
    raise DatasetError(f"{url}: the archive holds no {file_name}")


def cache_folder() -> Path:
    """The per-user folder that downloads go to."""
    import pooch

    return Path(pooch.os_cache("tffcl"))


def data_folder(data_dir: Optional[PathLike]) -> tuple[Path, bool]:
    """The folder to search, and whether it is the cache that downloads may fill.

    Raises:
      DatasetError: `data_dir` or $TFFCL_DATA_DIR is no folder; a mistyped one must not pass for "no data".
    """
    chosen = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT_VARIABLE) or None
    if chosen is None:
        return cache_folder(), True
    folder = Path(os.path.expanduser(chosen))
    # Here and elsewhere: os.path says no to what cannot be a path, a name of 300 characters, where pathlib raises.
    if not os.path.isdir(folder):
        origin = "data_dir" if data_dir is not None else f"${ENVIRONMENT_VARIABLE}"
        raise DatasetError(f"{origin} {folder}: no such folder")
    return folder, False


def found_or_fetched(
    name: str, find: Callable[[Path], Optional[_Paths]], source: Optional[Source], data_dir: Optional[PathLike]
) -> tuple[Path, Optional[_Paths]]:
    """The folder that was searched, and what `find` gives of it; the cache is filled from `source` if need be."""
    folder, is_cache = data_folder(data_dir)
    paths = find(folder)
    if paths is None and is_cache and source is not None:
        source.fetch(name, folder)
        paths = find(folder)
    return folder, paths
