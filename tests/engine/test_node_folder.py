"""What a node gets of a run's folder, and what comes back from it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.redaction import REDACTED, protect
from manyhands.core.usage import ZERO
from manyhands.engine.contract import Worlds
from manyhands.engine.executors import wire
from manyhands.engine.executors.claiming import CLAIM
from manyhands.engine.executors.cluster import ClusterLauncher
from manyhands.engine.executors.node_folder import (
    CHUNK,
    FOLDER_VARIABLE,
    MAX_IN_LOOP,
    SCRATCH,
    NodeFolder,
    Returns,
    Shipment,
    shared_variables,
)
from manyhands.engine.executors.worker import FilesFirst, Owner
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.records import StepRow
from manyhands.engine.journal.store import Store
from manyhands.engine.workspaces import KEEP
from manyhands.processes.strays import remove_tree
from manyhands.runs.making import create_run
from manyhands.testing.steps_workload import StepsWorkload


class Furnished(StepsWorkload):
    """Steps, and files that a node needs for them. ``spec["own"]``: files that are loaded by their paths."""

    worker_files = ("settings", "one.json", "none")
    reads_items = True

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        return [(name, Path(self.spec["owner"])) for name in self.spec.get("own", ())]


class WithArtifacts(StepsWorkload):
    worker_files = ("artifacts",)


def made(folder: Path, **spec: Any) -> Furnished:
    workload = Furnished({"items": 3, "steps": 1, "owner": str(folder.parent), **spec}, folder)
    create_run(folder, workload.name, workload, version="test", notice=lambda text: None)
    (folder / "settings").mkdir(exist_ok=True)
    (folder / "settings/deep").mkdir()
    (folder / "settings/deep/large").write_bytes(bytes(range(256)) * (CHUNK // 100))
    (folder / "settings/empty").write_bytes(b"")
    (folder / "one.json").write_text("{}")
    (folder / "unnamed").write_text("not for nodes")
    return workload


@asynccontextmanager
async def channels() -> AsyncIterator[tuple[wire.Channel, wire.Channel]]:
    ours, theirs = socket.socketpair()
    here, there = await wire.Channel.over(ours), await wire.Channel.over(theirs)
    try:
        yield here, there
    finally:
        here.close()
        there.close()


async def furnish(shipment: Shipment) -> tuple[NodeFolder, tuple[str, ...]]:
    """A node's folder, furnished by an owner; and what it lacked before."""
    async with channels() as (owner, node):
        offer = shipment.furnish({})
        furnishing = asyncio.create_task(NodeFolder.furnished(node, offer))
        answer = await owner.receive()
        for name in answer.paths:
            for part in shipment.content(name):
                owner.send(part)
                await owner.drained()
        folder = await furnishing
        assert folder is not None
        return folder, answer.paths


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the node keeps its folders."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "node"))
    return tmp_path / "node"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_node_gets_what_the_workload_names_once(tmp_path: Path, node: Path) -> None:
    run = tmp_path / "data/r"
    with closing(Shipment(run, "id", made(run))) as shipment:
        folder, lacked = await furnish(shipment)
        assert folder.path == node / "id" / Path(*run.parts[-3:])
        found = contents(folder.path)
        assert set(lacked) == {JOURNAL, "one.json", "settings/deep/large", "settings/empty"}
        assert set(found) == {*lacked, CLAIM}
        assert all(found[name] == (run / name).read_bytes() for name in lacked if name != JOURNAL)
        assert (await furnish(shipment))[1] == ()
        (run / "one.json").write_text("[1]")
        assert (await furnish(shipment))[1] == ("one.json",)
        assert (folder.path / "one.json").read_text() == "[1]"
    assert (node.stat().st_mode & 0o777) == 0o700


async def test_what_is_made_for_workers_alone_is_removed_at_the_end_or_after_a_kill(tmp_path: Path) -> None:
    run, scratch = tmp_path / "r", tmp_path / "r" / SCRATCH
    workload = made(run)
    scratch.mkdir()
    (scratch / "left").touch()
    with closing(Shipment(run, "id", workload)) as shipment:
        await furnish(shipment)
        assert not {JOURNAL, "left"} & set(contents(scratch))
        assert scratch.is_dir()
    assert not scratch.exists()


