"""Public names stand in the rooms' `__init__.pyi` alone: each is there, says what it is, and costs nothing."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import subprocess
import sys
import typing

import pytest
from serving import PATIENCE

import tffcl

PACKAGE = pathlib.Path(tffcl.__file__).parent
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.pyi"))


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_says_what_it_is(room):
    module = importlib.import_module(f"tffcl.{room}")
    assert module.__all__
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert not name.startswith("_")
        value = getattr(module, name)
        union = typing.get_origin(value) is typing.Union  # a type alias has no words of its own
        assert union or value.__doc__, f"{room}.{name} says nothing of itself"
    with pytest.raises(AttributeError):
        getattr(module, "no_such_name")  # noqa: B009 - an unknown name must not be found lazily


def docstrings():
    """{(room, name): docstring} of the public functions and classes, read from the sources; a name is listed once."""
    found = {}
    for stub in [PACKAGE / "__init__.pyi", *(PACKAGE / room / "__init__.pyi" for room in ROOMS)]:
        for line in ast.parse(stub.read_text()).body:
            if not isinstance(line, ast.ImportFrom) or line.module is None:
                continue
            path = stub.parent.joinpath(*line.module.split("."))
            source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            names = {alias.name for alias in line.names}
            for node in ast.parse(source.read_text()).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
                    found[stub.parent.name, node.name] = ast.get_docstring(node) or ""
    return found


DOCSTRINGS = docstrings()


def example_of(text, name):
    """Whether a docstring has an example that runs, or names a page or an example that shows it."""
    shown = re.search(r"Shown in (\S+)\.(?:\s|$)", text)
    if shown is None:
        return ">>> " in text
    page = PACKAGE.parent / shown[1]
    return re.search(rf"\b{name}\b", page.read_text()) is not None


@pytest.mark.parametrize(("room", "name"), DOCSTRINGS)
def test_every_public_docstring_has_an_example_that_runs_or_says_where_one_is(room, name):
    text = DOCSTRINGS[room, name]
    beside = re.search(r"Shown with `(\w+)`\.", text)
    if beside is None:
        assert example_of(text, name), f"{room}.{name}: no >>>, no 'Shown in PAGE.', no 'Shown with `NAME`.'"
    else:
        others = [(text, other) for (_, other), text in DOCSTRINGS.items() if other == beside[1]]
        assert others, f"{room}.{name}: {beside[1]} is no public name"
        assert all(example_of(*each) for each in others), f"{room}.{name}: {beside[1]} has no example either"


def test_the_package_shows_its_rooms_and_what_a_run_needs():
    assert {"Experiment", "Method", "Plan", "method", "script", "errors"} <= set(tffcl.__all__)
    assert set(ROOMS) <= set(tffcl.__all__)


def test_looking_at_the_package_loads_nothing_heavy():
    rooms = [room for room in ROOMS if room != "layers"]  # which registers its layers with Keras
    code = f"""
import sys, tffcl
for room in {rooms!r}:
    dir(getattr(tffcl, room))
dir(tffcl)
print([name for name in ("tensorflow", "tensorflow_federated", "numpy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_keras_finds_the_layers_of_saved_models():
    """`load_model` looks classes up by the name under which importing `tffcl.layers` registers them."""
    import tensorflow as tf

    from tffcl import layers

    public = [getattr(layers, name) for name in layers.__all__]
    ours = [each for each in public if isinstance(each, type) and issubclass(each, tf.keras.layers.Layer)]
    assert len(ours) >= 7
    for each in ours:
        assert tf.keras.utils.get_registered_object(f"tffcl>{each.__name__}") is each
