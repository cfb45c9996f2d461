"""The sandbox is made when needed, and brought back after a crash or given up for a new attempt."""

from __future__ import annotations

import pytest

from manyhands.core.messages import Message
from manyhands.engine.attempt import NewAttemptNeeded
from manyhands.testing.agent_doubles import FakeBackend, FakeTool, Folder, ScriptedModel, assistant, hold, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal


def script() -> list[Message | str]:
    return [
        assistant(None, tool_call("terminal", {"n": 1}, "a"), tool_call("todo", {"n": 2}, "b")),
        assistant(None, tool_call("terminal", {"n": 3}, "c"), tool_call("terminal", {"n": 4}, "d")),
        "Done.",
    ]


def tools() -> list[FakeTool]:
    return [FakeTool("terminal", lambda arguments: arguments, changes_world=True), FakeTool("todo")]


async def undisturbed() -> tuple[MemoryJournal, FakeBackend]:
    context, backend = MemoryContext(), FakeBackend(Folder())
    await hold(ScriptedModel(script()), tools(), context=context, backend=backend)
    return context.journal, backend


async def test_steps_are_begun_before_calls_and_the_sandbox_is_closed() -> None:
    journal, backend = await undisturbed()
    assert [(step.kind, step.scope, step.seq) for step in journal.values()] == [
        ("model", "", 0),
        ("tools", "", 1),
        ("tool", "call-/0-1", 0),
        ("model", "", 2),
        ("tools", "", 3),
        ("model", "", 4),
    ]
    assert backend.log == ["begin /1", "terminal {'n': 1}", "begin /3", "terminal {'n': 3}", "terminal {'n': 4}"]
    assert [(sandbox.closed, sandbox.ends) for sandbox in backend.made] == [(1, 2)]


async def test_calls_that_only_look_are_no_step_of_the_world() -> None:
    calls = [("look", 1), ("terminal", 2), ("look", 3), ("terminal", 4)]
    turns = [assistant(None, tool_call(name, {"n": number}, str(number))) for name, number in calls]
    both = [FakeTool("terminal", changes_world=True), FakeTool("look", changes_world=True, reads_world=True)]
    journal: MemoryJournal = {}
    folder = Folder()
    context = MemoryContext(journal, crash=CrashPoint(8, "before_effect"))
    with pytest.raises(Crash):
        await hold(ScriptedModel(list(turns)), both, context=context, backend=FakeBackend(folder))
    assert folder.open_step == "/3"
    backend = FakeBackend(folder)
    await hold(ScriptedModel(["Done."]), both, context=MemoryContext(journal), backend=backend)
    assert backend.log == ["reattach True /3", "begin /7", "terminal {'n': 4}"]
    assert [sandbox.ends for sandbox in backend.made] == [1]


async def test_no_step_is_begun_where_no_tool_needs_the_sandbox() -> None:
    backend = FakeBackend(Folder())
    model = ScriptedModel([assistant(None, tool_call("todo", {})), "Done."])
    await hold(model, tools(), backend=backend)
    assert backend.log == []
    assert [sandbox.closed for sandbox in backend.made] == [1]


async def test_a_whole_replay_touches_nothing_outside_and_restores_tools() -> None:
    journal, _ = await undisturbed()
    model, backend, both = ScriptedModel(), FakeBackend(Folder()), tools()
    result = await hold(model, both, context=MemoryContext(journal), backend=backend)
    assert result.completed
    assert backend.made == []
    assert model.requests == []
    assert [tool.calls for tool in both] == [[], []]
    assert [[arguments["n"] for arguments, _ in tool.restored] for tool in both] == [[1, 3, 4], [2]]


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
@pytest.mark.parametrize("step", range(1, 7))
async def test_after_a_crash_anywhere_the_rest_is_performed(step: int, when: str) -> None:
    journal: MemoryJournal = {}
    folder, first = Folder(), ScriptedModel(script())
    crash = CrashPoint(step, when)  # type: ignore[arg-type]
    with pytest.raises((Crash, BaseExceptionGroup)):
        await hold(first, tools(), context=MemoryContext(journal, crash=crash), backend=FakeBackend(folder))
    recorded = len(journal)
    answered = sum(step.kind == "model" for step in journal.values())
    context, backend = MemoryContext(journal), FakeBackend(folder)
    result = await hold(ScriptedModel(script()[answered:]), tools(), context=context, backend=backend)
    reference, _ = await undisturbed()
    assert result.completed
    assert {place: step.output for place, step in journal.items()} == {
        place: step.output for place, step in reference.items()
    }
    assert context.performed == 6 - recorded
    if 2 < recorded < 5 and backend.log:
        assert backend.log[0].startswith("reattach")


async def test_an_open_step_without_output_is_undone() -> None:
    journal: MemoryJournal = {}
    folder = Folder()
    with pytest.raises(Crash):
        await hold(
            ScriptedModel(script()),
            tools(),
            context=MemoryContext(journal, crash=CrashPoint(5)),
            backend=FakeBackend(folder),
        )
    assert folder.open_step == "/3"
    backend = FakeBackend(folder)
    await hold(ScriptedModel(["Done."]), tools(), context=MemoryContext(journal), backend=backend)
    assert backend.log[:2] == ["reattach False /3", "begin /3"]


async def test_an_open_step_with_output_is_kept() -> None:
    journal: MemoryJournal = {}
    folder = Folder()
    with pytest.raises(Crash):
        await hold(
            ScriptedModel(script()),
            tools(),
            context=MemoryContext(journal, crash=CrashPoint(5, "before_effect")),
            backend=FakeBackend(folder),
        )
    backend = FakeBackend(folder)
    await hold(ScriptedModel(["Done."]), tools(), context=MemoryContext(journal), backend=backend)
    assert backend.log[:2] == ["reattach True /1", "begin /3"]


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        (Folder(open_step="/1", survives=False), "could not be brought back"),
        (Folder(open_step=None), "gone"),
        (Folder(open_step="/0"), "older"),
    ],
)
async def test_a_world_that_is_gone_needs_a_new_attempt(folder: Folder, reason: str) -> None:
    journal: MemoryJournal = {}
    context = MemoryContext(journal, crash=CrashPoint(5, "before_effect"))
    with pytest.raises(Crash):
        await hold(ScriptedModel(script()), tools(), context=context, backend=FakeBackend(Folder()))
    backend = FakeBackend(folder)
    with pytest.raises(NewAttemptNeeded, match=reason):
        await hold(ScriptedModel(["Done."]), tools(), context=MemoryContext(journal), backend=backend)
    assert [sandbox.closed for sandbox in backend.made] == [1]