async def test_a_nodes_journal_has_the_items_and_no_step(tmp_path: Path) -> None:
    run = tmp_path / "r"
    with closing(Shipment(run, "id", made(run))) as shipment:
        folder, _ = await furnish(shipment)
    with closing(JournalReader(folder.path)) as copy, closing(JournalReader(run)) as journal:
        assert copy.meta("run_id") == journal.meta("run_id")
        assert [row.key for row in copy.items()] == ["item-0", "item-1", "item-2"]


async def test_files_that_are_loaded_by_their_paths_come_with_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import beside")
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "secret.txt").write_text("")
    run = tmp_path / "r"
    with closing(Shipment(run, "id", made(run, own=["own.py"]))) as shipment:
        folder, _ = await furnish(shipment)
        modules = shipment.furnish({}).modules
    assert set(modules) == {str(tmp_path / "own.py"), str(tmp_path / "beside.py")}
    assert {(folder.path / place).read_text() for place in modules.values()} == {"import beside", ""}
    assert len({(folder.path / place).parent for place in modules.values()}) == 1
    (tmp_path / "own.py").unlink()
    gone = Furnished({"own": ["own.py"], "owner": str(tmp_path)}, run)
    with (
        closing(Shipment(run, "id", gone)) as shipment,
        pytest.raises(UserError, match=r"^there is no file .*/own\.py$"),
    ):
        shipment.furnish({})


async def test_an_owner_that_goes_in_the_middle_of_a_file_leaves_nothing_of_it(tmp_path: Path, node: Path) -> None:
    run = tmp_path / "r"
    with closing(Shipment(run, "id", made(run))) as shipment:
        async with channels() as (owner, there):
            furnishing = asyncio.create_task(NodeFolder.furnished(there, shipment.furnish({})))
            answer = await owner.receive()
            first = answer.paths[0]
            owner.send(wire.Content(first, b"half of", True, False))
            owner.close()
            assert await furnishing is None
    assert [Path(name).name for name in contents(node)] == [CLAIM]


async def test_a_folder_that_others_use_stays_theirs(node: Path) -> None:
    node.mkdir(mode=0o755)
    async with channels() as (_, there):
        await NodeFolder.furnished(there, wire.Furnish("id", ("r",), {}, {}, {}))
    assert node.stat().st_mode & 0o777 == 0o755
    assert (node / "id").stat().st_mode & 0o777 == 0o700


