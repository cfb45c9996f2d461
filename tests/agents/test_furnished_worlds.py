"""What items' worlds are given before the first turn, and what is collected from them: in real sandboxes, with crashes at every step."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from manyhands.agents.worlds.furnishing import Furnished, Furnishing
from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.recorded_commands import CommandRecord
from manyhands.agents.worlds.row_fields import checked_file
from manyhands.agents.worlds.templates import check_apart, read_template
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import SandboxBackend, SandboxLimits
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.selection import choose_backend
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.testing.fake_worlds.driver import FakeDriver, fake_service

KINDS = pytest.mark.parametrize("kind", ["local", "bubblewrap"])


def backend_of(kind: str) -> SandboxBackend:
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    return choose_backend(kind)


def template_in(folder: Path) -> tuple[Path, str]:
    template = folder / "template"
    (template / "src").mkdir(parents=True, exist_ok=True)
    (template / "src" / "app.py").write_text("print('app')\n")
    (template / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (template / "run.sh").chmod(0o755)
    if not (template / "link").is_symlink():
        (template / "link").symlink_to("src/app.py")
        (template / "outside").symlink_to(folder)
        os.mkfifo(template / "pipe")
    found = read_template(template)
    return found.folder, found.digest


async def through(context: MemoryContext, backend: SandboxBackend, furnished: Furnished) -> CommandRecord | None:
    """An item without a conversation."""
    async with World(context, backend, lambda: furnished.request(context.workspace, "mark")) as world:
        await furnished.prepare(context, world)
        return await furnished.collect(context, world)


@KINDS
async def test_an_item_gets_template_files_setup_and_environment(kind: str, tmp_path: Path) -> None:
    run = Furnishing(
        sandbox=kind,
        template=template_in(tmp_path),
        setup='./run.sh >"$OUT"; echo {base} >>"$OUT"',
        collect="cat out data/row.txt link second; ls -l run.sh | cut -c1-10; [ -L outside ] && [ ! -e pipe ] && echo links; "
        'echo hidden >&2; printf "%s" "$ROW"',
        environment={"OUT": "out"},
    )
    hostile = "x'; touch broken; echo \""
    item = ItemWorld(
        files={"data/row.txt": "of the row\n"}, setup="echo two >second", environment={"ROW": "r", "OUT": "no"}
    )
    record = await through(
        MemoryContext(workspace=tmp_path / "1-1"), backend_of(kind), run.for_item(item, {"base": hostile, "more": 1})
    )
    assert record is not None
    assert record.output == f"ran\n{hostile}\nof the row\nprint('app')\ntwo\n-rwxr-xr-x\nlinks\nr"
    assert record.problem is None


@KINDS
@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
@pytest.mark.parametrize("step", [1, 2, 3])
async def test_what_a_crash_cuts_off_is_undone_and_done_once_more(
    kind: str, step: int, when: str, tmp_path: Path
) -> None:
    run = Furnishing(
        sandbox=kind,
        template=template_in(tmp_path),
        setup="echo set up >>counted",
        collect="echo collected >>counted; cat counted",
    )
    furnished, journal, folder = run.for_item(ItemWorld(files={"a": "1"})), MemoryJournal(), tmp_path / "1-1"
    context = MemoryContext(journal, workspace=folder, crash=CrashPoint(step, when))  # type: ignore[arg-type]
    with pytest.raises(Crash):
        await through(context, backend_of(kind), furnished)
    context = MemoryContext(journal, workspace=folder)
    record = await through(context, backend_of(kind), furnished)
    assert record is not None
    assert record.output == "set up\ncollected\n"
    assert context.performed == 3 - (step if when == "after_recording" else step - 1)
    again = MemoryContext(journal, workspace=tmp_path / "nowhere")
    assert await through(again, backend_of(kind), furnished) == record
    assert not (tmp_path / "nowhere").exists()


async def test_no_sandbox_is_made_for_settings_that_need_none(tmp_path: Path) -> None:
    furnished = Furnishing(environment={"A": "1"}).for_item(ItemWorld(cpus=1.0))
    context = MemoryContext(workspace=tmp_path / "1-1")
    assert not furnished.needs_sandbox
    assert await through(context, backend_of("local"), furnished) is None
    assert context.steps == []
    assert not (tmp_path / "1-1").exists()


@pytest.mark.parametrize(
    ("run", "item", "said"),
    [
        (Furnishing(setup="echo why not; exit 3"), ItemWorld(), "the setup command failed (exit code 3): why not"),
        (Furnishing(setup="echo slow; sleep 30", timeout=0.3), ItemWorld(), "stopped at its time limit"),
        (Furnishing(), ItemWorld(setup="false"), "the setup command failed (exit code 1)"),
        (Furnishing(), ItemWorld(files={"/tmp/manyhands-never": "x"}), "only a path in the workspace can be written"),
        (Furnishing(), ItemWorld(files={"a": "1", "a/b": "2"}), "the workspace can't be filled"),
    ],
)
async def test_a_world_that_cannot_be_made_ready_fails_its_item_and_is_not_recorded(
    run: Furnishing, item: ItemWorld, said: str, tmp_path: Path
) -> None:
    context = MemoryContext(workspace=tmp_path / "1-1")
    with pytest.raises(ItemError) as caught:
        await through(context, backend_of("local"), run.for_item(item))
    assert caught.value.cause is Cause.INVALID_INPUT
    assert said in caught.value.message
    assert context.steps == []
    assert not Path("/tmp/manyhands-never").exists()


async def test_no_file_of_a_row_is_written_through_a_link_of_the_template(tmp_path: Path) -> None:
    run = Furnishing(template=template_in(tmp_path))
    with pytest.raises(ItemError, match="outside is a link in the template"):
        await through(
            MemoryContext(workspace=tmp_path / "1-1"),
            backend_of("local"),
            run.for_item(ItemWorld(files={"outside/x": "1"})),
        )
    assert not (tmp_path / "x").exists()


@KINDS
async def test_what_a_failed_command_says_is_collected_and_what_a_good_one_says_is_not(
    kind: str, tmp_path: Path
) -> None:
    run = Furnishing(collect="echo output; echo {word} >&2; exit {code}")
    backend = backend_of(kind)
    good = await through(
        MemoryContext(workspace=tmp_path / "1-1"), backend, run.for_item(ItemWorld(), {"word": "w", "code": 0})
    )
    bad = await through(
        MemoryContext(workspace=tmp_path / "2-1"), backend, run.for_item(ItemWorld(), {"word": "w", "code": 7})
    )
    assert good is not None
    assert (good.output, good.problem) == ("output\n", None)
    assert bad is not None
    assert (bad.output, bad.problem) == ("output\nw\n", "exit code 7")


def test_a_row_only_tightens() -> None:
    allowed = SandboxLimits(memory=1 << 30, cpus=2.0, network=True, network_allow=("example.com",))
    run = Furnishing(limits=allowed, environment={"BOTH": "run"}, user="nobody")
    greedy = run.for_item(ItemWorld(memory=8 << 30, cpus=16.0, network=True, environment={"BOTH": "row", "ROW": "1"}))
    modest = run.for_item(ItemWorld(memory=1 << 28, cpus=0.5, network=False, user="agent"))
    request = greedy.request(Path("folder"), "mark")
    assert request.limits == allowed
    assert request.environment == {"BOTH": "run", "ROW": "1"}
    assert request.user == "nobody"
    request = modest.request(Path("folder"), "mark")
    limits = request.limits
    assert (limits.memory, limits.cpus, limits.network, limits.network_allow) == (1 << 28, 0.5, False, ())
    assert request.user == "agent"
    for network, allow, reached in (
        (True, (), ("files.example", "8.8.8.8")),
        (False, ("*.example", "10.0.0.0/8"), ("files.example", "10.1.2.3")),
        (False, (), ()),
    ):
        run = Furnishing(limits=SandboxLimits(network=network, network_allow=allow))
        hosts = ItemWorld.from_json({"network": ["files.example", "10.1.2.3", "8.8.8.8"]})
        few = run.for_item(hosts).request(Path("folder"), "mark").limits
        assert (few.network, few.network_allow) == (False, reached)
    closed = Furnishing(limits=SandboxLimits()).for_item(ItemWorld(network=True)).request(Path("folder"), "mark")
    assert not closed.limits.network


async def test_worlds_that_are_filled_at_once_all_get_the_whole_template(tmp_path: Path) -> None:
    folder, _ = template_in(tmp_path)
    (folder / "large").write_bytes(bytes(3 << 20))
    digest = read_template(folder).digest
    run = Furnishing(sandbox="fake", template=(folder, digest), collect="cat src/app.py; wc -c <large")
    with fake_service():
        backend = RemoteBackend(FakeDriver())
        try:
            records = await asyncio.gather(
                *(
                    through(MemoryContext(workspace=tmp_path / f"{number}-1"), each, run.for_item(ItemWorld()))
                    for number, each in enumerate([backend, backend, choose_backend("local"), choose_backend("local")])
                )
            )
        finally:
            await backend.close()
    assert [None if record is None else record.output for record in records] == [f"print('app')\n{3 << 20}\n"] * 4


def test_a_template_is_known_by_all_that_is_in_it(tmp_path: Path) -> None:
    folder, digest = template_in(tmp_path)
    found = read_template(folder)
    assert found.skipped == ("pipe",)
    assert found.links == {"link", "outside"}
    link = folder / "link"
    link.unlink()
    seen = {digest, read_template(folder).digest}
    link.symlink_to("run.sh")
    seen.add(read_template(folder).digest)
    (folder / "src" / "app.py").write_text("print('other')\n")
    seen.add(read_template(folder).digest)
    (folder / "run.sh").chmod(0o644)
    seen.add(read_template(folder).digest)
    (folder / "empty").mkdir()
    seen.add(read_template(folder).digest)
    assert len(seen) == 6


async def test_a_template_that_changed_meanwhile_stops_the_run(tmp_path: Path) -> None:
    run = Furnishing(template=template_in(tmp_path))
    (tmp_path / "template" / "new").touch()
    with pytest.raises(UserError, match="changed since the run was opened"):
        await through(MemoryContext(workspace=tmp_path / "1-1"), backend_of("local"), run.for_item(ItemWorld()))


def test_a_template_and_the_run_lie_apart(tmp_path: Path) -> None:
    check_apart(tmp_path / "template", tmp_path / "data" / "run")
    with pytest.raises(UserError, match="holds the run's own folder"):
        check_apart(tmp_path, tmp_path / "data" / "run")
    with pytest.raises(UserError, match="there is no folder"):
        read_template(tmp_path / "missing")


@pytest.mark.parametrize("path", ["", "a/", "..", "../a", "a/../../b", ".", "a\0b"])
def test_paths_that_are_no_files_of_a_workspace(path: str) -> None:
    with pytest.raises(ValueError, match=r"no path|leads out"):
        checked_file(path)


def test_a_world_travels_in_a_payload() -> None:
    world = ItemWorld(image="i", files={"a": "1"}, environment={"A": "1"}, network=False, memory=1)
    assert ItemWorld.from_json(json.loads(json.dumps(world.to_json()))) == world
    assert ItemWorld().to_json() == {}
