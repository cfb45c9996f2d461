"""Agents and commands that try to get a file of the host's into results by way of their workspace: with links that come and go while the
host looks, with pipes, and with settings of git's."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError
from manyhands.graders.judged.agent_judge import WORKSPACE, list_files, read_file, search_files
from manyhands.sandboxes.files.checkpoint import Checkpoint
from manyhands.sandboxes.files.removing import clear_folder
from manyhands.sandboxes.files.trees import NotPlain, Tree, open_folder, replace_file
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from manyhands.tools.protocol import ToolEnvironment
from manyhands.workloads.evals.workspaces.changes import changed, plain_diff
from manyhands.workloads.evals.workspaces.templates import copy_tree
from tests.support.commands import run

NAMES = [f"f{number}" for number in range(12)]
# Swaps files for links to the host's secret, and folders for links to the folder it is in, as fast as it goes.
SWAPPER = """\
import os, sys
secret, names = sys.argv[1], sys.argv[2:]
def put(name, text):
    with open("." + name, "w") as file:
        file.write(text)
    os.rename("." + name, name)
for name in names:
    os.makedirs("d-" + name, exist_ok=True)
    put(name, "plain")
    with open("d-" + name + "/secret", "w") as file:
        file.write("plain")
if os.fork():
    sys.exit()
os.setsid()
while True:
    for name in names:
        os.symlink(secret, ".link"); os.rename(".link", name)
        os.rename("d-" + name, ".away"); os.symlink(os.path.dirname(secret), "d-" + name)
        put(name, "plain")
        os.unlink("d-" + name); os.rename(".away", "d-" + name)
"""

# Waits until the host has listed a folder, and then puts a link to the secret's folder in its place.
WATCHER = """\
import ctypes, os, sys
secret, names = sys.argv[1], sys.argv[2:]
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
watched = {}
for name in names:
    os.makedirs("d-" + name)
    with open("d-" + name + "/secret", "w") as file:
        file.write("plain")
    watched[libc.inotify_add_watch(watch, ("d-" + name).encode(), 0x10)] = name
if os.fork():
    sys.exit()
os.setsid()
while data := os.read(watch, 4096):
    name = watched.pop(int.from_bytes(data[:4], "little"), None)
    if name:
        os.rename("d-" + name, ".away-" + name)
        os.symlink(os.path.dirname(secret), "d-" + name)
"""


@pytest.fixture(autouse=True)
def _removed(tmp_path: Path) -> Iterator[None]:
    """Folders without end are too much for pytest to remove."""
    yield
    clear_folder(tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host's that nobody may see. Its text has never been said to anybody."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text(f"SECRET-{secrets.token_hex(16)}\n")
    return tmp_path / "host" / "secret"


def told(path: Path) -> bytes:
    return path.read_bytes().strip()


def leaks(path: Path, folder: Path) -> list[Path]:
    """The files below a folder that the secret got into. What is linked is not looked at."""
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each != "d"]  # the one without end, in which nothing else is
        for name in names:
            file = Path(at, name)
            if not file.is_symlink() and file.is_file() and told(path) in file.read_bytes():
                found.append(file)
    return found


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def write_suite(folder: Path, server: ScriptedServer, *tests: dict[str, Any], **more: Any) -> None:
    (folder / "template" / "src").mkdir(parents=True)
    (folder / "template" / "src" / "main.py").write_text("first\n")
    about = {"provider": "agent", "model": "agent", "toolsets": ["terminal"], "base_url": server.base_url}
    suite = {
        "workspace": {"template": "template"},
        "execution": {"target": "agent"},
        "targets": [
            {"name": "agent", "sandbox": "bubblewrap", **about, **more},
            {"name": "judge", "provider": "model", "model": "judge", "base_url": server.base_url},
        ],
        "tests": tests,
    }
    (folder / "suite.yaml").write_text(json.dumps(suite))


async def evaluated(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The results of the suite, by the command line."""
    line = ("eval", "suite.yaml", "--run_name=run", "--quiet", "--keep_workspaces", *words)
    ended = await asyncio.to_thread(run, *line, folder=folder)
    results = folder / "data" / "run" / "results.jsonl"
    assert results.exists(), ended
    return [json.loads(line) for line in results.read_bytes().splitlines()]


