"""Eval files that are programs: a module in TypeScript or JavaScript, ``NAME.eval.ts``, that exports what a YAML file would hold.

It is run once, by ``bun``, or by a ``node`` that reads TypeScript, in a process with a time limit, and only where a person has named it.
What counts is its export ``default``, ``config`` or ``evalConfig``, as in AgentV; what AgentV's ``defineEval`` gives is asked for the file
that it stands for. Functions in it stay behind: a target and graders are data here.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import loads
from manyhands.core.text import decode
from manyhands.io.locations import Location, Source

SCRIPT_ENDINGS = (".ts", ".mts", ".js", ".mjs")
SECONDS = 60.0
"""The time limit of such a program."""
_LIMITED = ("timeout", "--signal=KILL", f"{SECONDS:g}")
"""Limits the time of a command, also if this process is killed meanwhile (coreutils)."""
_TIMED_OUT = 128 + signal.SIGKILL
"""What ``timeout`` ends with when it has killed what it ran."""
_MAX_BYTES = 64 << 20
_KEPT = 1 << 16
_PAUSE, _GRACE = 0.1, 5.0
"""Seconds between two looks at a program, and for which it may outstay its limit before it is killed from here."""
_LAST = 500
"""Characters of what it wrote on standard error that a message shows."""
_PROGRAM = """
import { writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const [file, output] = process.argv.slice(-2);
const found = await import(pathToFileURL(file).href);
const value = ["default", "config", "evalConfig"].map((name) => found[name]).find((each) => each && typeof each === "object");
const lowered = value?.[Symbol.for("@agentv/sdk/to-eval-yaml-object")];
const left = [];
const kept = (key, each) => {
  if (typeof each === "function") left.push(key);
  return each instanceof RegExp ? each.source : each;
};
const content = typeof lowered === "function" ? lowered.call(value) : value;
writeFileSync(output, JSON.stringify({ content: content === undefined ? null : content }, kept));
writeFileSync(output + ".left", JSON.stringify([...new Set(left)]));
process.exit(0);
"""


def read_script(path: Path, name: str) -> tuple[Source, tuple[str, ...]]:
    """What the program of a file exports, and the names under which it has functions. ``name``: what messages call it.

    Raises UserError if there is nothing that can run it, or if it does not export an eval file within its time limit.
    """
    location = Location(name)
    with tempfile.TemporaryDirectory(prefix="manyhands-eval-file-") as folder:
        output = Path(folder, "content.json")
        _run([*_runner(path, location), str(path.absolute()), str(output)], path.absolute().parent, location)
        if not output.is_file() or output.stat().st_size > _MAX_BYTES:
            raise location.error("exports nothing, or too much" if output.is_file() else "ended before it had exported")
        content: Any = loads(output.read_bytes())["content"]
        left = loads(output.with_name(output.name + ".left").read_bytes())
    if not isinstance(content, Mapping):
        raise location.error("exports no eval file; it does so as default, config or evalConfig")
    return Source(content, location), tuple(left)


def _runner(path: Path, location: Location) -> list[str]:
    """The words before the names of the file and the output file."""
    if bun := shutil.which("bun"):
        return [bun, "-e", _PROGRAM]
    node = shutil.which("node")
    if node is None:
        raise location.error("is a program for bun or node, and neither is on the path")
    if path.suffix in (".ts", ".mts") and not _reads_typescript(node):
        raise location.error(
            "is TypeScript, for which bun is needed on the path, or a node that reads it (22.18 or newer)"
        )
    return [node, "--input-type=module", "-e", _PROGRAM, "--"]


def _reads_typescript(node: str) -> bool:
    asked = [*_LIMITED, node, "-p", "process.features.typescript"]
    found = subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return found.returncode == 0 and found.stdout.strip() not in (b"false", b"undefined")


def _run(words: list[str], folder: Path, location: Location) -> None:
    process = subprocess.Popen(
        [*_LIMITED, *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    began = time.monotonic()
    try:
        errors = _ending(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode in (_TIMED_OUT, -signal.SIGKILL) and time.monotonic() - began >= SECONDS:
        raise location.error(f"took more than {SECONDS:g} s to export")
    if process.returncode != 0:
        said = " ".join(decode(errors).split())
        raise location.error(f"ended with exit code {process.returncode}: {said[-_LAST:]}")


def _ending(process: subprocess.Popen[bytes]) -> bytes:
    """The end of what a program writes on standard error until it ends: the rest is read, and not kept. What it leaves behind may go on
    to write, and is not waited for."""
    kept, until = b"", time.monotonic() + SECONDS + _GRACE
    assert process.stderr is not None
    with process.stderr as stream:
        has_ended = False
        while not has_ended and time.monotonic() < until:
            has_ended = process.poll() is not None
            if select.select([stream], [], [], 0 if has_ended else _PAUSE)[0]:
                chunk = os.read(stream.fileno(), _KEPT)
                kept = (kept + chunk)[-_KEPT:]
                if not chunk:
                    break
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(_PAUSE, until - time.monotonic()))
    return kept
