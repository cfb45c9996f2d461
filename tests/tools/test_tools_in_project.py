"""The file tools where there is a project: they start in it, and where it can't be changed they say what can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tools.conftest import Bench

Open = Callable[..., "AbstractAsyncContextManager[Bench]"]
DELETE = "*** Begin Patch\n*** Delete File: src/a.py\n*** End Patch"
MOVE = "*** Begin Patch\n*** Update File: src/a.py\n*** Move to: src/b.py\n@@\n-one = 1\n+one = 2\n*** End Patch"
ADD = "*** Begin Patch\n*** Add File: src/new.py\n+new = 1\n*** End Patch"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one = 1\n")
    return folder


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
async def test_reading_starts_in_the_project(kind: str, tmp_path: Path, project: Path, open_bench: Open) -> None:
    async with open_bench(kind, tmp_path / "box", project=project, timeout=20.0) as bench:
        assert (await bench.call("read_file", path="src/a.py"))["content"] == "1|one = 1"
        assert (await bench.call("read_file", path="src"))["entries"] == ["a.py"]
        assert (await bench.call("search_files", pattern="one"))["matches"] == "src/a.py:1:one = 1"
        assert (await bench.call("search_files", pattern="*.py", target="files"))["files"] == ["src/a.py"]
        assert "src/a.py" in await bench.error("read_file", path="src/b.py")
        code = await bench.call("execute_code", code="print(open('src/a.py').read())")
        assert "one = 1" in str(code)
        await bench.call("write_file", path=f"{bench.sandbox.workspace}/out.txt", content="mine\n")
        assert (bench.workspace / "out.txt").read_text() == "mine\n"


async def test_changing_the_project_is_refused(tmp_path: Path, project: Path, open_bench: Open) -> None:
    async with open_bench("bubblewrap", tmp_path / "box", project=project, timeout=20.0) as bench:
        replace = {"path": "src/a.py", "old_string": "one", "new_string": "two"}
        tries = [("write_file", {"path": "new.txt", "content": "x"}), ("patch", replace)]
        tries += [("patch", {"mode": "patch", "patch": text}) for text in (DELETE, MOVE, ADD)]
        for tool, arguments in tries:
            error = await bench.error(tool, **arguments)
            assert "read-only" in error, arguments
            assert "/workspace" in error, arguments
        await bench.call("terminal", command="cp src/a.py $WORKSPACE/ && cd ~")
        await bench.call("patch", path="/workspace/a.py", old_string="one", new_string="two")
    assert [path.name for path in project.rglob("*")] == ["src", "a.py"]
    assert (project / "src" / "a.py").read_text() == "one = 1\n"
    assert (tmp_path / "box" / "workspace" / "a.py").read_text() == "two = 1\n"


async def test_local_commands_may_change_the_project(tmp_path: Path, project: Path, open_bench: Open) -> None:
    async with open_bench("local", tmp_path / "box", project=project, timeout=20.0) as bench:
        await bench.call("patch", mode="patch", patch=MOVE)
    assert (project / "src" / "b.py").read_text() == "one = 2\n"
