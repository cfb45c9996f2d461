"""What is run in a world beside people's commands: text for any POSIX shell, with nothing but its builtins where it can be.

Processes are known by a *tag*: a value of the resource limit on file locks, which means nothing to kernels since 2.4.25. Every process
inherits it, nobody sees it in an environment, it can be read of processes of any user in ``/proc/PID/limits``, and every shell can set it.
The hard limit is that of a sandbox, the soft one that of a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from manyhands.sandboxes.files.access import printf_format

TOKEN_VARIABLE, STATE_VARIABLE = "MANYHANDS_MARK", "MANYHANDS_STATE"
"""How a command of its own gets its token, and a shell's state; both are removed before what was asked for begins."""

# $1 seconds of processor time, $2 blocks of 512 bytes, $3 the hard tag; shifts them away.
_LIMITS = """\
ulimit -c 0 2>/dev/null; ulimit -t "$1" 2>/dev/null; ulimit -f "$2" 2>/dev/null
ulimit -w "$3" 2>/dev/null || ulimit -x "$3" 2>/dev/null
shift 3
"""
SHELL = (
    _LIMITS
    + """\
if command -v bash >/dev/null 2>&1; then echo bash >&2; exec bash --noprofile --norc -s; fi
echo sh >&2; exec /bin/sh -s
"""
)
"""Becomes the persistent shell, after a line on its errors that names it."""
SERVICE = _LIMITS + "exec /bin/sh -s\n"
"""Becomes a service shell."""
# $1 the soft tag, $2 the directory, then the command; the token is in the environment.
OWN = (
    _LIMITS
    + f"""\
token=${TOKEN_VARIABLE}; unset {TOKEN_VARIABLE}
{{ ulimit -S -w "$1" || ulimit -S -x "$1"; }} 2>/dev/null
exec 9>&2
printf '\\0%s pid %s\\0' "$token" $$ >&9
cd -- "$2" 2>&1 || {{ printf '\\0%s end 126\\0' "$token"; printf '\\0%s end 126\\0' "$token" >&9; exit 126; }}
shift 2
exec 2>/dev/null
trap : HUP INT QUIT TERM USR1 USR2
( exec "$@" ) 2>&1 9>&-
code=$?
printf '\\0%s end %s\\0' "$token" $code; printf '\\0%s end %s\\0' "$token" $code >&9
exit $code
"""
)
"""A command of its own: its output, errors too, comes with marks around it."""
IN_BASH_STATE = f"""\
builtin eval "${STATE_VARIABLE}" >/dev/null 2>&1; builtin unset {STATE_VARIABLE}
builtin cd -- "$1" || exit 126
builtin eval "$2"
"""
IN_SH_STATE = f"""\
eval "${STATE_VARIABLE}" >/dev/null 2>&1; unset {STATE_VARIABLE}
cd -- "$1" || exit 126
eval "$2"
"""
# What becomes of a request: $1 the directory, $2 the soft tag, $3 whether it is alone in its group, then the command.
_REQUEST = """\
printf 'pid %s\\n' $$ >&9
{ ulimit -S -w "$2" || ulimit -S -x "$2"; } 2>/dev/null
cd -- "$1" 2>&1 || { printf 'code 126\\n' >&9; exit; }
group=$3; shift 3
exec 2>/dev/null
trap : HUP INT QUIT TERM USR1 USR2
( exec "$@" ) 2>&1 9>&-
printf 'code %s\\n' $? >&9
[ -z "$group" ] || kill -KILL 0
"""
_SERVICE_BEGINNING = """\
exec 9>&2 2>/dev/null
request={request}
setsid=; group=
if command -v setsid >/dev/null; then setsid=setsid; group=1; fi
cat=; if command -v cat >/dev/null; then cat=1; fi
mark() {{ printf '\\0%s %s\\0' {token} "$1"; printf '\\0%s %s\\0' {token} "$1" >&9; }}
idle() {{ number=$1; set -- /proc/[0-9]*; printf "\\000{token} idle $number $*\\000" >&9; }}
while read -r key user rest; do [ "$key" = Uid: ] && break; done </proc/self/status
printf '\\0%s ready %s %s\\0' {token} $$ "$user" >&9
idle 0
"""
_ALIVE = "case ${line##*) } in Z*|X*) continue ;; esac"
# Without a process of its own, and with one; the latter for machines with many processes.
_TAGGED = """\
found=
for file in /proc/[0-9]*/limits; do
  while read -r one two three soft hard rest; do
    [ "$one $two $three" = "Max file locks" ] || continue
    case "$soft $hard" in {pattern}) found="$found $file" ;; esac
    break
  done <"$file"
done 2>/dev/null
"""
_TAGGED_AMONG_MANY = """\
found=$(grep -ls "^Max file locks  *{soft}  *{hard}  *locks" /proc/[0-9]*/limits 2>/dev/null)
"""
LOOK = """\
for file in /proc/[0-9]*/stat; do
  line=; read -r line <"$file" || { file=${file%/stat}; echo "gone ${file#/proc/}"; continue; }
  rest=${line##*) }; set -f; set -- $rest; set +f
  printf '%s %s %s %s\\n' "${line%% *}" "$1" "$2" "$4"
done 2>/dev/null
true
"""
"""Lists all processes: id, state, parent, session; of those that ended meanwhile ``gone`` and the id."""