def test_a_run_folder_that_is_named_by_a_detour_is_one_folder_on_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "r")
    (tmp_path / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/er")
    with closing(Shipment(Path("../../r"), "id", Furnished({"owner": ""}, Path("../../r")))) as shipment:
        assert shipment.furnish({}).parts == (tmp_path / "r").parts[-3:]


async def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / f"tmp/manyhands-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    async with channels() as (_, there):
        with pytest.raises(UserError, match="belongs to somebody else"):
            await NodeFolder.furnished(there, wire.Furnish("id", ("r",), {}, {}, {}))
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- What comes back


async def returned(node: NodeFolder, returns: Returns, attempt: str | None = None) -> list[str]:
    """Have a node send what is new of its results (at the end of an attempt); which files came."""
    found = []
    async with channels() as (here, there):
        await node.bring_back(here, attempt)
        here.close()
        files = returns.of_worker()
        while (part := await there.receive()) is not None:
            if (taking := files.take(part)) is not None:
                await taking
            found += [part.path] if part.last else []
    return found


async def test_what_is_new_of_the_results_comes_back_and_nothing_else(tmp_path: Path) -> None:
    there, run = tmp_path / "there", tmp_path / "run"
    for name in ("artifacts/1/a", "artifacts/1/empty", "settings/b", "c", "artifacts/.x.1.2.new"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(name.encode() * (300_000 if name.endswith("a") else not name.endswith("empty")))
    (tmp_path / "private").write_text("private")
    (there / "artifacts/link").symlink_to(tmp_path / "private")
    (there / "artifacts/folder").symlink_to(tmp_path)
    os.mkfifo(there / "artifacts/pipe")
    folder, returns = NodeFolder(there, ("artifacts",)), Returns(run, ("artifacts",))
    assert await returned(folder, returns) == ["artifacts/1/a", "artifacts/1/empty"]
    assert contents(run) == {name: (there / name).read_bytes() for name in ("artifacts/1/a", "artifacts/1/empty")}
    assert await returned(folder, returns) == []
    (there / "artifacts/1/a").write_text("changed")
    assert await returned(folder, returns) == ["artifacts/1/a"]
    assert (run / "artifacts/1/a").read_text() == "changed"


async def test_an_attempts_end_brings_back_what_is_its_own_or_nobodys(tmp_path: Path) -> None:
    there = tmp_path / "there"
    for name in ("artifacts/3-1/a", "artifacts/4-1/a", "artifacts/digest", "artifacts/more/a", "targets/4-1/a"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    results = ("artifacts", "targets")
    folder, returns = NodeFolder(there, results), Returns(tmp_path / "run", results)
    mine = ["artifacts/3-1/a", "artifacts/digest", "artifacts/more/a", "targets/4-1/a"]
    assert sorted(await returned(folder, returns, "3-1")) == mine
    assert await returned(folder, returns) == ["artifacts/4-1/a"]


async def test_what_a_step_left_is_at_the_owner_before_the_step(tmp_path: Path) -> None:
    there = tmp_path / "there"
    for name in ("artifacts/3-1/deep/a", "artifacts/4-1/a", "artifacts/digest", "artifacts/.x.1.2.new"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    folder, row = NodeFolder(there, ("artifacts",)), StepRow(3, 1, "", 0, "tool", b"", b"", b"", ZERO, 0.0, 0.0)
    async with channels() as (worker, owner):
        asked = Owner(worker)

        async def sent(row: StepRow) -> list[str]:
            """What the owner gets of a step that is recorded."""
            recording, found = asyncio.create_task(FilesFirst(asked, worker, folder).record(row)), list[str]()
            while isinstance(message := await owner.receive(), wire.Content):
                found.append(message.path)
            assert isinstance(message, wire.Record)
            asked.granted(wire.Granted(message.request))
            await recording
            return found

        assert await sent(row) == ["artifacts/digest", "artifacts/3-1/deep/a"]
        assert await sent(row) == []
        (there / "artifacts/3-1/deep/a").write_text("changed")
        (there / "artifacts/3-1/b").write_text("new")
        (there / "artifacts/other").write_text("new")
        assert sorted(await sent(row)) == ["artifacts/3-1/b", "artifacts/3-1/deep/a", "artifacts/other"]
    assert await returned(folder, Returns(tmp_path / "run", ("artifacts",))) == ["artifacts/4-1/a"]


async def test_what_nodes_may_have_of_an_earlier_session_is_counted(tmp_path: Path) -> None:
    run = tmp_path / "r"
    workload = WithArtifacts({"items": 4, "steps": 0, "owner": ""}, run)
    create_run(run, workload.name, workload, version="test", notice=lambda text: None)
    with closing(Store(run, SystemClock(), lambda text: None)) as store:
        store.begin()
        for number in (1, 2, 3):
            store.start(number)
        store.settle(1, Outcome(ItemState.COMPLETED), lambda failure: None)
        await store.put_back(2, attempt=1, failures=0, not_before=0.0)
        await store.end("stopped")
        assert store.reader.begun() == 2  # one was put back, and one is as a killed owner leaves it


async def test_what_ended_attempts_keep_stays_at_the_owner(tmp_path: Path) -> None:
    run = tmp_path / "r"
    workload = WithArtifacts({"items": 4, "steps": 0, "owner": ""}, run)
    create_run(run, workload.name, workload, version="test", notice=lambda text: None)
    with closing(Store(run, SystemClock(), lambda text: None)) as store:
        store.begin()
        for number, state in ((1, ItemState.COMPLETED), (2, ItemState.DISCARDED), (3, ItemState.FAILED)):
            store.start(number)
            store.settle(number, Outcome(state), lambda failure: None)
        await store.end("finished")
    for name in ("1-1/a", "2-1/a", "3-1/a", "4-1/a", "digest"):
        (run / "artifacts" / name).parent.mkdir(parents=True, exist_ok=True)
        (run / "artifacts" / name).write_text(name)
    with closing(Shipment(run, "id", workload)) as shipment:
        folder, lacked = await furnish(shipment)
        assert sorted(lacked) == ["artifacts/3-1/a", "artifacts/4-1/a", "artifacts/digest", JOURNAL]
        (folder.path / "artifacts/1-1").mkdir()
        (folder.path / "artifacts/1-1/a").write_text("what the owner has")
        again, _ = await furnish(shipment)
        assert again.changed() == []


async def test_whether_files_can_be_executed_goes_with_them(tmp_path: Path) -> None:
    run = tmp_path / "r"
    with closing(Shipment(run, "id", made(run))) as shipment:
        (run / "one.json").chmod(0o755)
        folder, _ = await furnish(shipment)
        assert {name for name in contents(folder.path) if os.access(folder.path / name, os.X_OK)} == {"one.json"}
        (run / "one.json").chmod(0o644)
        assert (await furnish(shipment))[1] == ("one.json",)
        assert (folder.path / "one.json").stat().st_mode & 0o111 == 0
    (folder.path / "artifacts").mkdir()
    script = folder.path / "artifacts/script"
    script.write_text("#!/bin/sh\n")
    returns = Returns(run, ("artifacts",))
    for mode in (0o644, 0o755):
        script.chmod(mode)
        assert await returned(folder, returns) == ["artifacts/script"]
        assert bool((run / "artifacts/script").stat().st_mode & 0o111) is (mode == 0o755)


async def test_of_large_files_no_more_than_the_beginning_is_written_in_the_loops_thread(tmp_path: Path) -> None:
    files = Returns(tmp_path, ("artifacts",)).of_worker()
    parts = [bytes([number]) * CHUNK for number in range(MAX_IN_LOOP // CHUNK + 2)]
    elsewhere = 0
    for number, data in enumerate(parts):
        last = number == len(parts) - 1
        taking = files.take(part("artifacts/a", data, first=number == 0, last=last))
        if taking is not None:
            assert contents(tmp_path).get("artifacts/a") is None
            await taking
            elsewhere += 1
    assert elsewhere == 2
    assert (tmp_path / "artifacts/a").read_bytes() == b"".join(parts)


async def test_nothing_more_comes_while_what_came_is_being_written() -> None:
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with channels() as (here, there):
        writing = asyncio.create_task(there.unread(written))
        await asyncio.sleep(0)
        for _ in range(20):
            here.send(part("artifacts/a", bytes(CHUNK)))
        draining = asyncio.create_task(here.drained())
        await asyncio.sleep(0.1)
        assert not draining.done()
        written.set_result(None)
        await writing
        async with asyncio.timeout(20):
            await draining
            assert [len((await there.receive()).data) for _ in range(20)] == [CHUNK] * 20


def part(path: str, data: bytes, *, first: bool = True, last: bool = True, modified: int = 1) -> wire.Content:
    return wire.Content(path, data, first, last, modified)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/artifacts/x",
        "artifacts/../../x",
        "artifacts/..",
        "artifacts",
        "",
        "run.db",
        "settings/x",
        "artifacts2/x",
        "./x",
        "artifacts/\0",
        "workspaces/1-1/x",
    ],
)
def test_a_worker_leaves_nothing_where_it_must_not(tmp_path: Path, path: str) -> None:
    files = Returns(tmp_path / "run", ("artifacts",)).of_worker()
    with pytest.raises(ValueError, match="is nothing that a worker may leave"):
        files.take(part(path, b"x"))
    assert contents(tmp_path) == {}


@given(st.lists(st.sampled_from(["..", ".", "", "artifacts", "results", "a", "run.db", "/", "a b", "ü"]), max_size=5))
def test_whatever_a_worker_calls_a_file_it_is_in_a_folder_of_results(parts: list[str]) -> None:
    run = Path("/run")
    try:
        found = Returns(run, ("artifacts", "results")).path_of(part("/".join(parts), b""), "node")
    except ValueError:
        return
    assert found is not None
    inside = Path(os.path.normpath(found)).relative_to(run).parts
    assert inside[0] in ("artifacts", "results")
    assert len(inside) > 1


def test_a_file_that_is_given_up_leaves_what_was_there(tmp_path: Path) -> None:
    returns = Returns(tmp_path, ("artifacts",))
    first = returns.of_worker()
    first.take(part("artifacts/a", b"whole"))
    first.take(part("artifacts/a", b"half", last=False, modified=2))
    first.close()
    first.close()
    assert contents(tmp_path) == {"artifacts/a": b"whole"}
    first.take(part("artifacts/a", b"half", last=False, modified=3))
    first.take(part("artifacts/b", b"another"))  # which can only mean that the rest of the first does not come
    assert contents(tmp_path) == {"artifacts/a": b"whole", "artifacts/b": b"another"}


def test_what_an_attempt_left_earlier_never_replaces_what_one_left_later(tmp_path: Path) -> None:
    returns = Returns(tmp_path, ("artifacts",))
    one, other = returns.of_worker(), returns.of_worker()
    one.take(part("artifacts/a", b"later", modified=9))
    other.take(part("artifacts/a", b"ear", last=False, modified=5))
    other.take(part("artifacts/a", b"lier", first=False, modified=5))
    assert contents(tmp_path) == {"artifacts/a": b"later"}
    other.take(part("artifacts/a", b"last", modified=10))
    assert contents(tmp_path) == {"artifacts/a": b"last"}
    returns.of_worker("another node").take(part("artifacts/a", b"by another clock", modified=3))
    assert contents(tmp_path) == {"artifacts/a": b"by another clock"}


async def test_a_file_that_is_sent_while_others_end_comes_whole_and_before_what_they_say(tmp_path: Path) -> None:
    there, run = tmp_path / "there", tmp_path / "run"
    (there / "artifacts").mkdir(parents=True)
    (there / "artifacts/large").write_bytes(os.urandom(8 * CHUNK))
    folder, files = NodeFolder(there, ("artifacts",)), Returns(run, ("artifacts",)).of_worker()
    async with channels() as (here, owner), asyncio.timeout(20):

        async def ends(name: str) -> None:
            await asyncio.sleep(0)
            (there / "artifacts" / name).write_bytes(os.urandom(3 * CHUNK))
            await folder.bring_back(here)
            here.send(wire.Stays(name, ""))

        ending = asyncio.gather(*(ends(str(number)) for number in range(4)))
        for _ in range(4):
            while isinstance(message := await owner.receive(), wire.Content):
                if (taking := files.take(message)) is not None:
                    await taking
            for name in ("large", message.attempt):
                assert (run / "artifacts" / name).read_bytes() == (there / "artifacts" / name).read_bytes()
        await ending


def test_parts_of_a_file_that_has_not_begun_are_refused(tmp_path: Path) -> None:
    files = Returns(tmp_path, ("artifacts",)).of_worker()
    files.take(part("artifacts/a", b"half", last=False))
    with pytest.raises(ValueError, match="'artifacts/b' has not begun"):
        files.take(part("artifacts/b", b"x", first=False))
    files.close()
    assert contents(tmp_path) == {}


def test_names_that_cannot_be_here_stop_nothing(tmp_path: Path) -> None:
    returns = Returns(tmp_path, ("artifacts",))
    files = returns.of_worker()
    longest = "ü" * 127
    for name in (longest, "a", "a/b", "a" * 256, longest + "/" + "a" * 255):
        files.take(part(f"artifacts/{name}", b"x", last=False))
        files.take(part(f"artifacts/{name}", b"y", first=False))
    assert contents(tmp_path) == {f"artifacts/{longest}": b"xy", "artifacts/a": b"xy"}
    assert returns.impossible == ["artifacts/a/b", f"artifacts/{'a' * 256}", f"artifacts/{longest}/{'a' * 255}"]


async def test_what_a_worker_left_that_died_is_brought_back_by_the_next(tmp_path: Path) -> None:
    run = tmp_path / "r"
    with closing(Shipment(run, "id", made(run))) as shipment:
        folder, _ = await furnish(shipment)
        (folder.path / "artifacts").mkdir()
        (folder.path / "artifacts/brought").write_text("1")
        returns = Returns(run, ("artifacts",))
        assert await returned(folder, returns) == ["artifacts/brought"]
        (folder.path / "artifacts/left").write_text("2")  # and now the worker dies
        folder, _ = await furnish(shipment)
        assert await returned(folder, returns) == ["artifacts/left"]
    assert (run / "artifacts/left").read_text() == "2"


async def test_what_is_removed_while_it_is_looked_for_is_nobodys_failure(tmp_path: Path) -> None:
    (tmp_path / "there/artifacts").mkdir(parents=True)
    folder, returns = NodeFolder(tmp_path / "there", ("artifacts",)), Returns(tmp_path / "run", ("artifacts",))
    stop = asyncio.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(20):
                (tmp_path / "there/artifacts" / str(number)).mkdir(exist_ok=True)
                (tmp_path / "there/artifacts" / str(number) / "x").write_text("x")
            for number in range(20):
                remove_tree(tmp_path / "there/artifacts" / str(number))

    churning = asyncio.create_task(asyncio.to_thread(churn))
    for _ in range(8):
        await returned(folder, returns)
    stop.set()
    await churning


# --- What stays


@pytest.mark.parametrize(
    ("failed", "execution", "marked", "stays"),
    [
        (False, {}, False, False),
        (False, {}, True, True),
        (True, {}, False, True),
        (None, {}, False, False),
        (True, {"remove_workspaces": True}, False, False),
        (False, {"keep_workspaces": True}, False, True),
    ],
)
async def test_a_workspace_stays_only_where_somebody_may_look_at_it(
    tmp_path: Path, failed: bool | None, execution: dict[str, Any], marked: bool, stays: bool
) -> None:
    workload = StepsWorkload({"items": 1, "steps": 1, "execution": execution}, tmp_path)
    folder = NodeFolder(tmp_path, ())
    (tmp_path / "workspaces/3-1/workspace").mkdir(parents=True)
    (tmp_path / "states/3-1").mkdir(parents=True)
    (tmp_path / "workspaces/4-1").mkdir()
    if marked:
        (tmp_path / "workspaces/3-1" / KEEP).touch()
    assert sorted(folder.attempts()) == ["3-1", "4-1"]
    where = await folder.over("3-1", failed, workload)
    assert where == (str(tmp_path / "workspaces/3-1") if stays else None)
    assert (tmp_path / "workspaces/3-1").exists() is stays
    assert not (tmp_path / "states/3-1").exists()
    assert (tmp_path / "workspaces/4-1").exists()


async def test_a_folder_that_nobody_needs_is_removed_but_for_workspaces_that_stay(tmp_path: Path, node: Path) -> None:
    run = tmp_path / "data/r"
    workload = made(run)
    with closing(Shipment(run, "id", workload)) as shipment:
        folder, _ = await furnish(shipment)
        (folder.path / "workspaces/1-1").mkdir(parents=True)
        await folder.close(workload, over=False)
        assert len(contents(folder.path)) == 5
        await folder.close(workload, over=True)
        assert [path.name for path in folder.path.rglob("*")] == ["workspaces", "1-1"]
        (folder.path / "workspaces/1-1").rmdir()
        await folder.close(workload, over=True)
        assert list(node.iterdir()) == []


class Troubled:
    """Worlds at an engine that does not answer."""

    async def discard(self, folders: Sequence[Path]) -> None:
        raise ItemError(Cause.SANDBOX_LOST, "the engine does not answer key-4711")

    async def sweep(self, needed: Callable[[Path], bool]) -> Sequence[str]:
        return ["2 worlds removed"]

    async def kept(self) -> str | None:
        return None

    async def close(self) -> None:
        raise OSError(errno.EIO, "can't be closed")


class WithWorlds(StepsWorkload):
    def worlds(self) -> Worlds:
        return Troubled()


async def test_what_a_node_can_not_remove_is_told_to_a_person_once_and_without_secrets(tmp_path: Path) -> None:
    protect(["key-4711"])
    run, told = tmp_path / "r", list[str]()
    workload = WithWorlds({"items": 1, "steps": 1}, run)
    launcher = ClusterLauncher(run, "id", workload, workload.execution, told.append)
    async with channels() as (owner, there):
        folder = await NodeFolder.furnished(there, wire.Furnish("id", ("r",), {}, {}, {}))
        assert folder is not None
        assert isinstance(await owner.receive(), wire.Missing)
        root = folder.path / "workspaces"
        for attempt in ("1-1", "2-1"):
            (root / attempt).mkdir(parents=True)
            assert await folder.over(attempt, False, workload) is None
        (root / "3-1").symlink_to(tmp_path)
        other = NodeFolder(folder.path, (), lambda text: there.send(wire.Notice(text)))
        assert await other.over("3-1", False, StepsWorkload(workload.spec, run)) is None
        await folder.close(workload, over=True)
        there.close()
        while (message := await owner.receive()) is not None:
            launcher.take(message, Returns(run, ()).of_worker(), "10.0.0.7")
    await launcher.close()
    assert [line.partition(" (in ")[0] for line in told] == [
        f"on 10.0.0.7: workspaces in {root} can't be removed: the engine does not answer {REDACTED}",
        f"on 10.0.0.7: workspaces that can't be removed stay in {root}",
        "on 10.0.0.7: 2 worlds removed",
        "on 10.0.0.7: what ended items left can't be removed: OSError: [Errno 5] can't be closed",
    ]


def test_what_belongs_to_a_machine_does_not_go_to_others() -> None:
    ours = {"OPENAI_API_KEY": "k", "HTTPS_PROXY": "p", "MINE": "1"}
    machine = ("PATH", "HOME", "TMPDIR", "LD_PRELOAD", "PYTHONPATH", "RAY_ADDRESS", "SSH_AUTH_SOCK", "VIRTUAL_ENV")
    others = dict.fromkeys((*machine, FOLDER_VARIABLE, "MANYHANDS_RUN", "DOCKER_HOST"), "x")
    assert shared_variables({**ours, **others}) == ours
