"""Downloads, with `pooch.retrieve` replaced by something that has no network."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from tffcl.datasets import available, download, load, parsers
from tffcl.errors import DatasetError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(download, "cache_folder", lambda: folder)
    return folder


def _serve(monkeypatch, contents):
    """`pooch.retrieve` now gives the bytes in `contents` by file name, and records what was asked for."""
    import pooch

    asked = []

    def retrieve(url, known_hash, fname, path, downloader):
        asked.append(url)
        content = contents[fname]
        if isinstance(content, Exception):
            raise content
        (Path(path) / fname).write_bytes(content)
        return str(Path(path) / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return asked


def _kept(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def _tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _published(data_dir, name):
    return {path.name: path.read_bytes() for path in (data_dir / name).iterdir()}


def test_trec_is_fetched_once(data_dir, cache, monkeypatch):
    asked = _serve(monkeypatch, _published(data_dir, "trec"))
    assert not available("trec6")
    assert len(load("trec6").test_texts) == 500
    assert available("trec50")
    assert len(load("trec50").train_texts) == 5_452
    assert [url.rsplit("/", 1)[1] for url in asked] == ["train_5500.label", "TREC_10.label"]
    assert _kept(cache) == ["TREC_10.label", "train_5500.label"]


def test_r8_and_subj(data_dir, cache, monkeypatch):
    windows = {name: content.replace(b"\n", b"\r\n") for name, content in _published(data_dir, "r8").items()}
    subj = {f"rotten_imdb/{name}": content for name, content in _published(data_dir, "subj").items()}
    _serve(monkeypatch, {**windows, "rotten_imdb.tar.gz": _tar({"subjdata.README.1.0": b"", **subj})})
    assert len(load("r8").train_texts) == 5_485
    assert load("subj").train_texts == load("subj", data_dir).train_texts


def test_a_broken_download_never_enters_the_cache(data_dir, cache, monkeypatch):
    trec = _published(data_dir, "trec")
    _serve(monkeypatch, {**trec, "TREC_10.label": trec["TREC_10.label"][:-100]})
    with pytest.raises(DatasetError, match=r"TREC_10\.label: has sha256 .*, expected 033f"):
        load("trec6")
    r8 = _published(data_dir, "r8")
    _serve(monkeypatch, {**r8, "r8-train-all-terms.txt": r8["r8-train-all-terms.txt"][:-100]})
    with pytest.raises(DatasetError, match=r"r8-train-all-terms\.txt: has sha256"):
        load("r8")
    assert _kept(cache) == []
    assert not available("trec6")


def test_broken_archives(cache, monkeypatch):
    whole = _tar({"quote.tok.gt9.5000": b"x\n"})
    for content, message in [
        (whole[:-30], "not a whole tar.gz archive"),
        (b"<html>moved</html>", "not a whole tar.gz archive"),
        (whole, "has sha256"),
        (_tar({"other": b""}), "holds no quote"),
    ]:
        _serve(monkeypatch, {"rotten_imdb.tar.gz": content})
        with pytest.raises(DatasetError, match=message):
            load("subj")
    assert _kept(cache) == []


def _news(count, labels):
    record = "title {0}\nwords\nlink\n{0}\ndate\nsource\n{1}\n\n"
    return gzip.compress("".join(record.format(n, labels[n % len(labels)]) for n in range(count)).encode())


def test_news_archive(cache, monkeypatch):
    labels = ["business", "entertainment", "health", "sci_tech", "sport", "us", "world"]
    for content in (_news(70, labels), _news(32_500, labels[:3]), _news(32_500, labels)[:-50]):
        _serve(monkeypatch, {"news.gz": content})
        with pytest.raises(DatasetError, match="news.gz"):
            load("tmn")
    assert _kept(cache) == []
    _serve(monkeypatch, {"news.gz": _news(32_500, labels)})
    data = load("tmn")
    assert (len(data.train_texts), len(data.test_texts)) == (24_817, 32_500 - 24_817)


def test_no_network(cache, monkeypatch):
    _serve(monkeypatch, {"train_5500.label": ConnectionError("name or\nservice not known")})
    with pytest.raises(
        DatasetError, match=r"cannot be downloaded .*TFFCL_DATA_DIR, or use the data set 'sample'"
    ) as caught:
        load("trec6")
    assert "\n" not in str(caught.value)


def test_a_given_folder_is_never_filled(tmp_path, monkeypatch):
    asked = _serve(monkeypatch, {})
    with pytest.raises(DatasetError, match="not found"):
        load("trec6", tmp_path)
    assert asked == []


def test_sums_of_rows(data_dir):
    for name, expected in download.ROWS_SHA256.items():
        assert download.rows_sha256(parsers.read_tab_separated(data_dir / "r8" / name)) == expected
    assert download.rows_sha256([("a  b", "x")]) == download.rows_sha256([("a b ", "x")])
    assert download.rows_sha256([("a b", "x")]) != download.rows_sha256([("a b", "y")])