LOOKS = {
    "type": "agent_judge",
    "name": "looks",
    "target": "judge",
    "prompt": "Changes: {{file_changes}}",
    "max_steps": 12,
}
LOOKED_AT = [call("search_files", pattern="SECRET"), call("list_files", path="d-f0")]
LOOKED_AT += [call("read_file", path=name) for name in (*NAMES[:6], *(f"d-{name}/secret" for name in NAMES[:6]))]


def scripted(lines: dict[str, str]) -> Any:
    """An agent that runs the line that stands for what it was told, and a judge that looks at everything, three times over."""

    def reply(request: RecordedRequest) -> Reply:
        messages = request.body["messages"]
        if request.body["model"] == "judge":
            if sum(each["role"] == "assistant" for each in messages) < 3:
                return chat_response("", tool_calls=[{**each, "id": f"{n}"} for n, each in enumerate(LOOKED_AT)])
            return chat_response(json.dumps({"score": 1.0, "hits": [], "misses": [], "reasoning": "fine"}))
        said = next(each["content"] for each in reversed(messages) if each["role"] == "user")
        if messages[-1]["role"] == "user" and said in lines:
            return chat_response("", tool_calls=[call("terminal", command=lines[said])])
        return chat_response("done")

    return reply


async def test_links_that_come_and_go_while_a_conversation_is_judged(tmp_path: Path, secret: Path) -> None:
    """The swapping goes on between the turns, in a process that left its shell's session."""
    words = " ".join(map(shlex.quote, ["python3", "-c", SWAPPER, str(secret), *NAMES]))
    turns = [{"input": said, "assert": [LOOKS]} for said in ("swap", "go on", "go on")]
    tests = [{"id": f"t{number}", "mode": "conversation", "turns": turns, "assert": [LOOKS]} for number in range(3)]
    async with ScriptedServer(scripted({"swap": f"{words} >/dev/null 2>&1"})) as server:
        write_suite(tmp_path, server, *tests)
        results = await evaluated(tmp_path)
        assert not [each for each in server.requests if told(secret).decode() in json.dumps(each.body)]
        looked = [each for each in server.requests if each.body["model"] == "judge"]
    assert [each["status"] for each in results] == ["passed"] * 3, results
    assert len(looked) == 3 * 4 * 4
    assert any('"plain' in json.dumps(each.body).replace("\\", "") for each in looked)
    # Which names are folders and which are links at the instant of the diff is chance.
    assert all("/secret" in each["file_changes"] for each in results)
    assert not leaks(secret, tmp_path / "data")


async def test_a_link_that_comes_when_a_folder_has_been_listed(tmp_path: Path, secret: Path) -> None:
    words = " ".join(map(shlex.quote, ["python3", "-c", WATCHER, str(secret), *NAMES]))
    turns = [{"input": "swap", "assert": [{"type": "contains", "value": "done"}]}, {"input": "go on"}]
    tests = [{"id": f"t{number}", "mode": "conversation", "turns": turns} for number in range(3)]
    async with ScriptedServer(scripted({"swap": f"{words} >/dev/null 2>&1"})) as server:
        write_suite(tmp_path, server, *tests)
        results = await evaluated(tmp_path)
    assert not leaks(secret, tmp_path / "data")
    assert [each["status"] for each in results] == ["passed"] * 3, results
    assert [each["file_changes"].count("+plain") for each in results] == [len(NAMES)] * 3


