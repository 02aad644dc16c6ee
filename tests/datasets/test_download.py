"""Downloads, with pooch's downloader replaced by one that has no network."""

import dataclasses
import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from loading import module_at

from tffcl.datasets import available, download, images, load, load_images, official
from tffcl.errors import DatasetError

idx = module_at(Path(__file__).with_name("idx.py"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(download, "cache_folder", lambda: folder)
    return folder


def _serve(monkeypatch, contents):
    """pooch now downloads the bytes in `contents` by file name; the result lists the URLs that were asked for."""
    import pooch

    asked = []

    class Downloader:
        def __init__(self, timeout):
            assert timeout > 0

        def __call__(self, url, output_file, pooch, check_only=False):
            asked.append(url)
            content = contents[url.rsplit("/", 1)[1]]
            if isinstance(content, Exception):
                raise content
            Path(output_file).write_bytes(content)

    monkeypatch.setattr(pooch, "HTTPDownloader", Downloader)
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
    for name, expected in official.LAYOUTS["r8"].source.sums.items():
        assert official.rows_sha256(official.read_tab_separated(data_dir / "r8" / name)) == expected
    assert official.rows_sha256([("a  b", "x")]) == official.rows_sha256([("a b ", "x")])
    assert official.rows_sha256([("a b", "x")]) != official.rows_sha256([("a b", "y")])


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """The four files of a small MNIST by name, whose sums are the known ones."""
    for part, labels in (("train", (3, 1, 9)), ("t10k", (0, 2))):
        idx.write_part(tmp_path / "source", part, idx.random_images(len(labels), 4, 5), labels)
    files = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    layout = images.LAYOUTS["mnist"]
    source = dataclasses.replace(
        layout.source, sums={name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    )
    monkeypatch.setitem(images.LAYOUTS, "mnist", dataclasses.replace(layout, source=source))
    return files


def test_mnist_is_fetched_once_into_the_cache(cache, mnist, monkeypatch):
    asked = _serve(monkeypatch, mnist)
    assert not available("mnist")
    for _ in range(2):
        assert load_images("mnist").train_labels.tolist() == [3, 1, 9]
    assert len(asked) == 4
    assert sorted(path.parent.name for path in cache.rglob("*.gz")) == ["mnist"] * 4


def test_broken_images_never_enter_the_cache(cache, mnist, monkeypatch):
    name = "t10k-images-idx3-ubyte.gz"
    _serve(monkeypatch, {**mnist, name: mnist[name][:-10]})
    with pytest.raises(DatasetError, match=rf"{name}: has sha256 .*, so it is not kept"):
        load_images("mnist")
    assert _kept(cache) == []


def test_images_without_a_network_and_sets_that_are_never_fetched(cache, monkeypatch):
    names = images.LAYOUTS["mnist"].source.sums
    asked = _serve(monkeypatch, dict.fromkeys(names, ConnectionError("no route")))
    with pytest.raises(DatasetError, match="cannot be downloaded .*the data set 'digits', which needs no download"):
        load_images("mnist")
    del asked[:]
    with pytest.raises(DatasetError, match=r"emnist-letters-train-images-idx3-ubyte.*\(--data-dir\)"):
        load_images("emnist-letters")
    assert asked == []
