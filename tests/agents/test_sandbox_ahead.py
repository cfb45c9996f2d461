"""Where conversations need their sandbox, the next one's starts while the model is asked; one that nobody needed leaves nothing."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from manyhands.agents.worlds.furnishing import Furnishing
from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.models.protocol import ChatRequest
from manyhands.processes.strays import MARK, kill_marked
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.testing.agent_doubles import FakeBackend, FakeTool, Folder, ScriptedModel, assistant, hold, tool_call
from manyhands.testing.context import MemoryContext

TOOLS = [FakeTool("terminal", changes_world=True)]


class Asked:
    """Replies that note how many sandboxes there were when the model was asked."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.made: list[int] = []

    def model(self, *answers: Message | str) -> ScriptedModel:
        return ScriptedModel([partial(self.reply, answer) for answer in answers])

    async def reply(self, answer: Message | str, request: ChatRequest) -> Message | str:
        for _ in range(3):
            await asyncio.sleep(0)
        self.made.append(len(self.backend.made))
        return answer


class Failing(FakeBackend):
    """Makes one sandbox and no further one."""

    async def create(self, request: SandboxRequest) -> Sandbox:
        if self.made:
            raise ItemError(Cause.SANDBOX_LOST, "no more")
        return await super().create(request)


def call() -> Message:
    return assistant(None, tool_call("terminal", {}))


async def test_it_starts_with_the_first_call_also_of_the_first_conversation() -> None:
    asked = Asked(backend := FakeBackend(Folder()))
    await hold(asked.model(call(), "Done."), TOOLS, backend=backend)
    assert asked.made == [1, 1]
    backend.folder.open_step = None
    await hold(asked.model(call(), "Done."), TOOLS, backend=backend)
    assert asked.made == [1, 1, 2, 2]
    assert [sandbox.closed for sandbox in backend.made] == [1, 1]


async def test_it_is_closed_where_nobody_needs_it_and_not_started_again() -> None:
    asked = Asked(backend := FakeBackend(Folder()))
    await hold(asked.model(call(), "Done."), TOOLS, backend=backend)
    backend.folder.open_step = None
    await hold(asked.model("Done."), TOOLS, backend=backend)
    assert [sandbox.closed for sandbox in backend.made] == [1, 1]
    await hold(asked.model("Done."), TOOLS, backend=backend)
    assert asked.made == [1, 1, 2, 2]


async def test_of_conversations_that_begin_together_only_the_first_has_it_before_one_is_needed(tmp_path: Path) -> None:
    backend = FakeBackend(Folder())
    async with AsyncExitStack() as stack:
        worlds = [
            await stack.enter_async_context(
                World(MemoryContext(), backend, partial(SandboxRequest, tmp_path / f"{number}", "run"))
            )
            for number in range(4)
        ]
        for world in worlds[:3]:
            world.expect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(backend.made) == 1
        for world in worlds[:3]:
            await world.sandbox()
        worlds[3].expect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(backend.made) == 4


async def test_neither_a_replay_nor_a_conversation_without_such_tools_starts_one() -> None:
    backend, context = FakeBackend(Folder()), MemoryContext()
    await hold(ScriptedModel([call(), "Done."]), TOOLS, context=context, backend=backend)
    await hold(ScriptedModel(), TOOLS, context=MemoryContext(context.journal), backend=backend)
    await hold(Asked(backend).model("Done."), [FakeTool("todo")], backend=backend)
    assert len(backend.made) == 1


async def test_a_failure_is_that_of_whoever_needs_it() -> None:
    asked = Asked(backend := Failing(Folder()))
    await hold(asked.model(call(), "Done."), TOOLS, backend=backend)
    with pytest.raises(ItemError) as caught:
        await hold(asked.model(call(), "Done."), TOOLS, backend=backend)
    assert caught.value.cause is Cause.SANDBOX_LOST
    await hold(ScriptedModel([call(), "Done."]), TOOLS, backend=(good := FakeBackend(Folder())))
    assert len(good.made) == 1


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.5])
async def test_nothing_is_left_of_a_real_one(tmp_path: Path, seconds: float) -> None:
    run_id, backend = f"run-{secrets.token_hex(8)}", LocalBackend()
    for name in ("needed", "unneeded"):
        async with World(MemoryContext(), backend, partial(SandboxRequest, tmp_path / name, run_id)) as world:
            world.expect()
            if name == "needed":
                await (await world.sandbox()).shell("true", timeout=20)
            else:
                await asyncio.sleep(seconds)
    assert [path.name for path in tmp_path.iterdir()] == ["needed"]
    assert await asyncio.to_thread(kill_marked, MARK, run_id) == 0


async def test_it_is_made_before_the_first_call_once_for_each_place_where_commands_start() -> None:
    backend = FakeBackend(Folder())

    async def prepared(cwd: str | None, *, used: bool = True) -> int:
        furnished, context = Furnishing(cwd=cwd).for_item(ItemWorld()), MemoryContext()
        async with World(context, backend, lambda: furnished.request(Path("w"), "run")) as world:
            await furnished.prepare(context, world, used=used)
        return len(backend.made)

    assert await prepared("/app", used=False) == 0
    assert await prepared(None) == 0
    assert [await prepared("/app"), await prepared("/app"), await prepared("/other")] == [1, 1, 2]
