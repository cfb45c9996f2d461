"""Jinja templates of a person's files, filled by a process of their own, which is stopped at limits of time and memory.

A template is a program: it may count for ever, or make a text that fills the memory. The process reads a line of JSON for each template,
``{"text": …, "variables": …}``, and answers with one, ``{"made": …}`` or ``{"problem": …}``. It ends when nobody writes to it any more.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from manyhands.core.jsonio import Json, dumps
from manyhands.processes.interpreters import PYTHONPATH, module_path, python_command
from manyhands.processes.killable import HELPER_ENVIRONMENT

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

MAX_LENGTH = 10_000_000
"""Characters of a text that a template may make."""
SECONDS = 5.0
"""For one template."""
MAX_SECONDS = 60.0
"""For all that one process fills."""
_MEMORY = 1 << 30
_CHUNK = 1 << 16
_MODULE = "manyhands.workloads.evals.evalfile.agentv5.template_process"


class TemplateProcess:
    """Fills templates; the process is started with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._left = MAX_SECONDS

    def fill(self, text: str, variables: Mapping[str, Json]) -> str:
        """The filled template. Raises ValueError if it can't be filled, or not within the limits."""
        request = json.dumps({"text": text, "variables": variables}).encode() + b"\n"
        if self._process is None:
            self._process = _started()
        since = time.monotonic()
        answer = self._answer(self._process, request, since + min(SECONDS, self._left))
        self._left -= time.monotonic() - since
        if answer is None:
            self.close()
            raise ValueError(
                f"templates take more than {MAX_SECONDS:g} s in all"
                if self._left <= 0
                else f"it takes more than {SECONDS:g} s, or too much memory"
            )
        found: dict[str, str] = json.loads(answer)
        if "problem" in found:
            raise ValueError(found["problem"])
        return found["made"]

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _answer(self, process: subprocess.Popen[bytes], request: bytes, until: float) -> bytes | None:
        """The line of an answer; None if the process ended, or took too long."""
        assert process.stdin is not None
        assert process.stdout is not None
        reading, writing = process.stdout.fileno(), process.stdin.fileno()
        rest, parts = memoryview(request), list[bytes]()
        try:
            while (seconds := until - time.monotonic()) > 0:
                readable, writable, _ = select.select([reading], [writing] if rest else [], [], seconds)
                if writable:
                    rest = rest[os.write(writing, rest[:_CHUNK]) :]
                if readable:
                    parts.append(os.read(reading, _CHUNK))
                    if not parts[-1]:
                        return None
                    if parts[-1].endswith(b"\n"):
                        return b"".join(parts)
        except OSError:
            return None
        return None


def _started() -> subprocess.Popen[bytes]:
    environ = {name: os.environ[name] for name in HELPER_ENVIRONMENT if name in os.environ}
    process = subprocess.Popen(
        python_command(_MODULE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environ, PYTHONPATH: module_path()},
        start_new_session=True,
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


# --- In the process


def main() -> None:
    """Fill templates until there are none left."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(MAX_SECONDS) + 10, int(MAX_SECONDS) + 10))
    engine = _engine()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            answer = {"made": _made(engine, request["text"], request["variables"])}
        except Exception as error:  # noqa: BLE001  # whatever a template does, which is a program of the person's
            answer = {"problem": " ".join(str(error).split())[:300] or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _made(engine: SandboxedEnvironment, text: str, variables: Mapping[str, Json]) -> str:
    parts, length = list[str](), 0
    for part in engine.from_string(text).generate(**variables):
        parts.append(part)
        length += len(part)
        if length > MAX_LENGTH:
            raise ValueError(f"it makes more than {MAX_LENGTH:,} characters")
    return "".join(parts)


def _engine() -> SandboxedEnvironment:
    from jinja2 import DebugUndefined
    from jinja2.sandbox import SandboxedEnvironment

    # Names that are none stay, as prompts of judges have variables of their own.
    engine = SandboxedEnvironment(undefined=DebugUndefined, keep_trailing_newline=True, finalize=_shown)
    engine.filters |= {"dump": _dumped, "load": json.loads}
    return engine


def _shown(value: Any) -> Any:
    return value if isinstance(value, str) or not isinstance(value, (bool, type(None), list, dict)) else written(value)


def written(value: Any) -> str:
    """A value as it stands within a text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and not any(isinstance(part, Mapping) for part in value):
        return ",".join(map(written, value))
    return dumps(value).decode()


def _dumped(value: Any, indent: int | None = None) -> str:
    separators = (",", ":") if indent is None else None
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)


if __name__ == "__main__":
    main()
