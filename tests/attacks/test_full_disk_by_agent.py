"""An agent that fills the disk: its own item fails, all others complete, and the run ends as if it had not been there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse, chat_response
from tests.support.batches import ServerThread, prompt_of
from tests.support.commands import PROGRAM, environment

DISK = 64 << 20
GOOD = 5
FILLERS = {
    "bytes": "i=0; while :; do head -c 8M /dev/zero >f$i 2>/dev/null; i=$((i+1)); done",
    "fallocate": "i=0; while :; do fallocate -l 16M f$i 2>/dev/null; i=$((i+1)); done",
    "nameless": 'for i in 5 6 7 8 9; do eval "exec $i>g$i"; rm g$i; head -c 20M /dev/zero >&$i; done 2>/dev/null; sleep 60',
    "files": "mkdir d; cd d; i=0; while :; do mkdir $i; : >$i/a; ln -s a $i/b; i=$((i+1)); done 2>/dev/null",
    "background": "(setsid sh -c 'while :; do cat /dev/zero >>z 2>/dev/null; done' &) ; sleep 60",
}
"""Command lines that take all space or all inodes of a disk, and do not stop by themselves."""
WORKS = "for i in 1 2 3 4 5 6; do echo $i >>mine 2>/dev/null; sleep 0.5; done; true"


def answer(filler: str) -> Any:
    """A model that has one tool call made for each prompt."""

    def reply(request: RecordedRequest) -> dict[str, Any] | ScriptedResponse:
        prompt = prompt_of(request)
        if request.body["messages"][-1]["role"] == "tool":
            return chat_response(f"Done: {prompt}", reasoning="Well.")
        command = filler if prompt.startswith("bad") else WORKS
        call = {"name": "terminal", "arguments": json.dumps({"command": command})}
        return chat_response(None, reasoning="So.", tool_calls=[{"id": "call_1", "type": "function", "function": call}])

    return reply


def cases() -> Iterator[Any]:
    """Some that show the most, and all others, which take longer."""
    quick = {("bytes", "bubblewrap", "processes"), ("nameless", "local", "local"), ("files", "bubblewrap", "local")}
    for filler in FILLERS:
        for sandbox in ("bubblewrap", "local"):
            for executor in ("local", "processes"):
                case = (filler, sandbox, executor)
                yield pytest.param(*case, marks=() if case in quick else pytest.mark.slow)


@pytest.mark.parametrize(("filler", "sandbox", "executor"), list(cases()))
def test_only_the_item_that_fills_the_disk_fails(tmp_path: Path, filler: str, sandbox: str, executor: str) -> None:
    bad = 2 if filler in ("bytes", "fallocate") else 1
    with ServerThread(answer(FILLERS[filler])) as server:
        prompts = [*(f"bad {number}" for number in range(bad)), *(f"good {number}" for number in range(GOOD))]
        (tmp_path / "d.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        words = ["batch", "--dataset_file=d.jsonl", "--batch_size=1", "--run_name=r", "--distribution=terminal_only"]
        words += [f"--sandbox={sandbox}", f"--executor={executor}", "--num_workers=2", "--concurrency=8", "--quiet"]
        words += [f"--base_url={server.base_url}", "--api_key=k", "--tool_timeout=40", "--model=m"]
        ended = on_a_small_disk(tmp_path, [*PROGRAM, *words, f"--data_dir={tmp_path / 'disk'}"])
        assert ended.returncode == 1, ended.stdout + ended.stderr  # some item failed
        paid = len(server.requests)
    lines = [json.loads(line) for line in (tmp_path / "seen" / "r" / "trajectories.jsonl").read_text().splitlines()]
    summary = json.loads((tmp_path / "seen" / "r" / "summary.json").read_text())
    assert len(lines) == GOOD, summary
    assert summary["ledger"]["by_cause"] == {"failed": {"sandbox_limit": bad}}, summary
    assert paid == bad + 2 * GOOD
    assert "left 1" not in ended.stdout, ended.stdout  # nothing of theirs takes any room


def on_a_small_disk(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with a disk of 64 MiB mounted on ``folder/disk``, and copy what it left in ``disk/r`` to ``folder/seen``."""
    (folder / "disk").mkdir()
    (folder / "seen").mkdir()
    script = f"""
mount -t tmpfs -o size={DISK},nr_inodes=4000 small disk || exit 90
"$@"
code=$?
[ "$(du -sm disk/r/workspaces 2>/dev/null | cut -f1)" -lt 5 ] 2>/dev/null || [ ! -e disk/r/workspaces ] || echo left 1
rm -rf disk/r/workspaces
cp -r disk/r seen/r
exit $code
"""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    return subprocess.run(
        [*namespace, "sh", "-c", script, "sh", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
