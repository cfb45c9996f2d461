"""Python functions of a person's own: found by what they are called, and called so that they hold up nobody, whatever they do.

A name is ``module:function``, or ``path/file.py:function``. Modules are looked for in a folder first, as they would be if a file there
were run. Folders stay on the path for as long as the program runs, since a function may import when it is called, but behind everything
else, so that a file of somebody's called ``email.py`` is not taken for the standard library's.

A call may never come back, and asyncio's own threads won't do for it: they are waited for when the program ends, and there is a fixed
number of them, so that a few calls that hang would hold up everybody. Here there are as many threads as there are slow calls at a time,
and nobody waits for them. Quick calls follow each other in one thread, because waking another one costs more than such a call itself.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from manyhands.core.errors import UserError
from manyhands.core.redaction import describe

Function = Callable[..., Any]
LAMBDA, CALLABLE = "lambda", "callable"
"""What stands for the module of a function without a name of its own; behind it is its place among what was given."""
NOT_IMPORTABLE = (LAMBDA, CALLABLE, "__main__")
MAX_IDLE = 64
"""Threads that are kept for further calls."""
PATIENCE = 0.005
"""Seconds that a call waits for a thread that is at work, before it gets one of its own."""
_Result = TypeVar("_Result")
STUCK = 1.0
"""Seconds after which a loop that does not answer is given up."""
_lock = threading.Lock()
_elsewhere: dict[str, Path] = {}
_aside: list[_LoopAside] = []
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, FreeThreads] = WeakKeyDictionary()


def load_function(
    written: str,
    folder: Path,
    refusal: Callable[[str], UserError],
    given: Mapping[str, Function] = MappingProxyType({}),
) -> Function:
    """The function that ``module:function`` or ``path/file.py:function`` names; names with dots reach into classes.

    ``folder``: where modules are looked for first, and where paths start; ``refusal``: makes the error of what is wrong; ``given``:
    functions of the program that calls this one, by what they are recorded as. Raises the error if there is no such function, or its
    module can't be imported. A file that has not changed is loaded once.
    """
    if written in given:
        return given[written]
    source, _, name = written.rpartition(":")
    if not source or not name:
        raise refusal(f"must be module:function or path/file.py:function, not {written!r}")
    if source in NOT_IMPORTABLE:
        raise refusal(
            f"{written} is a function of the program that made the run, which has to be the one that continues it"
        )
    found: Any = _module(source, folder.absolute(), refusal)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise refusal(f"{source} has no {name!r}")
    if not callable(found):
        raise refusal(f"{written} is not a function")
    function: Function = found
    return function


def with_arguments(written: str) -> tuple[str, tuple[str, ...] | None]:
    """The parts of ``module:function(name, name)``: the function, and what it gets one by one; None without them, for all in one object.

    Raises ValueError for what is written otherwise.
    """
    name, bracket, rest = written.partition("(")
    if not bracket:
        return written, None
    arguments = tuple(each.strip() for each in rest.removesuffix(")").split(","))
    if not rest.endswith(")") or not all(each.isidentifier() for each in arguments):
        raise ValueError(f"must be module:function(name, …), not {written!r}")
    return name.strip(), arguments


def module_of(written: str) -> str:
    """The module, or the path of the file, of what names a function, with or without the names of what it gets."""
    return with_arguments(written)[0].rpartition(":")[0]


def load_module(source: str, folder: Path, refusal: Callable[[str], UserError], *, fresh: bool = False) -> ModuleType:
    """A module, or the file whose path ends in ``.py``; the arguments are as of ``load_function``. ``fresh``: a file that was loaded before
    this process was forked is loaded again, so that connections which it keeps are not shared between processes."""
    return _module(source, folder.absolute(), refusal, os.getpid() if fresh else 0)


def are_elsewhere(places: Mapping[str, Path]) -> None:
    """Files that are named by their paths are elsewhere on this machine, by the paths that they would have."""
    _elsewhere.update(places)


def _module(source: str, folder: Path, refusal: Callable[[str], UserError], process: int = 0) -> ModuleType:
    importlib.invalidate_caches()  # the file may have been written just now
    path = folder / source
    path = _elsewhere.get(str(path), path)
    if source.endswith(".py") and not path.is_file():
        raise refusal(f"there is no file {path}")
    try:
        return _from_file(path, folder, process) if source.endswith(".py") else _imported(source, folder)
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


def _from_file(path: Path, folder: Path, process: int = 0) -> ModuleType:
    path = path.resolve()
    stat = path.stat()
    with _first_on_path(folder), _first_on_path(path.parent):
        return _loaded(path, stat.st_mtime_ns, stat.st_size, process)


@lru_cache(maxsize=256)
def _loaded(path: Path, modified: int, size: int, process: int) -> ModuleType:
    """A file as a module. ``modified`` and ``size``: what changes when it is written. ``process``: that it is loaded for, or 0 for any."""
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
        index = sys.path.index(entry)
        sys.path.remove(entry)
    else:
        index = len(sys.path)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(index, entry)


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]
    since: float
    """When it was requested, on the loop's clock."""

    def execute(self) -> tuple[Any, Exception | None]:
        """What comes of it: a result or an error."""
        try:
            return self.function(*self.arguments), None
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it is the caller's
            return None, tame(raised)

    def end(self, result: Any, error: Exception | None) -> None:
        """On the loop: pass on what came of it."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class FreeThreads:
    """Calls functions, each in a thread that does nothing else meanwhile. For one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._quick: set[_Thread] = set()
        """Threads at work that are not known to be held up by a slow call."""
        self._idle: list[_Thread] = []
        self._news: deque[Callable[[], None]] = deque()
        self._notified = False
        """Whether the loop knows that there is news."""
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """What the function returns or raises (RuntimeError in place of SystemExit and the like, which would end the loop). If the wait
        is cancelled, a call that has begun goes on."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Result] = loop.create_future()
        self._waiting.append(_Call(function, arguments, answer, loop.time()))
        if not self._quick:
            self._set_to_work()
        elif self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._look)
        return await answer

    def _set_to_work(self) -> None:
        thread = self._idle.pop() if self._idle else _Thread(self)
        self._quick.add(thread)
        thread.orders.put(True)

    def _look(self) -> None:
        """If calls have waited for too long, the threads at work are slow, and others have to help."""
        self._timer = None
        try:
            oldest = self._waiting[0]
        except IndexError:
            return
        loop = oldest.answer.get_loop()
        left = oldest.since + PATIENCE - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
            return
        self._quick.clear()
        for _ in range(len(self._waiting)):
            self._set_to_work()

    # In the threads

    def next_call(self) -> _Call | None:
        """A call that somebody waits for."""
        with suppress(IndexError):
            while True:
                call = self._waiting.popleft()
                if not call.answer.done():
                    return call
        return None

    def notify(self, loop: asyncio.AbstractEventLoop, news: Callable[[], None]) -> None:
        """Have the loop do something soon. It is woken once for all news since it last listened."""
        self._news.append(news)
        if not self._notified:
            self._notified = True
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._listen)

    # On the loop again

    def _listen(self) -> None:
        self._notified = False
        while self._news:
            self._news.popleft()()

    def has_time(self, thread: _Thread) -> None:
        """A thread found no call. (One that came in the same instant is not overlooked, because it is the loop that decides.)"""
        self._quick.discard(thread)
        if self._waiting:
            self._quick.add(thread)
            thread.orders.put(True)
        elif len(self._idle) < MAX_IDLE:
            self._idle.append(thread)
        else:
            thread.orders.put(False)


class _Thread:
    """Executes calls for as long as there are any, then waits for an order: to go on, or to end."""

    def __init__(self, owner: FreeThreads) -> None:
        self.orders: SimpleQueue[bool] = SimpleQueue()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        Thread(target=self._work, name="manyhands worker", daemon=True).start()

    def _work(self) -> None:
        owner = self._owner
        while self.orders.get():
            while (call := owner.next_call()) is not None:
                owner.notify(self._loop, partial(call.end, *call.execute()))
            owner.notify(self._loop, partial(owner.has_time, self))


def tame(error: BaseException) -> Exception:
    """The error, or another in its place if a task or future can't hold it without harm."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    other = RuntimeError(f"{type(error).__name__}: {error}")
    other.__traceback__ = error.__traceback__
    return other


