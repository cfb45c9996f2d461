"""Python interpreters of ours: how they are started, where they look for modules, what they keep, and how they end.

A folder that somebody merely stands in is not to be trusted: a file ``json.py`` there would run with the keys. Nothing is imported from
the current folder, nor from the folder of the script that was started, unless a person named it in PYTHONPATH. Only what every
interpreter has loaded at its start is imported here, so that this can be put right before anything else is looked for.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

PYTHONPATH = "PYTHONPATH"
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
"""The folder that holds this package."""
_INSTALLED = ("site-packages", "dist-packages")
_frozen = False
"""Whether objects of this process are known to be frozen."""


def python_command(module: str, *words: str) -> list[str]:
    """The command line of a module of ours. ``-P``: what it imports is not looked for in the current folder."""
    return [sys.executable, "-P", "-m", module, *words]


def module_path() -> str:
    """PYTHONPATH for a child that is to find what this interpreter finds, but for what lies about in the current folder."""
    return os.pathsep.join(_trusted(sys.path))


def own_module_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH for a child with such an environment, whose own children are a person's programs: what that person named, and this
    package where it is not installed."""
    named = _named(environ)
    return os.pathsep.join(named if _HOME in named or os.path.basename(_HOME) in _INSTALLED else [*named, _HOME])


def leave_current_folder() -> None:
    """Take the current folder out of where this process, and what it starts, looks for modules and programs."""
    sys.path[:] = _trusted(sys.path)
    if PYTHONPATH in os.environ:
        os.environ[PYTHONPATH] = os.pathsep.join(_named(os.environ))
    if "PATH" in os.environ:  # an empty entry is the current folder, too
        parts = os.environ["PATH"].split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(part for part in parts if part not in ("", ".", "./"))


def freeze_objects() -> None:
    """Have no search for garbage look at what there is so far. What was imported is none, and a fork that looks at it copies it."""
    global _frozen
    gc.freeze()
    _frozen = True


def are_objects_frozen() -> bool:
    """Whether ``freeze_objects`` or somebody else froze objects, which then must stay so. Where it was somebody else they are counted,
    one by one, which takes a tenth of a second for a million: once only."""
    global _frozen
    _frozen = _frozen or gc.get_freeze_count() > 0
    return _frozen


def end_process(code: object) -> NoReturn:
    """End this process as an interpreter does: first its threads, then what was to be done at exit, then what was printed. ``code``: as of
    ``sys.exit``. Only the memory is left to the system, as a whole: to free each object takes a tenth of the time of a small batch.
    """
    import atexit
    import threading
    from contextlib import suppress

    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # there is no public way to wait for threads as the interpreter does
        atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    flush_output()
    os._exit(code if isinstance(code, int) else int(code is not None))


def flush_output() -> None:
    """Write out what was printed, as far as somebody still reads it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # a stream that was closed at the start is None


def _trusted(path: list[str]) -> list[str]:
    untrusted = _untrusted()
    named = {_HOME, *_named(os.environ)}
    return [
        part
        for part in path
        if os.path.isabs(part) and (part in named or os.path.realpath(part) not in untrusted or _is_home(part))
    ]


def _untrusted() -> set[str]:
    """The folders that an interpreter puts on its path by itself: the current one, and that of the script."""
    found = set()
    try:
        found.add(os.path.realpath(os.getcwd()))
    except FileNotFoundError:
        pass  # it was removed: nothing can be found there
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        found.add(os.path.dirname(os.path.realpath(script)))
    return found


def _is_home(part: str) -> bool:
    return os.path.realpath(part) == _HOME


def _named(environ: Mapping[str, str]) -> list[str]:
    """The folders that a person named. An empty entry would be the current folder, and names nothing."""
    return [os.path.abspath(part) for part in environ.get(PYTHONPATH, "").split(os.pathsep) if part]
