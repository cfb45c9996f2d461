"""Changing files: forgiving replacement, V4A patches, and the diffs that come back."""

from __future__ import annotations

import asyncio
import difflib
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.core.errors import ToolError
from manyhands.tools.files.edits import replaced, unified_diff
from manyhands.tools.files.patch import apply_hunks, parse_patch

if TYPE_CHECKING:
    from tests.tools.conftest import Bench

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r"), max_size=8), max_size=12)
TEXTS = st.tuples(LINES, st.booleans()).map(lambda each: "\n".join(each[0]) + ("\n" if each[1] and each[0] else ""))


def v4a(path: str, before: list[str], after: list[str]) -> str:
    """A patch with the whole file as context."""
    lines = ["*** Begin Patch", f"*** Update File: {path}", "@@"]
    for mark, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
        if mark == "equal":
            lines += [" " + line for line in before[old_from:old_to]]
        else:
            lines += ["-" + line for line in before[old_from:old_to]]
            lines += ["+" + line for line in after[new_from:new_to]]
    return "\n".join([*lines, "*** End Patch"])


@given(before=LINES, after=LINES)
def test_a_patch_over_a_whole_file_gives_the_new_file(before: list[str], after: list[str]) -> None:
    if before == after:
        return
    (change,) = parse_patch(v4a("f", before, after))
    text = "".join(line + "\n" for line in before)
    assert apply_hunks(change, text) == "".join(line + "\n" for line in after)


@given(
    before=st.lists(st.integers(0, 999), min_size=1, max_size=40, unique=True),
    changes=st.dictionaries(st.integers(0, 39), st.sampled_from(["drop", "change", "insert"]), min_size=1, max_size=6),
)
def test_small_hunks_find_their_places(before: list[int], changes: dict[int, str]) -> None:
    old = [f"    line {number}" for number in before]
    new: list[str] = []
    for at, line in enumerate(old):
        change = changes.get(at)
        new += {"drop": [], "change": [line + " changed"], "insert": [line, line + " more"], None: [line]}[change]
    if new == old:
        return
    hunks = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
    (parsed,) = parse_patch("\n".join(["*** Begin Patch", "*** Update File: f", *hunks, "*** End Patch"]))
    assert apply_hunks(parsed, "\n".join(old) + "\n") == "".join(line + "\n" for line in new)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TEXTS, after=TEXTS)
