"""What a crash leaves of the worlds of an evaluation's targets on other machines is found by its labels, wherever each target's are."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from manyhands.engine.journal.reader import run_id_of
from manyhands.engine.workspaces import WORKSPACES
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.sandboxes.remote.driver import FOLDER, RUN, WorldSpec
from manyhands.sandboxes.services.ssh.driver import SshDriver
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.settings import EvalSpec
from tests.support.ssh_servers import ssh_server


async def test_worlds_that_a_crash_left_are_swept_at_each_targets_own_machine(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ssh_server())
        places = [replace(server.target, folder=f"{server.worlds}/{name}") for name in ("one", "two")]
        about = {"provider": "agent", "model": "simulated", "toolsets": ["terminal"]}
        targets = [
            {
                **about,
                "name": f"t{number}",
                "sandbox": "ssh",
                "ssh_host": place.host,
                "ssh_user": place.user,
                "ssh_port": place.port,
                "ssh_config": str(place.config),
                "ssh_dir": place.folder,
            }
            for number, place in enumerate(places)
        ]
        execution = {"targets": [target["name"] for target in targets]}
        suite = {
            "targets": targets,
            "execution": execution,
            "tests": [{"id": "a", "input": "Work.", "assert": [{"type": "regex", "value": ".*"}]}],
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        options = EvalSpec.make({"eval_files": [str(tmp_path / "suite.yaml")], "data_dir": str(tmp_path / "data")})
        run = await open_eval(options, resume=False, notice=print, environ=os.environ)
        drivers = [SshDriver(place) for place in places]
        for driver in drivers:
            stack.push_async_callback(driver.close)
        run_id = run_id_of(run.folder)
        for number, driver in enumerate(drivers):
            folder = run.folder.resolve() / WORKSPACES / f"{number}-1"
            labels = {RUN: f"{run_id}.1.2.3", FOLDER: str(folder)}
            await driver.create(WorldSpec(f"{run_id}-{number}-1", labels, None, limits=SandboxLimits()))
        worlds = run.workload.worlds()
        assert worlds is not None
        stack.push_async_callback(worlds.close)
        assert (await worlds.kept() or "").startswith("2 worlds kept")
        lines = await worlds.sweep(lambda folder: False)
        assert lines == ["1 world of ended items or former attempts removed (ssh)"] * 2
        assert [await driver.listed({}) for driver in drivers] == [[], []]
