"""Reading, writing and searching files in real sandboxes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tools.conftest import Bench


@pytest.fixture(params=["rg", "grep"])
async def searcher(
    request: pytest.FixtureRequest, tmp_path: Path, open_bench: Callable[..., AbstractAsyncContextManager[Bench]]
) -> AsyncIterator[Bench]:
    """A sandbox with ripgrep, and one without."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "grep", "find", "head", "cat", request.param):
        found = shutil.which(name)
        assert found is not None
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(found)
    async with open_bench("local", tmp_path / "box", {"PATH": str(programs)}, max_output=5000) as bench:
        tree: dict[str, str | bytes] = {
            "src/a.py": "import os\n\ndef alpha():\n    return 1\n",
            "src/deep/b.py": "def beta(x):\n    return alpha() + x\n",
            "notes.txt": "alpha and beta\nnothing\nALPHA\n",
            ".hidden/c.py": "alpha\n",
            ".secret": "alpha\n",
            "data.bin": b"\x00\x01alpha\n",
            "with space/d e.txt": "alpha: 3:4-5\n",
        }
        for name, text in tree.items():
            bench.write(name, text)
        yield bench


async def test_lines_are_numbered(bench: Bench) -> None:
    bench.write("a.txt", "one\n\nthr\u00e9e\r\n")
    assert await bench.call("read_file", path="a.txt") == {
        "content": "1|one\n2|\n3|thr\u00e9e",
        "total_lines": 3,
        "file_size": 13,
    }


async def test_a_part_of_a_file(bench: Bench) -> None:
    bench.write("a.txt", "".join(f"line {number}\n" for number in range(1, 101)))
    page = await bench.call("read_file", path="a.txt", offset="50", limit=2)
    assert page["content"] == "50|line 50\n51|line 51"
    assert page["next_offset"] == 52
    assert "next_offset" not in await bench.call("read_file", path="a.txt", offset=99)
    assert "has 100 lines" in await bench.error("read_file", path="a.txt", offset=101)


async def test_pages_of_a_file_larger_than_a_result(bench: Bench) -> None:
    text = "".join(f"{number} {'x' * 90}\n" for number in range(1, 201))
    bench.write("a.txt", text)
    seen, offset = [], 1
    while offset:
        page = await bench.call("read_file", path="a.txt", offset=offset)
        assert len(page["content"]) <= 5000
        seen += page["content"].split("\n")
        offset = page.get("next_offset", 0)
    assert seen == [f"{number}|{line}" for number, line in enumerate(text.splitlines(), start=1)]


async def test_long_lines_are_cut(bench: Bench) -> None:
    bench.write("a.txt", "x" * 3000 + "\nshort\n")
    content = (await bench.call("read_file", path="a.txt"))["content"]
    assert content.endswith("x[… 1000 characters left out …]\n2|short")


async def test_an_empty_file(bench: Bench) -> None:
    bench.write("a.txt", "")
    assert await bench.call("read_file", path="a.txt") == {"content": "", "total_lines": 0, "file_size": 0}


async def test_binary_files_are_refused(bench: Bench) -> None:
    bench.write("a.png", b"\x89PNG\r\n\x1a\n\x00\x00")
    assert "binary file of 10 bytes" in await bench.error("read_file", path="a.png")
    assert "binary" in await bench.error("patch", path="a.png", old_string="P", new_string="Q")


async def test_missing_files_come_with_advice(bench: Bench) -> None:
    bench.write("src/config.yaml", "x")
    bench.write("src/main.py", "x")
    assert "did you mean src/config.yaml?" in await bench.error("read_file", path="src/config.yml")
    assert "its folder holds: config.yaml, main.py" in await bench.error("read_file", path="src/zzz")
    assert "empty or missing" in await bench.error("read_file", path="no/such/file")
    assert "NUL" in await bench.error("read_file", path="a\0b")


async def test_a_directory_is_listed(bench: Bench) -> None:
    bench.write("src/main.py", "x")
    bench.write("src/sub/x", "x")
    listing = await bench.call("read_file", path="src")
    assert listing == {"path": "src", "directory": True, "entries": ["main.py", "sub/"]}


async def test_files_are_written(bench: Bench) -> None:
    text = "one\nzw\u00f6lf \u2713\n"
    result = await bench.call("write_file", path="new/folder/a.txt", content=text)
    assert result == {"path": "new/folder/a.txt", "bytes_written": 15, "lines": 2}
    assert (bench.workspace / "new/folder/a.txt").read_text(encoding="utf-8") == text
    path = bench.write("run.sh", "#!/bin/sh\n")
    path.chmod(0o755)
    await bench.call("write_file", path="run.sh", content="#!/bin/sh\nexit 0\n")
    assert path.stat().st_mode & 0o777 == 0o755
    odd = await bench.call("write_file", path="odd.txt", content="lone \ud800 surrogate")
    assert odd["bytes_written"] == len("lone \ufffd surrogate".encode())


