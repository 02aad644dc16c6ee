import doctest

import pytest

from tffcl.datasets import tokenise, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How far is it from Denver to Aspen ?", "how far is it from denver to aspen ?"),
        ("I can't, won't and he'd've!", "i ca n't , wo n't and he 'd 've !"),
        ("They're John's; we'll see (soon).", "they 're john 's we 'll see ( soon )"),
        ("a  b\tc\nd\x85e", "a b c d e"),
        ("50% of $3.2m", "50 of 3 2m"),
        ("``quoted''", "``quoted''"),
        ("", ""),
        ("... --- ...", ""),
    ],
)
def test_as_kim(text, expected):
    assert tokenise(text) == expected.split()
    assert tokenise(" ".join(tokenise(text))) == expected.split(), "tokenising twice changes nothing"


def test_variants():
    assert tokenise("Who's NASA?", lower=False) == ["Who", "'s", "NASA", "?"]
    assert tokenise("Who's NASA?", split=False) == ["who's", "nasa?"]
    assert tokenise("Привет, café_1") == [",", "caf", "1"]
    assert tokenise("Привет, café_1", unicode=True) == ["привет", ",", "café", "1"]


def test_docstring():
    assert doctest.testmod(tokens).failed == 0
