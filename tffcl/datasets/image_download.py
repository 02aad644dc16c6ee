"""Checked download of MNIST and Fashion-MNIST into the per-user cache.

The sha256 of each gzip file is checked before the file enters the cache. EMNIST is left to the user: it comes as
one archive of half a gigabyte, for whose members no checksum is published.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tffcl.datasets import download

_ADDRESSES = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}
SHA256 = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
}


def fetch(name: str, cache: Path) -> None:
    """Downloads the files of `name`, one of `SHA256`, into a folder of that name in `cache`.

    Raises:
      DatasetError: no network, or content that fails its check; the cache is then as it was.
    """

    def fetch_files(folder: Path, cache: Path) -> None:
        for file_name, expected in SHA256[name].items():
            url = _ADDRESSES[name] + file_name
            path = download.retrieve(url, folder, instead="digits")
            download.check_sum(hashlib.sha256(path.read_bytes()).hexdigest(), expected, url)
        download.keep(folder, tuple(SHA256[name]), cache / name)

    download.fetch_with(fetch_files, name, cache)
