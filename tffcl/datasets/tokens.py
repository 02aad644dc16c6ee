"""Tokenisation as Kim (2014) does it, for English alone or for the letters of every script.

Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Iterable
from typing import Optional

_MARKS = "(),!?'`"
_FOREIGN = re.compile(f"[^A-Za-z0-9{_MARKS}]")
_SUFFIX = re.compile(r"('s|'ve|n't|'re|'d|'ll)", re.IGNORECASE)
_PUNCTUATION = re.compile(r"([,!()?])")
_HAN = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd])")


class _EveryScript(dict[int, Optional[str]]):
    """For `str.translate`: what becomes of a character; each is looked up in Unicode's tables once."""

    def __missing__(self, code: int) -> Optional[str]:
        character = chr(code)
        kind = unicodedata.category(character)
        if kind[0] in "LMN" or character in _MARKS:
            kept: Optional[str] = character
        else:
            kept = None if kind == "Cf" else " "  # Cf: soft hyphens and signs of direction, inside words
        self[code] = kept
        return kept


_EVERY_SCRIPT = _EveryScript(
    {
        0x2019: "'",  # the typographic apostrophe
        0x02BC: "'",  # and the one that counts as a letter
        0x200B: " ",  # a space of no width, between words
        0x200C: "\u200c",  # joins and keeps apart the letters of a word, in Persian and in Indian scripts
        0x200D: "\u200d",
    }
)


def tokenise(text: str, *, lower: bool = True, split: bool = True, unicode: bool = True) -> list[str]:
    """Words and punctuation marks of `text`.

    Whatever is not a letter, a digit or one of ``( ) , ! ? ' ` `` becomes a space; the suffixes 's, 've, n't,
    're, 'd, 'll and the marks ``, ! ? ( )`` become tokens of their own; the rest is cut at white space.

    >>> tokenise("Who's Galileo (1564-1642)?")
    ['who', "'s", 'galileo', '(', '1564', '1642', ')', '?']
    >>> tokenise("L'été à San José")
    ["l'été", 'à', 'san', 'josé']
    >>> tokenise("L'été à San José", unicode=False)
    ["l'", 't', 'san', 'jos']

    Three variants are in use in Kim's experiments: most sets (SUBJ among them) lower-case, which is the
    default and what the GloVe 6B vectors want; TREC keeps capitals (`lower=False`), for vectors that have
    them; SST cuts at white space only (`split=False`). One deviation: a bracket is the token ``(``, where
    Kim's substitution leaves a backslash before it, which no word vectors know.

    Args:
      text: one document, tokenised or not; tokenising twice changes nothing.
      lower: turn to lower case.
      split: give suffixes and marks tokens of their own.
      unicode: keep the letters, marks and digits of every script, in Unicode's composed form (NFC); ’ is read as ',
        and each Chinese character is a token. False for Kim's own rule, which keeps those of English (ASCII). On
        ASCII text both are the same.

    Returns:
      The tokens in order; none for an empty text.
    """
    if unicode:
        text = unicodedata.normalize("NFC", text).translate(_EVERY_SCRIPT)
        text = _HAN.sub(r" \1 ", text)
    else:
        text = _FOREIGN.sub(" ", text)
    if split:
        text = _SUFFIX.sub(r" \1", text)
        text = _PUNCTUATION.sub(r" \1 ", text)
    if lower:
        text = text.lower()
    return text.split()


def share_dropped(texts: Iterable[str], unicode: bool = True) -> float:
    """Share of the characters, punctuation and white space left out, that `tokenise` drops.

    >>> share_dropped(["José!"], unicode=False)
    0.25
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    kept = dropped = 0
    for character, count in counts.items():
        if unicodedata.category(character)[0] in "PZC":
            continue
        if tokenise(character, unicode=unicode):
            kept += count
        else:
            dropped += count
    return dropped / max(1, kept + dropped)
