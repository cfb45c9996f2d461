"""Every distribution of both tables with all its tools: the simulated model, a local web, and stand-ins for services."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.toolbox import RunTools, outside_record
from manyhands.tools.distributions import STANDARD_DISTRIBUTIONS, availability_notice
from manyhands.tools.services.registry import choose_services
from manyhands.workloads.trajectories.spec import BatchSpec
from tests.support.commands import run
from tests.support.web_checks import threaded
from tests.support.web_fakes import FakeServices, LocalSite, page

SERVICES = {
    "web_search": "searxng",
    "vision_model": "simulated",
    "image_provider": "simulated",
    "moa_models": "simulated,simulated/b",
    "web_allow_private": "true",
}
ENVIRON = {"SEARXNG_URL": "http://127.0.0.1:9"}
needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")


@needs_chromium
@pytest.mark.parametrize("name", STANDARD_DISTRIBUTIONS)
async def test_no_distribution_lacks_a_tool(name: str) -> None:
    options = BatchSpec.make({"dataset_file": "d", "batch_size": 1, "run_name": "r", "distribution": name, **SERVICES})
    tools = RunTools.recorded(await outside_record(options, choose_services(options, ENVIRON)))
    assert availability_notice(STANDARD_DISTRIBUTIONS[name], tools.registry, tools.toolsets) == []


def _used(folder: Path, name: str, prompts: int) -> Counter[str]:
    """How often each tool was called in a batch of that distribution. Asserts that every prompt is completed."""
    with (
        threaded(LocalSite({"/mill": page("The mill", "Corn since 1712.")})) as site,
        threaded(FakeServices([("The mill", f"{site.url}/mill", "Corn.")], {})) as fakes,
    ):
        rows = [
            f"Look at {site.url}/mill and note what is there, number {number}. [simulate: tools=9]"
            for number in range(prompts)
        ]
        (folder / "d.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
        words = [f"--{option}={value}" for option, value in SERVICES.items()]
        ended = run(
            *(
                "batch",
                "--dataset_file=d.jsonl",
                "--batch_size=5",
                "--run_name=r",
                "--model=simulated",
                "--max_turns=12",
            ),
            *(f"--distribution={name}", "--num_workers=2", "--keep_unreasoned", "--quiet", *words),
            folder=folder,
            environ={**os.environ, **fakes.environ("searxng")},
        )
    assert ended.code == 0, ended.err
    used: Counter[str] = Counter()
    lines: list[dict[str, Any]] = [json.loads(line) for line in (folder / "data/r/trajectories.jsonl").open()]
    assert len(lines) == prompts
    for line in lines:
        used.update({tool: counts["count"] for tool, counts in line["tool_stats"].items()})
    return +used


@needs_chromium
def test_the_default_distribution_uses_tools_of_every_toolset(tmp_path: Path) -> None:
    used = _used(tmp_path, "default", 4)
    assert {"web_search", "browser_navigate"} <= set(used)
    assert set(used) & {"terminal", "write_file", "vision_analyze", "image_generate"}


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("name", STANDARD_DISTRIBUTIONS)
def test_every_distribution_runs_whole(tmp_path: Path, name: str) -> None:
    assert _used(tmp_path, name, 3)
