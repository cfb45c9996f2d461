"""An agent that is a Python class, in this process: the methods of the GoodAI LTM Benchmark's agents.

``reply(user_message, agent_response=None)`` is needed; ``reset()``, ``save()``, ``load()``, ``forward_time(seconds)``,
``observe(message, reply)`` and ``close()`` are called where the class has them. Methods may be coroutines. What the class adds to its
``costs_usd`` is counted. Classes written for that benchmark have a ``name``, which tells one agent from another, and a ``token_len``; both
are often properties or methods that need an object.
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.io.files import folder_name, written_aside
from manyhands.processes.python_functions import Overdue, call, load_module
from manyhands.workloads.memory.agents.choice import AgentChoice
from manyhands.workloads.memory.agents.external_agent import REFUSED
from manyhands.workloads.memory.conversation.tokens import TokenCounter

KEPT = "messages.json"
"""The file in the agent's folder that says how many messages its saved state includes."""


def class_of(target: str, folder: Path | None = None) -> Callable[..., Any]:
    """The class that ``MODULE:CLASS`` (on Python's path, which the current folder is not) or ``FILE.py:CLASS`` names. ``folder``: where
    paths start, by default in the current one. Raises UserError."""
    where, _, name = target.rpartition(":")
    try:
        if where.endswith(".py"):
            module = load_module(where, folder or Path.cwd(), lambda problem: UserError(f"--agent_name: {problem}"))
        else:
            module = import_module(where)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        hint = f"; a file is named by its path: python:{where}.py:{name}" if Path(f"{where}.py").is_file() else ""
        raise UserError(f"--agent_name: {where} can't be loaded: {error}{hint}") from error
    except Exception as error:
        raise UserError(f"--agent_name: {where} can't be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise UserError(f"--agent_name: {where} has no class {name}")
    made: Callable[..., Any] = found
    return made


class ClassConnection:
    """The way to an agent that is an object of a Python class."""

    def __init__(self, make: Callable[[], Any], *, folder: Path, seconds: float) -> None:
        """``make``: gives the object; ``folder``: its ``save_path``; ``seconds``: for one call of a method."""
        self._make = make
        self._folder = folder
        self._seconds = seconds
        self._agent: Any = None
        self._now: float | None = None

    async def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._agent = await self._called(self._make)
        if not callable(getattr(self._agent, "reply", None)):
            raise ItemError(Cause.TARGET_ERROR, f"{type(self._agent).__name__} is no agent: it has no method reply")

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._forward(float(message["now"]), jump=message["type"] == "forward_time")
        match message["type"]:
            case "message":
                return await self._reply(message)
            case "load":
                return await self._load()
            case "exchange":
                await self._observe(message)
            case "reset":
                return await self._reset()
        return {}

    async def _reset(self) -> Mapping[str, Any]:
        if not callable(getattr(self._agent, "reset", None)):
            return {REFUSED: "it has no method reset"}
        try:
            await self._called(self._agent.reset)
        except ItemError as error:
            if isinstance(error.__cause__, NotImplementedError):
                return {REFUSED: "its reset raised NotImplementedError"}
            raise
        return {}

    async def close(self) -> None:
        if self._agent is not None:
            with suppress(ItemError):
                await self._optional("close")

    async def _reply(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        before = self._costs()
        expected = [message["expected_reply"]] if self._takes_reply else []
        text = await self._called(self._agent.reply, message["text"], *expected)
        if not isinstance(text, str):
            raise ItemError(Cause.TARGET_ERROR, f"the agent's reply is no text but {type(text).__name__}")
        if hasattr(self._agent, "save"):
            await self._called(self._agent.save)
            with written_aside(self._folder / KEPT) as file:
                file.write(json.dumps({"messages": message["number"]}))
        return {"text": text, "cost_usd": max(0.0, self._costs() - before)}

    async def _load(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            number = int(json.loads((self._folder / KEPT).read_text())["messages"])
            if hasattr(self._agent, "load"):
                await self._called(self._agent.load)
                return {"number": number}
        return {"number": 0}

    async def _observe(self, message: Mapping[str, Any]) -> None:
        if hasattr(self._agent, "observe"):
            await self._called(self._agent.observe, message["text"], message["reply"])
            return
        # An agent that takes a reply for its own (agent_response) remembers it by that.
        if not self._takes_reply:
            raise ItemError(
                Cause.TARGET_ERROR, "the agent can't go on after a break: it has neither save and load nor observe"
            )
        await self._called(self._agent.reply, message["text"], message["reply"])

    @property
    def _takes_reply(self) -> bool:
        parameters = inspect.signature(self._agent.reply).parameters.values()
        return len(parameters) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters)

    async def _forward(self, now: float, *, jump: bool) -> None:
        if jump and self._now is not None and now > self._now and hasattr(self._agent, "forward_time"):
            await self._called(self._agent.forward_time, now - self._now)
        self._now = now

    async def _optional(self, name: str) -> None:
        if hasattr(self._agent, name):
            await self._called(getattr(self._agent, name))

    async def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it aside, so that it holds up nothing else. Raises ItemError for whatever it raises, and if it takes longer than it may."""
        with _as_item_errors(self._seconds):
            return await call(function, *arguments, seconds=self._seconds)

    def _costs(self) -> float:
        value = getattr(self._agent, "costs_usd", 0.0)
        return float(value) if isinstance(value, (int, float)) else 0.0


_MAX_COUNTED = 1 << 14
"""Texts whose length is kept: most are counted several times."""


class OwnClass:
    """A class that was chosen as an agent: what it is called, takes and counts."""

    def __init__(self, choice: AgentChoice, seconds: float, folder: Path | None = None) -> None:
        """``seconds``: for one call of what is its own; ``folder``: as of ``class_of``. Raises UserError if there is no such class."""
        self._class = class_of(choice.target, folder)
        self._seconds = seconds
        self._choice = choice
        self._takes = _parameters(self._class)

    def check(self, *, isolated: bool) -> None:
        """Raises UserError for arguments that the class doesn't take, and for one that can't forget where it has to."""
        given = {**dict.fromkeys(name for name in OFFERED if name in self._takes), **self._choice.arguments}
        try:
            if self._takes:
                inspect.signature(self._class).bind(**given)
        except TypeError as error:
            own = ", ".join(self._takes) or "nothing"
            raise UserError(
                f"--agent_name: {self._choice.id}: {error}; {self._choice.class_name} takes {own}"
            ) from None
        if isolated and isinstance(self._class, type) and not callable(getattr(self._class, "reset", None)):
            raise UserError(
                f"--isolated: {self._choice.class_name} has no method reset, so that it can't forget one test before the next"
            )

    def maker(self, offered: Mapping[str, Any]) -> Callable[[], Any]:
        """Makes the object, once, giving it those of the usual arguments that it takes, and those that were chosen."""
        found: list[Any] = []

        def make() -> Any:
            if not found:
                Path(offered["save_path"]).mkdir(parents=True, exist_ok=True)
                usual = {name: value for name, value in offered.items() if name in self._takes}
                agent = self._class(**{**usual, **self._choice.arguments})
                for name in ("run_name", "save_path"):
                    if not hasattr(agent, name):
                        setattr(agent, name, offered[name])
                found.append(agent)
            return found[0]

        return make

    def name(self, limit: int | None, run_name: str) -> str:
        """What results call it: its own name or the class's, with what it was made with if that does not say it. Raises UserError if it
        can't be made."""
        name = self._own_name(limit, run_name) or self._choice.class_name
        said = []
        if limit is not None and "max_prompt_size" in self._takes and "max_prompt_size" not in self._choice.arguments:
            said += [] if _holds(name, limit) else [str(limit)]
        said += [f"{key}={value}" for key, value in self._choice.arguments.items() if not _holds(name, value)]
        return folder_name(" - ".join([name, *said]))

    def _own_name(self, limit: int | None, run_name: str) -> str | None:
        if not self._sets("name"):
            value = getattr(self._class, "name", None)
            return value.strip() if isinstance(value, str) and value.strip() else None
        with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
            offered = {
                "run_name": run_name,
                "save_path": Path(folder),
                "max_prompt_size": limit,
                "max_message_size": 4096,
            }
            try:
                value = _in_time(lambda: getattr(self.maker(offered)(), "name", None), self._seconds)
                value = _in_time(value, self._seconds) if inspect.ismethod(value) else value
            except Overdue:
                raise UserError(
                    f"--agent_name: {self._choice.id} took longer than {self._seconds:g} seconds to be made and to say its name "
                    "(--message_timeout)"
                ) from None
            except Exception as error:
                raise UserError(
                    f"--agent_name: {self._choice.id} can't be made: {type(error).__name__}: {' '.join(str(error).split())}"
                ) from error
        return value.strip() if isinstance(value, str) and value.strip() else None

    def _sets(self, name: str) -> bool:
        """Whether it takes an object to know an attribute."""
        if not isinstance(self._class, type):
            return False
        if not isinstance(inspect.getattr_static(self._class, name, ""), str):
            return True
        for kind in self._class.__mro__[:-1]:
            methods = (kind.__dict__.get(each) for each in ("__init__", "__post_init__"))
            if any(name in method.__code__.co_names for method in methods if inspect.isfunction(method)):
                return True
            if name in inspect.get_annotations(kind):
                return True
        return False

    @property
    def declared_message_size(self) -> int | None:
        """The number that the class itself has as ``max_message_size``, None if it has none: what earlier versions went by."""
        value = getattr(self._class, "max_message_size", None)
        return value if isinstance(value, int) else None

    def message_size(self, make: Callable[[], Any]) -> int | None:
        """Maximum tokens of a message that it takes, None if it doesn't say. Raises ItemError if it can't be made."""
        value = getattr(self._class, "max_message_size", None)
        if value is not None and not isinstance(value, int):
            with _as_item_errors(self._seconds):
                value = _in_time(lambda: getattr(make(), "max_message_size", None), self._seconds)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def counter(self, make: Callable[[], Any]) -> TokenCounter | None:
        """How it counts tokens, None if it doesn't. Its counts must be the same whenever it is called."""
        if not callable(getattr(self._class, "token_len", None)):
            return None

        @lru_cache(maxsize=_MAX_COUNTED)
        def count(text: str) -> int:
            with _as_item_errors(self._seconds):
                found = _in_time(lambda: make().token_len(text), self._seconds)
            if isinstance(found, bool) or not isinstance(found, int) or found < 0:
                raise ItemError(
                    Cause.INVALID_INPUT, f"the agent's token_len gave {found!r:.60}, which is no number of tokens"
                )
            return found

        return TokenCounter(f"{self._choice.class_name}.token_len", count)


OFFERED = ("run_name", "save_path", "max_prompt_size", "max_message_size")
"""The usual arguments, which a class gets if it takes them."""


def _parameters(made: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What it takes; of a class that passes on whatever it is given (``**kwargs``), also what the class that it is made from takes."""
    found: dict[str, inspect.Parameter] = {}
    for each in made.__mro__[:-1] if isinstance(made, type) else (made,):
        if isinstance(each, type) and each is not made and "__init__" not in each.__dict__:
            continue
        try:
            more = inspect.signature(made if each is made else each.__dict__["__init__"]).parameters
        except (TypeError, ValueError):
            break
        known = {name: value for name, value in more.items() if name in OFFERED and name not in found}
        found = {**found, **known} if found else dict(more)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in more.values()):
            break
    return found


@contextmanager
def _as_item_errors(seconds: float) -> Iterator[None]:
    """Raises ItemError for whatever the agent's own code raises, and if it takes longer than ``seconds``."""
    try:
        yield
    except ItemError:
        raise
    except Overdue:
        raise ItemError(Cause.TARGET_ERROR, f"the agent took longer than {seconds:g} seconds") from None
    except Exception as error:
        raise ItemError(Cause.TARGET_ERROR, f"the agent raised {type(error).__name__}: {error}") from error


def _in_time(function: Callable[[], Any], seconds: float) -> Any:
    """Call a function in a thread, for which nobody waits longer than that, not even at the end. Raises what it raises, and Overdue."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001 - it is the caller's
            result.set_exception(error)
        except BaseException:  # noqa: BLE001 - it may not end this program
            result.set_exception(RuntimeError("it called sys.exit"))

    Thread(target=run, daemon=True).start()
    if not wait([result], seconds).done:
        raise Overdue
    return result.result()


def _holds(name: str, value: Any) -> bool:
    return re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", name) is not None