def service_beginning(token: str) -> str:
    return _SERVICE_BEGINNING.format(token=token, request=shlex.quote(_REQUEST))


def request(
    number: int,
    command: Sequence[str],
    *,
    directory: str,
    soft: int,
    input: bytes | None,
    environment: Mapping[str, str] | None,
) -> bytes:
    """Lines for a service shell that run a command as request ``number``: on its errors come ``pid N`` and ``code N``, each as a line, and
    the end's mark, which also stands behind its output."""
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in (environment or {}).items())
    words = shlex.join([directory, str(soft)]) + ' "$group" ' + shlex.join(command)
    given = "" if not input else f"printf {printf_format(input)} | "
    taken = "" if input else " </dev/null"
    body = (
        f"{{ {given}( {exports}exec $setsid /bin/sh -c \"$request\" sh {words} ){taken} 2>&1; mark 'end {number}'; }}"
    )
    return f'if [ "$cat" ]; then {body} | cat; else {body}; fi\nidle {number}\n'.encode(errors="surrogateescape")


def order(number: int, script: str) -> bytes:
    """Lines for a service shell that run a script of ours in the shell itself, so that it works where no process can be started."""
    return f'{{\n{script}\n}} </dev/null 2>&1 9>&-\nmark "end {number} $?"\nidle {number}\n'.encode()


def inner_request(number: int, script: str, arguments: Sequence[str]) -> bytes:
    """Lines for a service shell that run a script of ours, for itself, with arguments."""
    body = f"set -- {shlex.join(arguments)}\n{script}" if arguments else script
    return f'(\n{body}\n) </dev/null 2>&1 9>&-\nmark "end {number} $?"\nidle {number}\n'.encode(
        errors="surrogateescape"
    )


def tagged(hard: int, soft: int | None, *, alone: bool) -> str:
    """A script that finds the processes with a tag (without ``soft``: with any of the sandbox). ``alone``: whether there are few others."""
    if not alone:
        return _TAGGED_AMONG_MANY.format(soft="[0-9]*" if soft is None else soft, hard=hard)
    return _TAGGED.format(pattern=f'*" {hard}"' if soft is None else f'"{soft} {hard}"')


def signalled(
    signal: str, hard: int, soft: int | None, *, alone: bool, first: Sequence[int] = (), rounds: int = 1
) -> str:
    """A script that sends a signal to ``first``, then to every process with a tag that has not ended, for ``rounds`` rounds; lists those
    found in the last one."""
    found = tagged(hard, soft, alone=alone)
    kill = "".join(f"kill -{signal} {pid} 2>/dev/null\n" for pid in first)
    return f"""\
{kill}round=0
while [ "$round" -lt {rounds} ]; do
  round=$((round + 1))
  {found}
  left=
  for file in $found; do
    id=${{file#/proc/}}; id=${{id%/*}}
    line=; read -r line <"/proc/$id/stat" || continue
    {_ALIVE}
    left="$left $id"
  done 2>/dev/null
  [ "$left" ] || break
  kill -{signal} $left 2>/dev/null
done
echo $left
"""


_ALL = "finder=; found='/proc/[0-9]*'"
"""A pattern, so that no process of ours comes and goes by looking."""
_OWN_OR_GONE = """\
found=$(read -r line </proc/self/stat; echo "${{line%% *}}"
    exec grep -l "^Max file locks  *[0-9]*  *{hard}  *locks" /proc/[0-9]*/limits 2>&1)
  finder=${{found%%[!0-9]*}}"""
"""Also names what is gone, in ``grep``'s errors; the others' words are the same each time, and no ids. Begins with its own id."""
_FROZEN = """\
leave=" {leave} "; stopped=; before=; round=0
while [ "$round" -lt {rounds} ]; do
  round=$((round + 1)); now=; left=
  {found}
  for file in $found; do
    id=${{file#/proc/}}; id=${{id%%/*}}
    case "$leave$self $finder " in *" $id "*) continue ;; esac
    line=; read -r line <"/proc/$id/stat" || {{ now="$now gone:$id"; continue; }}
    case ${{line##*) }} in T*|t*|Z*|X*) now="$now $id" ;; *) left="$left $id" ;; esac
  done 2>/dev/null
  if [ "$left" ]; then kill -STOP $left 2>/dev/null; stopped="$stopped $left"
  elif [ "$now" = "$before" ]; then echo $stopped; exit 0; fi
  before=$now
done
echo $stopped
exit 1
"""


def frozen(leave: Iterable[int], hard: int | None, *, rounds: int = 200) -> str:
    """A script that stops all processes but those to ``leave`` alone (``hard``: only those with this tag), until two looks have found the
    same ones standing; lists what it stopped, and fails if that was in vain. A process that ended while it looked makes one look differ
    from the next: it may have left another one, which the look did not see."""
    found = _ALL if hard is None else _OWN_OR_GONE.format(hard=hard)
    own = "read -r line </proc/self/stat; self=${line%% *}\n"
    return own + _FROZEN.format(leave=" ".join(map(str, leave)), rounds=rounds, found=found)