async def test_what_an_agent_leaves_behind_is_looked_at_without_following_it(tmp_path: Path, secret: Path) -> None:
    """Links, pipes, a repository that tells git what to run, odd names, set-id bits, and folders without end."""
    ran = tmp_path / "ran"
    ran.mkdir(mode=0o777)
    ran.chmod(0o777)
    make = f"""
cd /workspace
ln -s {secret} link; ln -s {secret.parent} folder; ln -s /proc/self/environ own; rm -r src; ln -s {secret.parent} src
mkfifo pipe; printf x > "$(printf 'new\\nline')"; printf x > "$(printf 'odd\\377')"
printf 'setuid' > privileged; chmod 6755 privileged
mkdir -p .git/hooks .git/info .git/objects .git/refs/heads; echo 'ref: refs/heads/main' > .git/HEAD
printf '#!/bin/sh\\ntouch {ran}/"$0"\\n' > run.sh; chmod 755 run.sh
cat > .git/config <<END
[core]
  repositoryformatversion = 0
  fsmonitor = "touch {ran}/fsmonitor; cat {secret}"
  hooksPath = /workspace
  pager = touch {ran}/pager
  worktree = {secret.parent}
[diff]
  external = "touch {ran}/external"
[diff "own"]
  command = "touch {ran}/command"
  textconv = "touch {ran}/textconv; cat {secret} #"
[filter "own"]
  clean = "touch {ran}/clean"
  smudge = "touch {ran}/smudge"
END
printf '* diff=own filter=own\\n' | tee .gitattributes > .git/info/attributes
printf 'gitdir: /workspace/.git\\n' > module
"""
    deep = "python3 -c \"import os\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')\""
    tests = [{"id": each, "input": each, "assert": [LOOKS]} for each in ("make", "deep")]
    async with ScriptedServer(scripted({"make": make, "deep": deep})) as server:
        write_suite(tmp_path, server, *tests)
        results = {each["test_id"]: each for each in await evaluated(tmp_path)}
        assert not [each for each in server.requests if told(secret).decode() in json.dumps(each.body)]
    made = results["make"]
    assert made["status"] == "passed", made
    for part in ("new file mode 120000", str(secret), "deleted file mode 100644", "+setuid", "new\\nline", "run.sh"):
        assert part in made["file_changes"], part
    assert "pipe" not in made["file_changes"]
    assert "what changed in the workspace is not known" in results["deep"]["notices"][0]
    assert os.listdir(ran) == []
    assert not leaks(secret, tmp_path / "data")


@pytest.mark.parametrize("line", ["ln -s {secret} $OUT", "mkfifo $OUT", "ln -s {secret} x; ln x $OUT"])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_link_in_place_of_an_answer_is_no_answer(tmp_path: Path, secret: Path, line: str, batch: bool) -> None:
    line = line.format(secret=secret, folder=secret.parent)
    (tmp_path / "agent.sh").write_text(f'OUT="$1"; {line}\n')
    target = {
        "name": "t",
        "provider": "cli",
        "command": "sh {EVAL_DIR}/agent.sh {OUTPUT_FILE}",
        "cwd": ".",
        "provider_batching": batch,
    }
    tests = [{"id": "a", "input": "x", "assert": [{"type": "contains", "value": "SECRET"}]}]
    suite = {"execution": {"target": "t"}, "targets": [target], "tests": tests}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    (result,) = await evaluated(tmp_path)
    assert result["status"] == "error", result
    assert not leaks(secret, tmp_path / "data")


# --- The readers by themselves, while somebody swaps