class Overdue(TimeoutError):
    """A call took longer than it may; no TimeoutError of the function's own."""


async def call(function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
    """What a function returns, awaited if need be, or raises (RuntimeError in place of SystemExit and the like). ``seconds``: how long it
    may take. Raises Overdue if it takes longer.

    One that is not async runs in a thread (``FreeThreads``), an async one on an event loop that all of them share, in a thread of its own:
    so one that waits without ``await`` does not stop the program. Who stops waiting leaves it behind: it can't be ended, and does not
    keep this program from ending.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await _called(function, *arguments)
    except TimeoutError as error:
        if limit.expired():
            raise Overdue from error
        raise


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    if _is_async(function):
        return await _awaited(lambda: function(*arguments))
    value = await _free_threads().call(function, *arguments)
    return await _awaited(lambda: value) if inspect.isawaitable(value) else value


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class _LoopAside:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._probed: float | None = None
        """When it was probed, if it has not answered yet."""
        threading.Thread(target=self._loop.run_forever, name="functions", daemon=True).start()

    async def awaited(self, work: Callable[[], Awaitable[Any]]) -> Any:
        future = asyncio.run_coroutine_threadsafe(_tamed(work), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._probed is None:
                self._probed = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            raise

    def _answer(self) -> None:
        self._probed = None

    @property
    def stuck(self) -> bool:
        """Whether a function keeps it from doing anything."""
        return self._probed is not None and time.monotonic() - self._probed > STUCK


async def _tamed(work: Callable[[], Awaitable[Any]]) -> Any:
    task = asyncio.current_task()
    try:
        return await work()
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("it cancelled itself") from error
    except BaseException as error:  # what is no Exception would end the loop
        tamed = tame(error)
        if tamed is error:
            raise
        raise tamed from error


async def _awaited(work: Callable[[], Awaitable[Any]]) -> Any:
    with _lock:
        if not _aside or _aside[-1].stuck:
            _aside[:] = [_LoopAside()]
        aside = _aside[-1]
    return await aside.awaited(work)


def _free_threads() -> FreeThreads:
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        _threads[loop] = FreeThreads()
    return _threads[loop]
