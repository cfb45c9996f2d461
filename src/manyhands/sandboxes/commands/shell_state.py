"""What a shell says of itself: how it is told to, how its reports are read, and the file that keeps its last state."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.io.files import is_full

_MAX_REPORT = 8 << 20
_FIELDS = 6
BASH = ["bash", "--noprofile", "--norc", "-s"]
SH = ["/bin/sh", "-s"]
"""Where there is no bash. Its state is its directory and its exported variables."""
_BEGUN = b"\x06"
_LINE = '\ndeclare -a BASH_LINENO=([0]="'

# {report}: descriptor of the report pipe as inherited; {output}, {status}: numbers not otherwise used in the child. A report begins with an
# expansion that is not needed, but has bash 5.2 put its parser in order: after an unfinished $( it writes where it must not, and aborts.
_BEGINNING = """\
shopt -s expand_aliases
{{ builtin eval {state}; }} >/dev/null 2>&1
builtin export {exports} >/dev/null
builtin cd -- {directory} 2>/dev/null || builtin cd -- {fallback}
exec {output}>&1 {status}>&{report} {report}>&- >/dev/null 2>&1
{setting}__manyhands_report() {{
  builtin : "${{BASH-$(builtin :)}}"
  {kept}{end}{{ builtin printf '%s\\0%s\\0%s\\0%s\\0' {token} "$1" "$2" "$PWD"; {jobs}builtin printf '\\0'
    {dump}
    builtin printf '\\0'; }} >&{status} 2>/dev/null
}}
builtin trap '__manyhands_report exit "$?"' EXIT
{ready}
"""
_STATE = "builtin shopt -p; builtin declare -f; builtin declare -p; builtin alias -p"
_JOBS = "builtin jobs -rp; builtin printf '|'; "
# {now}, {before}: descriptors of files in memory without names, for this state and the one reported last; where there are none, a fork
# gathers the lines. Two states are the same if they differ only in how many lines the shell has read.
_SETTING = """\
(builtin umask 077; : >|{path}; : >|{path}.) && exec {now}<>{path} {before}<>{path}.; command -p rm -f {path} {path}.
"""
_KEPT = """\
{{ builtin trap '' XFSZ
    {{ {jobs}builtin printf '\\0'; {dump}; builtin printf '\\0'; }} >|/proc/self/fd/{now} &&
    builtin local -a __manyhands_said && builtin mapfile -t -d '' __manyhands_said </proc/self/fd/{now} &&
    [[ ${{#__manyhands_said[@]}} == 2 ]] && {{
      __manyhands_said[2]=${{__manyhands_said[1]/$'\\ndeclare -a BASH_LINENO=([0]="'"$BASH_LINENO"'")'/}}
      builtin local -a __manyhands_last; builtin mapfile -t -d '' __manyhands_last </proc/self/fd/{before}
      [[ $1 == done && $__manyhands_said == '|'* && ${{#__manyhands_said}} -lt {short} ]] &&
        builtin [ "${{__manyhands_said[2]}}" = "${{__manyhands_last-}}" ] && builtin trap - XFSZ && {same} && builtin return
      builtin printf '%s\\0' "${{__manyhands_said[2]}}" >|/proc/self/fd/{before}
      {end}builtin trap - XFSZ
      builtin printf '%s\\0' {token} "$1" "$2" "$PWD" "${{__manyhands_said[@]:0:2}}" >&{status} && builtin return; }}
  }} 2>/dev/null
  builtin trap - XFSZ
  """
_SHORT = 900
"""Characters of the list of jobs and what is added to it beyond which a report is never short: what is written at once stays in one
piece."""
_READY = "printf '\\006' >&{status}"
_SH_BEGINNING = """\
{{ eval {state}; }} >/dev/null 2>&1
cd -- {directory} 2>/dev/null || cd -- {fallback}
exec 8>&1 9>&2 >/dev/null 2>&1
__manyhands_report() {{
  {end}{{ printf '%s\\0%s\\0%s\\0%s\\0' {token} "$1" "$2" "$PWD"; jobs; printf '|'; {more}printf '\\0'
    export -p; printf '\\0'; }} >&9 2>/dev/null
}}
trap '__manyhands_report exit "$?"' EXIT
{ready}
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """How a bash tells whether its state has changed."""

    now: int
    before: int
    """Descriptors of its own."""
    same: str
    """A command that says that it has not, and no jobs run. ``$2`` is the exit code, ``${__manyhands_said#|}`` what ``more`` added."""


def bash_beginning(
    state: ShellState,
    *,
    token: str,
    fallback: str,
    exports: Sequence[str],
    output: int,
    status: int,
    report: int,
    ready: str | None = None,
    end: str = "",
    more: str = "",
    kept: Kept | None = None,
) -> str:
    """The first lines of a bash that goes on from ``state`` and reports to the descriptor ``report``, which it takes as ``status``; what
    commands write goes to its output, which it takes as ``output``. ``fallback``: where to start if the state's directory is gone;
    ``exports``: ``NAME=value``, exported whatever the state says. ``ready``, ``end``, ``more``: commands, each with what ends it, that say
    that it is ready (else a byte to ``status``), that are run first in each report, and that add to the list of its jobs.
    ``kept``: how reports come in few pieces, not line by line, and are short where little is to be said."""
    jobs, setting, gathered = _JOBS + more, "", ""
    if kept is not None:
        path = f"/dev/shm/.{secrets.token_hex(16)}"
        setting = _SETTING.format(path=path, now=kept.now, before=kept.before)
        gathered = _KEPT.format(
            jobs=jobs,
            dump=_STATE,
            now=kept.now,
            before=kept.before,
            same=kept.same,
            short=_SHORT,
            end=end,
            token=token,
            status=status,
        )
    return _BEGINNING.format(
        state=shlex.quote(state.script),
        directory=shlex.quote(state.directory),
        fallback=shlex.quote(fallback),
        exports=shlex.join(exports),
        output=output,
        status=status,
        report=report,
        token=token,
        ready=f"builtin {_READY.format(status=status)}" if ready is None else ready,
        end=end,
        jobs=jobs,
        setting=setting,
        kept=gathered,
        dump=_STATE if kept is None else f'builtin printf %s "$({_STATE})"',
    )


def bash_line(command: str, output: int) -> str:
    """The line that has such a bash run a command and report."""
    return f'builtin eval {_quoted(command)} </dev/null >&{output} 2>&1; __manyhands_report done "$?"\n'


def _quoted(text: str) -> str:
    """As ``shlex.quote``, without its search for what need not be quoted."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def sh_beginning(
    state: ShellState, *, token: str, fallback: str, ready: str | None = None, end: str = "", more: str = ""
) -> str:
    """The same for a plain ``sh``, whose reports go to its errors: what commands write goes to its output."""
    return _SH_BEGINNING.format(
        state=shlex.quote(state.script),
        directory=shlex.quote(state.directory),
        fallback=shlex.quote(fallback),
        token=token,
        ready=_READY.format(status=9) if ready is None else ready,
        end=end,
        more=more,
    )


def sh_line(command: str) -> str:
    """The line that has such a shell run a command and report."""
    return f'command eval {_quoted(command)} </dev/null >&8 2>&1; __manyhands_report done "$?"\n'


@dataclass(frozen=True, slots=True)
class ShellState:
    """What a shell leaves to its successor."""

    directory: str
    """Absolute, as seen inside."""
    script: str = ""
    """Text that such a shell evaluates."""
    jobs: bool = False
    """Whether jobs were running in its background."""

    def to_bytes(self) -> bytes:
        """For a file. Jobs are left out: they do not outlive the sandbox."""
        return b"\0".join(part.encode(errors="surrogateescape") for part in (self.directory, self.script))

    def same_but_for_line(self, other: ShellState) -> bool:
        """Whether a file of one need not be replaced by one of the other: all that differs is how many lines the shell has read."""
        return self.directory == other.directory and _without_line(self.script) == _without_line(other.script)

    @classmethod
    def from_bytes(cls, data: bytes) -> ShellState:
        directory, _, script = data.decode(errors="surrogateescape").partition("\0")
        return cls(directory, script)


def _without_line(script: str) -> str:
    if script.count(_LINE) != 1:
        return script
    before, _, after = script.partition(_LINE)
    return before + after[after.find('"') :]


class Report:
    """Gathers what the report function writes, and knows when it is whole. ``begun``: whether the byte that says that the shell is
    ready is not to come any more."""

    def __init__(self, *, begun: bool = False) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._ends = 0
        self.begun = begun
        self.noise = b""
        """The end of what came before that byte: why the shell does not start."""
        self.arrived = asyncio.Event()

    def feed(self, data: bytes) -> None:
        if not self.begun:
            before, begun, data = data.partition(_BEGUN)
            self.noise = (self.noise + before)[-1000:]
            self.begun = bool(begun)
        self._size += len(data)
        self._ends += data.count(b"\0")
        if self._size <= _MAX_REPORT:
            self._parts.append(data)
        if self._ends >= _FIELDS:
            self.arrived.set()

    def take(self) -> list[str] | None:
        """The fields (token, kind, exit code, directory, jobs, state), or None if what came is not a report."""
        whole, fields = self._size <= _MAX_REPORT, b"".join(self._parts).split(b"\0")
        self._parts, self._size, self._ends = [], 0, 0
        self.arrived.clear()
        if len(fields) != _FIELDS + 1 or not fields[2].isdigit() or len(fields[2]) > 9:
            return None
        text = [field.decode(errors="surrogateescape") for field in fields]
        return text if whole else [*text[:5], ""]


class StateFile:
    """The file in which a shell's last state is kept, for the next shell, also that of a later session. ``directory``: where a first shell
    starts."""

    def __init__(self, file: Path, directory: str) -> None:
        self._file = file
        self._directory = directory
        self._last: ShellState | None = None
        self._saved: ShellState | None = None
        """What the file holds."""
        self.unsaved = False
        """Whether the last state could not be written because the disk was full."""

    @property
    def last(self) -> ShellState:
        """The state in which the last command left its shell."""
        if self._last is None:
            try:
                self._last = ShellState.from_bytes(self._file.read_bytes())
            except OSError:
                self._last = ShellState(self._directory)
        return self._last

    def take(self, state: ShellState) -> None:
        """Remember a state, and write it if it differs from what the file holds. Raises ItemError(SANDBOX_LOST)."""
        self._last = state
        if self._saved is None or not self._saved.same_but_for_line(state):
            self.save()

    def save(self, *, again: bool = False) -> None:
        """Write the last state. ``again``: there was no space before, and must be now. Raises ItemError(SANDBOX_LOST)."""
        state, aside = self.last, self._file.parent.with_name("shell.tmp")
        self._saved = None
        try:
            _write_allocated(aside, state.to_bytes())
            aside.replace(self._file)
            self._saved, self.unsaved = state, False
        except OSError as error:
            if again or not is_full(error):
                raise ItemError(Cause.SANDBOX_LOST, f"can't keep the shell's state: {error.strerror}") from error
            self.unsaved = True


def _write_allocated(file: Path, data: bytes) -> None:
    """Write a file whose space on the disk is taken first: one that took another one's name without would be written out at once by ext4
    (ext4(5), ``auto_da_alloc``), which takes longer than most commands."""
    with file.open("wb", buffering=0) as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, len(data))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        opened.write(data)
