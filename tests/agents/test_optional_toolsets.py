"""Toolsets that nobody has unless they are asked for by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.agents.run_settings import own_folders, parent_run, standard_toolsets
from manyhands.agents.toolbox import RunTools, with_optional
from manyhands.core.errors import UserError
from manyhands.engine.contract import Item
from manyhands.testing.context import MemoryContext
from manyhands.tools.distributions import availability_notice, load_distributions_file
from manyhands.tools.toolsets import KNOWN_TOOLS, STANDARD, Toolset
from manyhands.workloads.csv_jobs.mcp.collab import COLLAB

JOB_TOOLS = [
    "cancel_agent_job",
    "export_agent_job_csv",
    "get_agent_job_status",
    "list_agent_jobs",
    "retry_agent_job",
    "run_agent_job",
    "spawn_agents_on_csv",
    "wait_agent_job",
]
NOT_LOADED = """
import sys
from manyhands.agents.toolbox import RunTools
import manyhands.workloads.trajectories.workload
tools = RunTools.recorded(None).tools(["all"])
assert not any(tool.name.endswith("agent_job") for tool in tools)
print([name for name in sys.modules if name.startswith("manyhands.workloads.csv_jobs")])
"""


def test_they_are_there_when_named() -> None:
    offer = RunTools.recorded(None)
    assert [tool.name for tool in offer.tools([COLLAB])] == JOB_TOOLS
    assert set(JOB_TOOLS) < {tool.name for tool in offer.tools(["terminal", COLLAB])}


def test_all_toolsets_are_without_them_and_nothing_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", NOT_LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_list_of_tools_with_statistics_is_without_them() -> None:
    assert not set(JOB_TOOLS) & set(KNOWN_TOOLS)


def test_a_distribution_and_an_own_toolset_can_name_one(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("toolsets:\n  team: {includes: [collab, todo]}\nmine: {toolsets: {collab: 50, team: 10}}\n")
    with pytest.raises(UserError, match="collab"):
        load_distributions_file(file, STANDARD)
    distributions, toolsets = load_distributions_file(file, with_optional(STANDARD))
    offer = RunTools.recorded(None, [toolsets["team"]])
    assert [tool.name for tool in offer.tools(["team"])] == sorted([*JOB_TOOLS, "todo"])
    assert availability_notice(distributions["mine"], offer.registry, offer.toolsets) == []


def test_a_toolset_of_that_name_that_is_there_already_stays() -> None:
    offer = RunTools.recorded({"tools": [], "groups": {COLLAB: ["todo"]}})
    assert [tool.name for tool in offer.tools([COLLAB])] == ["todo"]
    assert with_optional(offer.toolsets)[COLLAB] == offer.toolsets[COLLAB]


def test_own_toolsets_are_replaced_by_what_they_include() -> None:
    own = [Toolset("a", "", (), ("b", "terminal")), Toolset("b", "", ("todo",), ("file",)), Toolset("c", "", ("todo",))]
    assert standard_toolsets(["web", "a", "file", "c"], own) == ["web", "file", "terminal"]


def test_each_attempt_has_a_folder_for_what_it_starts(tmp_path: Path) -> None:
    parent = parent_run(MemoryContext(item=Item(7, "key", {})), tmp_path / "run", "id", {}, {})
    assert parent.jobs == tmp_path / "run" / "jobs" / "7-1"


def test_folders_of_a_run_and_of_those_it_comes_from() -> None:
    data = Path("/data")
    assert own_folders(data / "run") == (data / "run", data)
    inner = data / "run" / "jobs" / "3-1" / "job"
    assert own_folders(inner) == (inner, inner.parent, data / "run", data)
    assert own_folders(inner / "jobs" / "1-2" / "deeper")[-2:] == (data / "run", data)


@pytest.mark.parametrize(
    ("drawn", "offered"),
    [
        (["file"], ["file"]),
        (["web"], []),
        (["autoformalize"], ["file"]),
        (["sandbox", "browser"], ["sandbox"]),
        (["autoformalize", "file", "terminal"], ["file", "terminal"]),
        (["file_tools"], ["file_tools"]),
        (["both"], ["both", "terminal"]),
    ],
)
def test_what_is_left_of_toolsets_is_named(drawn: list[str], offered: list[str]) -> None:
    offer = RunTools.recorded(None, [Toolset("both", "Mine.", ("todo", "web_search"), ("terminal", "web"))])
    assert offer.with_tools(drawn) == offered
