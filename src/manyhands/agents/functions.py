"""Python functions of a person's own, found by what they are called: ``module:function``, or ``path/file.py:function``.

Modules are looked for in a folder first, as they would be if a file there were run. Folders stay on the path for as long as the program
runs, since a function may import when it is called, but behind everything else, so that a file of somebody's called ``email.py`` is not
taken for the standard library's.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from manyhands.core.errors import UserError
from manyhands.engine.performance import describe

Function = Callable[..., Any]


def load_function(written: str, folder: Path, refusal: Callable[[str], UserError]) -> Function:
    """The function that ``module:function`` or ``path/file.py:function`` names; names with dots reach into classes.

    ``folder``: where modules are looked for first, and where paths start; ``refusal``: makes the error of what is wrong. Raises it if
    there is no such function, or its module can't be imported. A file that has not changed is loaded once.
    """
    source, _, name = written.rpartition(":")
    if not source or not name:
        raise refusal(f"must be module:function or path/file.py:function, not {written!r}")
    found: Any = _module(source, folder.absolute(), refusal)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise refusal(f"{source} has no {name!r}")
    if not callable(found):
        raise refusal(f"{written} is not a function")
    function: Function = found
    return function


def _module(source: str, folder: Path, refusal: Callable[[str], UserError]) -> ModuleType:
    importlib.invalidate_caches()  # the file may have been written just now
    path = folder / source
    if source.endswith(".py") and not path.is_file():
        raise refusal(f"there is no file {path}")
    try:
        return _from_file(path, folder) if source.endswith(".py") else _imported(source, folder)
    except (Exception, SystemExit) as error:  # loading runs a person's own code
        raise refusal(f"{source} can't be imported: {describe(error)}") from error


def _imported(name: str, folder: Path) -> ModuleType:
    top = folder / name.partition(".")[0]
    if not (top.is_dir() or top.with_name(f"{top.name}.py").is_file()):
        return importlib.import_module(
            name
        )  # it is not in the folder, so that nothing that it imports is looked for there
    with _first_on_path(folder):
        module = importlib.import_module(name)
    own = folder / f"{name}.py"
    if own.is_file() and Path(getattr(module, "__file__", None) or "").resolve() != own.resolve():
        return _from_file(own, folder)  # one of another folder has that name too, and was there first
    return module


def _from_file(path: Path, folder: Path) -> ModuleType:
    path = path.resolve()
    stat = path.stat()
    with _first_on_path(folder), _first_on_path(path.parent):
        return _loaded(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _loaded(path: Path, modified: int, size: int) -> ModuleType:
    """A file as a module. ``modified`` and ``size``: what changes when it is written."""
    name = f"manyhands_functions_{path.stem}_{blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ImportError("it is no file of Python source")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses and pickling look there
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Look for modules in a folder first, and from then on last."""
    entry = str(folder)
    if entry in sys.path:
        place = sys.path.index(entry)
        sys.path.remove(entry)
    else:
        place = len(sys.path)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(place, entry)