def test_the_diff_turns_one_text_into_the_other(tmp_path: Path, before: str, after: str) -> None:
    """With patch(1) as the judge, which knows only the diff."""
    program = shutil.which("patch")
    if program is None:
        pytest.skip("no patch(1)")
    diff = unified_diff("f", before, after)
    if not diff:
        assert before == after
        return
    file = tmp_path / "f"
    file.write_bytes(before.encode())
    command = [program, "-p1", "--binary", "--quiet", "-d", str(tmp_path), "-o", str(tmp_path / "out"), "f"]
    done = subprocess.run(command, input=diff.encode(), capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out").read_bytes() == after.encode()


@given(head=TEXTS, old=st.text(min_size=1, max_size=10), new=st.text(max_size=10), tail=TEXTS)
def test_an_exact_replacement_changes_nothing_else(head: str, old: str, new: str, tail: str) -> None:
    text = head + old + tail
    if old == new or text.count(old) != 1:
        return
    assert replaced(text, old, new).text == head + new + tail


def test_white_space_at_line_ends_is_forgiven() -> None:
    result = replaced("a  \nb\t\nc\n", "a\nb\n", "x\n")
    assert (result.text, result.how) == ("x\nc\n", "white space at line ends ignored")


def test_indentation_is_forgiven_and_kept() -> None:
    text = "class A:\n    def f(self):\n        if x:\n            return 1\n"
    result = replaced(text, "def f(self):\n    if x:\n        return 1", "def f(self):\n    if y:\n        return 2")
    assert result.text == "class A:\n    def f(self):\n        if y:\n            return 2\n"
    assert result.how == "indentation ignored"


def test_windows_line_ends_are_kept() -> None:
    assert replaced("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz").text == "x\r\ny\r\nz\r\nc\r\n"
    assert replaced("a \r\nb\r\nc\r\n", "a\nb", "x\ny").text == "x\r\ny\r\nc\r\n"
    (change,) = parse_patch("*** Begin Patch\n*** Update File: f\n a\n-b\n+x\n+y\n*** End Patch")
    assert apply_hunks(change, "a\r\nb\r\nc\r\n") == "a\r\nx\r\ny\r\nc\r\n"


def test_several_places_must_be_meant() -> None:
    with pytest.raises(ToolError, match=r"3 times \(lines 1, 2, 4\).*replace_all"):
        replaced("x = 1\nx = 1\ny\nx = 1\n", "x = 1", "z")
    assert replaced("x = 1\nx = 1\n", "x = 1", "z", every=True).count == 2
    assert replaced("  a \n  b\n  a\n  b\n", "a\nb", "c", every=True).text == "  c\n  c\n"


def test_text_that_is_not_there_comes_with_the_nearest_lines() -> None:
    with pytest.raises(ToolError, match=r"not found; the nearest lines are: 2\|def compute\(x\):"):
        replaced("import os\ndef compute(x):\n    pass\n", "def compute(y):\n    pass", "z")
    with pytest.raises(ToolError, match="the same"):
        replaced("a", "a", "a")
    with pytest.raises(ToolError, match="empty"):
        replaced("a", "", "b")


def test_an_anchor_says_where() -> None:
    text = "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n"
    hunk = "     def f(self):\n-        return 1\n+        return 2\n"
    with pytest.raises(ToolError, match=r"2 times \(lines 2, 6\)"):
        apply_hunks(parse_patch(f"*** Begin Patch\n*** Update File: f\n@@\n{hunk}*** End Patch")[0], text)
    (change,) = parse_patch(f"*** Begin Patch\n*** Update File: f\n@@ class B:\n{hunk}*** End Patch")
    assert apply_hunks(change, text).endswith("class B:\n    def f(self):\n        return 2\n")
    (change,) = parse_patch("*** Begin Patch\n*** Update File: f\n@@ class B:\n@@ def f(self):\n-        return 1\n")
    assert apply_hunks(change, text).endswith("class B:\n    def f(self):\n")


def test_the_end_of_a_file_and_pure_insertions() -> None:
    (change,) = parse_patch("*** Begin Patch\n*** Update File: f\n-x\n+y\n*** End of File\n*** End Patch")
    assert apply_hunks(change, "x\na\nx\n") == "x\na\ny\n"
    (change,) = parse_patch("*** Begin Patch\n*** Update File: f\n+last\n*** End Patch")
    assert apply_hunks(change, "a\n") == "a\nlast\n"
    assert apply_hunks(change, "a") == "a\nlast"
    assert apply_hunks(change, "") == "last\n"
    (change,) = parse_patch("*** Begin Patch\n*** Update File: f\n@@ a\n+after a\n*** End Patch")
    assert apply_hunks(change, "a\nb\n") == "a\nafter a\nb\n"


def test_unchanged_lines_stay_as_they_are() -> None:
    (change,) = parse_patch("*** Begin Patch\n*** Update File: f\n a\n-b\n+x\n c\n\n*** End Patch")
    assert apply_hunks(change, "a  \nb \n  c\t\nd\n".replace("  c", "c")) == "a  \nx\nc\t\nd\n"


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "names no file"),
        ("hello", r"patch line 1 can't be read: 'hello'; expected a file header"),
        ("*** Begin Patch\n*** Update File: f\n*** End Patch", "changes nothing in f"),
        (
            "*** Begin Patch\n*** Update File: f\n@@\n-a\nrubbish\n*** End Patch",
            "patch line 5 can't be read: 'rubbish'",
        ),
        ("*** Begin Patch\n*** Add File: f\nrubbish\n*** End Patch", r"patch line 3 .* starts with '\+'"),
        ("*** Begin Patch\n*** Delete File: f\n-x\n*** End Patch", "patch line 3"),
        ("*** Begin Patch\n*** Add File: f\n+x\n*** Delete File: f\n*** End Patch", "names f twice"),
    ],
)
def test_a_patch_that_cannot_be_read(patch: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_patch(patch)


@given(st.text(alphabet="*+- @\nabBegin PatchUpdateFile:End", max_size=200))
def test_no_patch_text_breaks_the_parser(text: str) -> None:
    try:
        for change in parse_patch(text):
            apply_hunks(change, "a\nb\n")
    except ToolError:
        pass


async def test_replace_in_a_sandbox(bench: Bench) -> None:
    bench.write("a.py", "x = 1\ny = 2\n")
    result = await bench.call("patch", path="a.py", old_string="x = 1", new_string="x = 3")
    assert result["diff"] == "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 3\n y = 2\n"
    assert (bench.workspace / "a.py").read_text() == "x = 3\ny = 2\n"
    assert "did you mean a.py" in await bench.error("patch", path="b.py", old_string="x", new_string="y")
    assert "needs the arguments path, old_string and new_string" in await bench.error("patch", path="a.py")
    assert "'patch' is missing" in await bench.error("patch", mode="patch")


async def test_bytes_that_are_not_text_survive(bench: Bench) -> None:
    path = bench.write("latin.txt", b"\xef\xbb\xbfcaf\xe9\r\nold\r\n")
    await bench.call("patch", path="latin.txt", old_string="old", new_string="new")
    assert path.read_bytes() == b"\xef\xbb\xbfcaf\xe9\r\nnew\r\n"


async def test_a_patch_over_several_files(bench: Bench) -> None:
    bench.write("a.py", "one\ntwo\n")
    bench.write("old.txt", "gone\n")
    script = bench.write("run.sh", "echo 1\n")
    script.chmod(0o755)
    text = (
        "*** Begin Patch\n*** Update File: a.py\n one\n-two\n+zwei\n*** Add File: sub/new.txt\n+hello\n+there\n"
        "*** Delete File: old.txt\n*** Update File: run.sh\n*** Move to: bin/run.sh\n-echo 1\n+echo 2\n*** End Patch"
    )
    result = await bench.call("patch", mode="patch", patch=text)
    assert [each["action"] for each in result["files"]] == ["update", "add", "delete", "update"]
    assert result["files"][3]["moved_to"] == "bin/run.sh"
    assert "--- /dev/null\n+++ b/sub/new.txt" in result["diff"]
    assert (bench.workspace / "a.py").read_text() == "one\nzwei\n"
    assert (bench.workspace / "sub/new.txt").read_text() == "hello\nthere\n"
    assert not (bench.workspace / "old.txt").exists()
    assert not script.exists()
    moved = bench.workspace / "bin/run.sh"
    assert moved.read_text() == "echo 2\n"
    assert moved.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("*** Update File: b.py\n-missing\n+x\n", "b.py: the lines of the hunk .* were not found.*Nothing was changed"),
        ("*** Update File: c.py\n-missing\n+x\n", "there is no file c.py"),
        ("*** Add File: b.py\n+x\n", "b.py exists already"),
        ("*** Delete File: c.py\n", "there is no file c.py"),
        ("*** Update File: b.py\n*** Move to: a/x\n-b\n+x\n", "mkdir .* failed"),
        ("*** Delete File: folder\n", "folder is a directory"),
    ],
)
async def test_a_patch_is_applied_as_a_whole_or_not_at_all(bench: Bench, second: str, message: str) -> None:
    bench.write("a", "a\n")
    bench.write("b.py", "b\n")
    bench.write("folder/x", "x\n")
    text = f"*** Begin Patch\n*** Update File: a\n-a\n+changed\n*** Add File: made\n+x\n{second}*** End Patch"
    error = await bench.error("patch", mode="patch", patch=text)
    assert re.search(message, error)
    assert (bench.workspace / "a").read_text() == "a\n"
    assert (bench.workspace / "b.py").read_text() == "b\n"
    assert not (bench.workspace / "made").exists()


async def test_patches_of_one_turn_follow_each_other(bench: Bench) -> None:
    path = bench.write("a.txt", "".join(f"line {number}.\n" for number in range(8)))
    calls = [bench.call("patch", path="a.txt", old_string=f"line {n}.", new_string=f"LINE {n}.") for n in range(8)]
    await asyncio.gather(*calls)
    assert path.read_text() == "".join(f"LINE {number}.\n" for number in range(8))
