"""Parts by name: methods, networks, transfers and data sets that ship, come with a package, or stand in a file.

`my_file.py:name` and `package.module:name` name a Python object of the user's; running its code is what naming it asks
for. Packages announce parts as entry points of the groups `tffcl.methods`, `tffcl.networks`, `tffcl.transfers`,
`tffcl.scenarios` and `tffcl.data`. What such a part takes and has a default is an option (`tffcl.options.options_of`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import pathlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from tffcl.errors import InputError, TffclError

_REFERENCE = re.compile(r"(?P<where>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")


class Registry:
    """The parts of one kind ("method", for example): those that ship, and the entry points of a group.

    `shipped` is name -> "module:attribute", or the part itself.
    """

    def __init__(self, kind: str, group: str, shipped: Mapping[str, Any]):
        self.kind, self.group, self._shipped = kind, group, dict(shipped)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts that ship or are installed."""
        return (*self._shipped, *(name for name in self._installed() if name not in self._shipped))

    def get(self, reference: str) -> Any:
        """The part called `reference`, or the object that it refers to.

        Raises:
          InputError: there is none, or the file or module cannot be loaded.
        """
        if reference in self._shipped:
            part = self._shipped[reference]
            return load_object(part, self.kind) if isinstance(part, str) else part
        installed = self._installed().get(reference)
        if installed is not None:
            return load_object(installed.value, self.kind)
        if _REFERENCE.fullmatch(reference):
            return load_object(reference, self.kind)
        near = difflib.get_close_matches(reference, self.names, 1)
        hint = f"did you mean {near[0]!r}" if near else f"there are {', '.join(self.names)}"
        raise InputError(
            f"{self.kind}: no {self.kind} is called {reference!r}; {hint}, or my_file.py:NAME for one of your own"
        )

    def make(self, reference: str, supplied: Mapping[str, Any], options: Any = None) -> Any:
        """Calls a part of the user's with what its signature has of `supplied`, and the values of its own options.

        Raises:
          InputError: it is nothing to call, or fails.
        """
        part = self.get(reference)
        if not callable(part):
            raise InputError(f"{self.kind}: {reference} is a {type(part).__name__}, expected a function or a class")
        with users_code(f"{self.kind}: {reference}"):
            accepted = inspect.signature(part).parameters
            chosen = {name: value for name, value in supplied.items() if name in accepted}
            return part(**chosen, **(dataclasses.asdict(options) if options is not None else {}))

    def check(self, reference: str) -> None:
        """Raises InputError where there is no such part; loads none that ships."""
        if reference not in self._shipped:
            self.get(reference)

    def is_own(self, reference: Any) -> bool:
        """Whether a text names a part of the user's or of an installed package."""
        if not isinstance(reference, str) or reference in self._shipped:
            return False
        return bool(_REFERENCE.fullmatch(reference)) or reference in self._installed()

    def _installed(self) -> Mapping[str, Any]:
        return _announced(self.group, tuple(sys.path))


@functools.lru_cache(maxsize=16)
def _announced(group: str, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Entry points of the packages on `sys.path`, by name; all packages are read for them, once."""
    del path
    from importlib import metadata  # slow to import, and names that ship do without

    points: Any = metadata.entry_points()
    # Python 3.9 gives a mapping of groups.
    chosen = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
    return {point.name: point for point in chosen}


@contextlib.contextmanager
def users_code(what: str) -> Iterator[None]:
    """While it is open, code of the user's runs: an error in it becomes one line that says where."""
    try:
        yield
    except TffclError:
        raise
    except Exception as error:
        others = (str(pathlib.Path(__file__).parent), *sysconfig.get_paths().values(), "<")
        frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(others)]
        where = f" ({pathlib.Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        raise InputError(f"{what}: {type(error).__name__}: {error}{where}") from error


def load_object(reference: str, kind: str = "part") -> Any:
    """The object that "file.py:name" or "package.module:name" refers to.

    Raises:
      InputError: no such file, module or name, or an error while it is loaded.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise InputError(f"{kind}: expected my_file.py:NAME or package.module:NAME, found {reference!r}")
    where, name = match["where"], match["name"]
    with users_code(f"{kind}: {where} cannot be loaded"):
        module = _file_module(pathlib.Path(where)) if where.endswith(".py") else importlib.import_module(where)
    if not hasattr(module, name):
        raise InputError(f"{kind}: {where} has no {name!r}")
    return getattr(module, name)


def _file_module(path: pathlib.Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    name = f"tffcl_user_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
