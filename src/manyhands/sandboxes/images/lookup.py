"""Looking up many images: each once, several at a time, within time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field

from manyhands.core.errors import ItemError
from manyhands.sandboxes.images.store import Image, ImageStore

AT_ONCE = 8
SECONDS = 60.0
"""For one image."""
GIVE_UP_AFTER = 3
"""Failed look-ups after which no more are begun, as long as none has succeeded: the store itself is to blame then."""


@dataclass(slots=True)
class LookedUp:
    """What names mean."""

    found: dict[str, Image] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """Those of images that do not exist."""
    problems: dict[str, str] = field(default_factory=dict)
    """Those that could not be looked up, and why."""


async def look_up(
    store: ImageStore, references: Iterable[str], *, newest: bool = False, pulled: bool = False
) -> LookedUp:
    """Look up each of these names. ``newest``, ``pulled`` as of ``ImageStore.find``."""
    names = list(dict.fromkeys(references))
    answers: dict[str, Image | str | None] = {}
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            failed = sum(isinstance(answer, str) for answer in answers.values()) if len(answers) <= AT_ONCE else 0
            if failed >= GIVE_UP_AFTER and failed == len(answers):
                return
            answers[name] = await _answer(store.find(name, newest=newest, pulled=pulled))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(names))):
            group.create_task(work())
    result = LookedUp()
    for name in names:
        answer = answers.get(name, "")
        if isinstance(answer, Image):
            result.found[name] = answer
        elif answer is None:
            result.missing.append(name)
        elif answer:
            result.problems[name] = answer
    return result


async def _answer(asked: Awaitable[Image | None]) -> Image | str | None:
    try:
        async with asyncio.timeout(SECONDS):
            return await asked
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except ItemError as error:
        return str(error.message or error)
