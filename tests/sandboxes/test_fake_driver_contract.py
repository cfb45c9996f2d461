"""A sandbox made of a driver keeps the contract, over a service on this machine."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from manyhands.testing.fake_worlds.driver import fake_service
from manyhands.testing.sandbox_contract import SandboxContract


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[str]:
    with fake_service() as address:
        yield address


class TestFakeDriver(SandboxContract):
    make_backend = """
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.testing.fake_worlds.driver import FakeDriver
backend = RemoteBackend(FakeDriver())
"""
    root_is_own = True
    host_workspace = False
    home_is_workspace = False
    user = 0
    capabilities = 0x4FB
    finds_hidden = True
    ends_trees = True
    other_user = ("user", 1000)
    quick = (
        "test_background_process",
        "test_cancelling_a_shell_command",
        "test_close_leaves_nothing",
        "test_cwd_that_leads_out",
        "test_environment_is_scrubbed",
        "test_files",
        "test_files_that_cannot_be_read_or_written",
        "test_frozen_and_thawed_all_goes_on",
        "test_many_at_once",
        "test_network",
        "test_no_rights_and_no_other_processes",
        "test_nothing_of_the_image_is_hidden",
        "test_output_that_is_not_text",
        "test_project_is_read_and_started_in",
        "test_put_and_get",
        "test_recorded_step_stands",
        "test_run_as_another_user",
        "test_run_does_not_wait_for_what_it_leaves_behind",
        "test_run_keeps_head_and_tail",
        "test_run_time_limit_ends_the_whole_group",
        "test_shell_keeps_its_state",
        "test_shell_outlives_syntax_errors_that_nothing_tells_of",
        "test_shell_reports_syntax_errors",
        "test_shell_survives_exit",
        "test_shell_survives_whatever_replaces_or_kills_it",
        "test_shells_run_beside_each_other",
        "test_tree_that_outlives_its_time_limit",
    )
    image_files: ClassVar[Mapping[str, str]] = {"/root//.bashrc": "in_bashrc=yes\n"}
    image_path = "/opt/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    image_variables: ClassVar[Mapping[str, str]] = {"FROM_IMAGE": "yes", "HOME": "/root"}