@contextmanager
def swapped(folder: Path, secret: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    script = SWAPPER.replace("if os.fork():\n    sys.exit()\n", "print('ready', flush=True)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(secret), *NAMES], cwd=folder, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def test_no_reader_follows_what_is_swapped_under_it(tmp_path: Path, secret: Path) -> None:
    tree, before, copies = tmp_path / "tree", tmp_path / "before", tmp_path / "copies"
    before.mkdir()
    copies.mkdir()
    seen: list[bytes] = []
    with swapped(tree, secret):
        for number in range(150):
            with suppress(OSError):
                seen += [plain_diff(each).encode() for each in changed(before, tree)]
            with suppress(OSError):
                copy_tree(tree, copies / f"{number}")
            with suppress(OSError), Tree(tree) as opened:
                for name in NAMES:
                    for path in (name, f"d-{name}/secret"):
                        with suppress(OSError):
                            seen.append(opened.read(path, 1000))
    assert any(b"plain" in each for each in seen)
    assert not [each for each in seen if told(secret) in each]
    assert not leaks(secret, copies)


async def test_no_tool_of_a_judge_follows_it_either(tmp_path: Path, secret: Path) -> None:
    async def no_sandbox() -> Any:
        raise AssertionError

    environment = ToolEnvironment(no_sandbox, SystemClock(), state={WORKSPACE: tmp_path / "tree"})
    calls = [(read_file, {"path": name}) for name in NAMES] + [
        (read_file, {"path": f"d-{name}/secret"}) for name in NAMES
    ]
    calls += [(list_files, {"path": f"d-{name}"}) for name in NAMES] + [(search_files, {"pattern": "SECRET"})]
    said = []
    with swapped(tmp_path / "tree", secret):
        for _ in range(30):
            for tool, arguments in calls:
                with suppress(ToolError):
                    said.append(str((await tool.call(arguments, environment)).content))
    assert any("plain" in each for each in said)
    assert not [each for each in said if told(secret).decode() in each]


def test_no_checkpoint_copies_what_is_swapped_under_it(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "world").mkdir()
    checkpoint = Checkpoint(tmp_path, ("world",))
    with swapped(tmp_path / "world", secret):
        for number in range(40):
            checkpoint.begin(f"{number}")
    assert not leaks(secret, tmp_path / "checkpoint")
    (tmp_path / "world").rename(tmp_path / "was")
    (tmp_path / "world").symlink_to(secret.parent)
    assert not checkpoint.begin("last")
    checkpoint.reattach(False, "last")
    assert secret.exists()


def test_writing_for_a_tool_leaves_the_folder_by_no_link(tmp_path: Path, secret: Path) -> None:
    with swapped(tmp_path / "tree", secret):
        for number in range(300):
            with suppress(OSError), open_folder(tmp_path / "tree", [f"d-{NAMES[number % 12]}"], make=True) as folder:
                replace_file(folder, "secret", b"overwritten")
    assert told(secret).startswith(b"SECRET-")
    assert os.listdir(secret.parent) == ["secret"]


# --- Odd trees


def test_pipes_and_devices_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "terminal").symlink_to("/dev/tty")
    with Tree(tmp_path) as tree:
        for name in ("pipe", "terminal"):
            with pytest.raises(NotPlain):
                tree.open(name)
        assert [each.name for each in tree.walk()] == ["pipe", "terminal"]


def test_hard_links_and_links_of_a_template_are_copied_for_themselves(tmp_path: Path) -> None:
    source = tmp_path / "template"
    source.mkdir()
    (source / "one").write_text("x")
    os.link(source / "one", source / "two")
    (source / "away").symlink_to("/etc/passwd")
    (source / "one").chmod(0o6755)
    (source / "in").mkdir()
    (source / "in").chmod(0o2755)
    (source / ".git").mkdir()
    copy_tree(source, tmp_path / "copy")
    one, two = (tmp_path / "copy" / "one").stat(), (tmp_path / "copy" / "two").stat()
    assert one.st_ino != two.st_ino
    assert one.st_mode & 0o7777 == (tmp_path / "copy" / "in").stat().st_mode & 0o7777 == 0o755
    assert os.readlink(tmp_path / "copy" / "away") == "/etc/passwd"
    assert not (tmp_path / "copy" / ".git").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_in_a_workspace_belongs_to_the_workspaces_owner(tmp_path: Path) -> None:
    tree, source = tmp_path / "tree", tmp_path / "source"
    tree.mkdir()
    (source / "in").mkdir(parents=True)
    (source / "in" / "file").write_text("x")
    (source / "link").symlink_to("in")
    os.chown(tree, 12345, 12346)
    with open_folder(tree, ["a", "b"], make=True) as folder:
        replace_file(folder, "file", b"x")
        replace_file(folder, "file", b"y")
    copy_tree(source, tree / "copy")
    (tmp_path / "outside").mkdir()
    (tree / "out").symlink_to(tmp_path / "outside")
    with pytest.raises(NotPlain), open_folder(tree, ["out", "made"], make=True):
        pass
    for path in tree.rglob("*"):
        if path.name != "out":
            assert (path.lstat().st_uid, path.lstat().st_gid) == (12345, 12346), path
    assert (tmp_path / "outside").stat().st_uid == 0


def test_names_and_depths_that_no_path_can_hold(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=folder)
        deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    with Tree(tmp_path) as tree, pytest.raises(OSError, match="folders within each other"):
        list(tree.walk())
