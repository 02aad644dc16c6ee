"""Tokenisation of English text as Kim (2014) does it.

Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014.
"""

from __future__ import annotations

import re

_KEPT = "A-Za-z0-9(),!?'`"
_FOREIGN = re.compile(f"[^{_KEPT}]")
_FOREIGN_UNICODE = re.compile(r"[^\w(),!?'`]|_")
_SUFFIX = re.compile(r"('s|'ve|n't|'re|'d|'ll)", re.IGNORECASE)
_PUNCTUATION = re.compile(r"([,!()?])")


def tokenise(text: str, *, lower: bool = True, split: bool = True, unicode: bool = False) -> list[str]:
    """Words and punctuation marks of `text`.

    Whatever is not an ASCII letter, a digit or one of ``( ) , ! ? ' ` `` becomes a space; the suffixes 's,
    've, n't, 're, 'd, 'll and the marks ``, ! ? ( )`` become tokens of their own; the rest is cut at white
    space.

    >>> tokenise("Who's Galileo (1564-1642)?")
    ['who', "'s", 'galileo', '(', '1564', '1642', ')', '?']

    Three variants are in use in Kim's experiments: most sets (SUBJ among them) lower-case, which is the
    default and what the GloVe 6B vectors want; TREC keeps capitals (`lower=False`), for vectors that have
    them; SST cuts at white space only (`split=False`). One deviation: a bracket is the token ``(``, where
    Kim's substitution leaves a backslash before it, which no word vectors know.

    Args:
      text: one document, tokenised or not; tokenising twice changes nothing.
      lower: turn to lower case.
      split: give suffixes and marks tokens of their own.
      unicode: keep the letters and digits of every script, for text that is not English.

    Returns:
      The tokens in order; none for an empty text.
    """
    text = (_FOREIGN_UNICODE if unicode else _FOREIGN).sub(" ", text)
    if split:
        text = _SUFFIX.sub(r" \1", text)
        text = _PUNCTUATION.sub(r" \1 ", text)
    if lower:
        text = text.lower()
    return text.split()
