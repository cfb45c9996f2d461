"""The contract suite over real engines. Slow are those that differ little from what every run of the tests has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import pytest

from manyhands.testing.sandbox_contract import SandboxContract
from tests.support.engines import Engine

CAPABILITIES = 0x404FB
"""CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE SYS_CHROOT, as bits."""


class _EngineContract(SandboxContract):
    root_is_own = True
    host_workspace = False
    home_is_workspace = False
    user = 0
    capabilities = CAPABILITIES
    fixture: str
    bare = False

    @pytest.fixture(autouse=True)
    def _engine(self, request: pytest.FixtureRequest) -> None:
        engine: Engine = request.getfixturevalue(self.fixture)
        own: Any = type(self)
        own.image = engine.bare if self.bare else engine.full
        own.make_backend = (
            "from manyhands.sandboxes.containers.driver import ContainerDriver\n"
            "from manyhands.sandboxes.remote.backend import RemoteBackend\n"
            f"backend = RemoteBackend(ContainerDriver({engine.kind!r}, {engine.host!r}))"
        )


def _quick(*names: str) -> Callable[[type[_EngineContract]], type[_EngineContract]]:
    """All tests but these are slow: what is the same for every driver is tested often enough over the fake one."""

    def decorate(suite: type[_EngineContract]) -> type[_EngineContract]:
        for name in dir(suite):
            if name.startswith("test_") and name.removeprefix("test_") not in names:
                test: FunctionType = getattr(suite, name)
                own = FunctionType(test.__code__, test.__globals__, name, test.__defaults__, test.__closure__)
                own.__dict__.update({"pytestmark": list(getattr(test, "pytestmark", ()))})
                setattr(suite, name, pytest.mark.slow(own))
        return suite

    return decorate


@_quick(
    "run_gives_output_and_exit_code",
    "run_passes_input_and_arguments_untouched",
    "run_time_limit_ends_the_whole_group",
    "many_at_once",
    "shell_keeps_its_state",
    "shell_time_limit_costs_only_the_command",
    "shell_is_binary_safe",
    "background_process",
    "files",
    "environment_is_scrubbed",
    "host_files_are_out_of_reach",
    "no_rights_and_no_other_processes",
    "network",
    "memory_limit",
    "process_limit",
    "file_size_limit",
    "hidden_folders_of_the_project",
    "killed_owner_leaves_nothing_after_a_sweep",
    "step_cut_off_is_undone",
    "recorded_step_stands",
    "world_too_large_to_copy",
    "frozen_and_thawed_all_goes_on",
)
class TestDocker(_EngineContract):
    fixture = "docker_engine"


@_quick(
    "run_time_limit_ends_the_whole_group",
    "shell_keeps_its_state",
    "files",
    "no_rights_and_no_other_processes",
    "memory_limit",
    "hidden_folders_of_the_project",
    "killed_owner_leaves_nothing_after_a_sweep",
    "step_cut_off_is_undone",
)
class TestPodman(_EngineContract):
    fixture = "podman_engine"


@pytest.mark.slow
class TestRootlessPodman(_EngineContract):
    fixture = "rootless_podman_engine"
    limits_memory = False
    limits_processes = False

    @pytest.fixture
    def tmp_path(self) -> Iterator[Path]:
        """A folder that the engine's user can see, for projects."""
        with TemporaryDirectory(prefix="manyhands-shown-") as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)


class _WithoutBash(_EngineContract):
    """With a plain ``sh``, directory and exported variables are the whole state, see also ``test_former_defects.py``."""

    bare = True
    has_bash = False
    has_python = False


@pytest.mark.slow
class TestDockerWithoutBash(_WithoutBash):
    fixture = "docker_engine"


@pytest.mark.slow
class TestPodmanWithoutBash(_WithoutBash):
    fixture = "podman_engine"
