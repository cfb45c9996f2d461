"""Agents of other packages: chosen by name, in place of the built-in one, and replayed like it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.agents.loop import run_agent
from manyhands.agents.registry import load_agent
from manyhands.core.errors import UserError
from manyhands.testing.agent_doubles import ScriptedModel, hold, texts
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from tests.support.batches import REASONED, ServerThread, run_command
from tests.support.own_agent import installed


@pytest.fixture(autouse=True)
def _package(tmp_path: Path) -> Iterator[None]:
    with installed(tmp_path, "broken = nowhere_at_all:agent", "number = math:pi"):
        yield


async def test_an_agent_of_another_package_converses() -> None:
    result = await hold(ScriptedModel(["Four.", "Still four."]), agent=load_agent("careful"))
    assert [message["role"] for message in result.messages] == ["user", "assistant", "user", "assistant"]
    assert texts(result.messages, "assistant") == ["Four.", "Still four."]


async def test_it_goes_on_after_a_crash_from_its_last_step() -> None:
    context = MemoryContext(crash=CrashPoint(2))
    with pytest.raises(Crash):
        await hold(ScriptedModel(["Four.", "lost"]), agent=load_agent("careful"), context=context)
    model = ScriptedModel(["Still four."])
    result = await hold(model, agent=load_agent("careful"), context=MemoryContext(context.journal))
    assert (len(model.requests), texts(result.messages, "assistant")) == (1, ["Four.", "Still four."])


async def test_a_follow_up_of_the_workload_comes_behind_its_own() -> None:
    asked: list[int] = []

    def follow_up(number: int) -> str | None:
        asked.append(number)
        return "Report." if number == 0 else None

    result = await hold(ScriptedModel(default="Four."), agent=load_agent("careful"), follow_up=follow_up)
    assert (asked, texts(result.messages, "user")[2:]) == ([0, 1], ["Report."])


def test_without_a_name_it_is_the_built_in_one() -> None:
    assert load_agent(None) is run_agent


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "carefull",
            r"no agent is called 'carefull'; did you mean careful\?; those of installed packages: broken, c",
        ),
        ("broken", r"the agent plug-in 'broken' \(nowhere_at_all:agent\) can't be used: ModuleNotFoundError"),
        ("number", r"the agent plug-in 'number' \(math:pi\) is no function"),
    ],
)
def test_one_that_cannot_be_used_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UserError, match=rf"^{says}[^\n]*$"):
        load_agent(name)


def test_a_target_of_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("tests: [{id: a, input: x, assert: [{type: equals, value: Done.}]}]\n")
    with ServerThread([REASONED]) as server:
        target = f"provider: agent, base_url: '{server.base_url}', model: m"
        (tmp_path / "targets.yaml").write_text(
            f"targets: {{a: {{{target}, agent: careful}}, b: {{{target}, agent: hasty}}}}\n"
        )
        ran = run_command(tmp_path, "eval", "e.yaml", "--run_name=a", "--target=a", "--quiet")
        assert (ran.code, len(server.requests)) == (0, 2), ran
        refused = run_command(tmp_path, "eval", "e.yaml", "--run_name=b", "--target=b", "--quiet")
    assert (refused.code, "targets.yaml" in refused.err, "no agent is called 'hasty'" in refused.err) == (2, True, True)