async def test_searching_lines(searcher: Bench) -> None:
    result = await searcher.call("search_files", pattern="alpha")
    assert result["matches"].split("\n") == [
        "notes.txt:1:alpha and beta",
        "src/a.py:3:def alpha():",
        "src/deep/b.py:2:    return alpha() + x",
        "with space/d e.txt:1:alpha: 3:4-5",
    ]
    assert (result["total"], result["shown"]) == (4, 4)
    assert "next_offset" not in result


async def test_regular_expressions(searcher: Bench) -> None:
    result = await searcher.call("search_files", pattern=r"^def \w+\(\w?\)", path="src")
    assert result["matches"].split("\n") == ["src/a.py:3:def alpha():", "src/deep/b.py:1:def beta(x):"]
    assert "the search failed" in await searcher.error("search_files", pattern="(unclosed")
    assert "the search failed" in await searcher.error("search_files", pattern="x", path="no/such")
    nothing = await searcher.call("search_files", pattern="-not-there")
    assert (nothing["total"], nothing["matches"]) == (0, "")


async def test_only_some_files(searcher: Bench) -> None:
    result = await searcher.call("search_files", pattern="alpha", file_glob="*.py")
    assert [line.partition(":")[0] for line in result["matches"].split("\n")] == ["src/a.py", "src/deep/b.py"]
    one = await searcher.call("search_files", pattern="alpha", path="notes.txt")
    assert one["matches"] == "notes.txt:1:alpha and beta"


async def test_pages_of_matches(searcher: Bench) -> None:
    first = await searcher.call("search_files", pattern="alpha", limit=2)
    assert (first["shown"], first["next_offset"]) == (2, 2)
    second = await searcher.call("search_files", pattern="alpha", limit=2, offset=2)
    assert second["matches"].startswith("src/deep/b.py:2:")
    assert "next_offset" not in second


async def test_lines_around_matches(searcher: Bench) -> None:
    result = await searcher.call("search_files", pattern="nothing", context=1)
    assert result["matches"].split("\n") == ["notes.txt-1-alpha and beta", "notes.txt:2:nothing", "notes.txt-3-ALPHA"]
    assert result["total"] == 1


async def test_paths_and_counts(searcher: Bench) -> None:
    files = await searcher.call("search_files", pattern="return", output_mode="files_only")
    assert files == {"total": 2, "files": ["src/a.py", "src/deep/b.py"]}
    counts = await searcher.call("search_files", pattern="a", output_mode="count", file_glob="*.txt")
    assert counts["counts"] == {"notes.txt": 1, "with space/d e.txt": 1}
    assert counts["total_matches"] == 2


async def test_finding_files(searcher: Bench) -> None:
    assert (await searcher.call("search_files", target="files", pattern="*.py"))["files"] == [
        "src/a.py",
        "src/deep/b.py",
    ]
    assert (await searcher.call("search_files", target="files", pattern="note"))["files"] == ["notes.txt"]
    assert (await searcher.call("search_files", target="files", pattern="*", path="src/deep"))["files"] == [
        "src/deep/b.py"
    ]
    assert (await searcher.call("search_files", target="files", pattern="*.rs"))["total"] == 0


async def test_a_search_with_very_many_matches_is_bounded(searcher: Bench) -> None:
    searcher.write("big.txt", "match this line of some length\n" * 200_000)
    result = await searcher.call("search_files", pattern="match", limit=3)
    assert result["shown"] == 3
    assert "narrow the search" in result["note"]


@pytest.mark.parametrize("left", [0, 2, 7, 8])
async def test_a_search_whose_end_is_cut(searcher: Bench, left: int) -> None:
    """Whoever wrote a file may have chosen its length such that the bound comes within what tells of the end."""
    line = "match".ljust(4_000_000 - left - len("big.txt\0001:\n"), "x")
    searcher.write("big.txt", f"{line}\n")
    result = await searcher.call("search_files", pattern="match", path="big.txt", output_mode="files_only")
    assert result["files"] == ["big.txt"]


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
async def test_all_tools_agree_on_where_relative_paths_start(
    kind: str, tmp_path: Path, open_bench: Callable[..., AbstractAsyncContextManager[Bench]]
) -> None:
    (tmp_path / "workspace" / "start").mkdir(parents=True)
    async with open_bench(kind, tmp_path, cwd="start") as bench:
        await bench.call("write_file", path="a.txt", content="one\n")
        await bench.call("patch", path="a.txt", old_string="one", new_string="two")
        assert (bench.workspace / "start" / "a.txt").read_text() == "two\n"
        assert (await bench.call("read_file", path="a.txt"))["content"] == "1|two"
        assert (await bench.call("search_files", pattern="two"))["matches"] == "a.txt:1:two"
        assert (await bench.call("terminal", command="cat a.txt"))["output"] == "two\n"
        assert (await bench.call("execute_code", code="print(open('a.txt').read())"))["output"] == "two\n\n"
        assert (await bench.call("read_file", path="."))["entries"] == ["a.txt"]
        assert "did you mean a.txt?" in await bench.error("read_file", path="b.txt")
        moved = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: c/d.txt\n-two\n+three\n*** End Patch"
        await bench.call("patch", mode="patch", patch=moved)
        assert (bench.workspace / "start" / "c" / "d.txt").read_text() == "three\n"
