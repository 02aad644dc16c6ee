"""Where the real data sets are, for the tests that need them."""

import os
from pathlib import Path

import pytest

_FALLBACK = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir():
    """The folder with the published data sets; tests that need it are skipped where there is none."""
    folder = Path(os.environ.get("TFFCL_DATA_DIR") or _FALLBACK)
    if not (folder / "trec").is_dir():
        pytest.skip(f"no published data sets in {folder}: set TFFCL_DATA_DIR to a folder that holds them")
    return folder


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    """Loaders must not find the user's own data by accident."""
    monkeypatch.delenv("TFFCL_DATA_DIR", raising=False)
