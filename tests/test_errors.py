"""Checks of arguments: whatever is no such number is one InputError that names the argument."""

import pathlib
import re

import numpy as np
import pytest

from tffcl import errors

NONE = (0, -0.5, float("nan"), float("inf"), "half", None, True, [0.5])


@pytest.mark.parametrize("value", NONE, ids=repr)
@pytest.mark.parametrize("check", [errors.check_above_zero, errors.check_between_0_and_1])
def test_what_is_no_such_number_is_refused_by_name(check, value):
    with pytest.raises(errors.InputError, match="share: expected a number"):
        check("share", value)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5)])
def test_numbers_of_numpy_are_numbers(value):
    errors.check_above_zero("share", value)
    errors.check_between_0_and_1("share", value)


@pytest.mark.parametrize("page", [page for *_, page in errors.PAGES])
def test_the_page_that_explains_an_error_is_there_with_its_heading(page):
    path, _, anchor = page.partition("#")
    headings = re.findall(r"^#+ (.*)$", (pathlib.Path(__file__).parents[1] / path).read_text(), re.M)
    slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert not anchor or anchor in slugs


@pytest.mark.parametrize(
    ("error", "page"),
    [
        (errors.WordVectorError("line 3"), "word-vectors"),
        (errors.DatasetError("no column 'text'"), "data-of-ones-own"),
        (errors.InputError("data set: no data set is called 'a.csv'; ... or my_file.py:NAME"), "data-of-ones-own"),
        (errors.DatasetError("trec is not at hand; set TFFCL_DATA_DIR"), "data-without-internet"),
        (errors.RunError("lost all workers (a:1, b:2)"), "when-a-worker-gets-lost"),
        (errors.run_exists("runs/a"), "resume"),
        (errors.InputError("model: batch changes what it keeps"), "writing-a-new-method"),
        (errors.InputError("num_clients: expected a whole number"), None),
    ],
    ids=str,
)
def test_an_error_has_the_page_of_its_kind(error, page):
    found = errors.page_of(error)
    assert found is None if page is None else found.endswith(f"#{page}")
