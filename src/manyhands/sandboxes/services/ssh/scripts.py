"""What runs on the other machine: scripts for its ``sh``.

They go there by standard input, so that no value is seen in a command line of either machine. The machine must be a Linux with GNU's
``tar``, ``cp``, ``grep`` and ``find``.

A world is a link ``worlds/ID`` to a folder ``files/NAME`` with ``workspace`` (also the home of its commands), ``tmp``, and, for us,
``id``, ``labels`` (a line of JSON), ``start`` (what each of its commands begins with), ``tag`` (by which its processes are found) and
``owner`` (the connection with which they end). The name depends on the attempt alone, so a world that is made of a snapshot has the paths
of the one that it was taken of. A snapshot is ``snapshots/ID`` with ``workspace``, ``tmp`` and ``labels``. ``connections/TOKEN`` names the
worlds that end with a connection.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping

from manyhands.sandboxes.protocol import SandboxLimits

WORLD = "MANYHANDS_WORLD"
"""The environment variable by which a world's processes are found."""
EXISTS, GONE, NO_FOLDER, MISSING = 71, 72, 73, 74
"""Exit codes of scripts: there is such a world already, there is none (any more), there is no such directory, no such file."""
_BLOCK = 512
_FIRST_TAG = 2 * 10**18
_TAGS = 6 * 10**18

# Ends all processes whose environment has one of the entries $1 (a line each), or whose limits hold one of the numbers $2, with their
# groups: processes that start each other faster than they are found have a group at least. A zombie is nobody's any more.
_END = """\
end_marked() {
  round=0; read -r own </proc/self/stat; own=${own##*) }; own=${own#* * }; own=${own%% *}
  while [ "$round" -lt 100 ]; do
    round=$((round + 1)); killed=
    found=$(printf '%s\\n' "$1" | grep -lsazxF -f - /proc/[0-9]*/environ 2>/dev/null
      printf '%s\\n' "$2" | grep -lsF -f - /proc/[0-9]*/limits 2>/dev/null)
    for file in $found; do
      process=${file#/proc/}; process=${process%/*}
      { read -r state <"/proc/$process/stat"; } 2>/dev/null || continue
      state=${state##*) }
      case $state in Z*) continue ;; esac
      group=${state#* * }; group=${group%% *}
      [ "$group" -le 1 ] || [ "$group" = "$own" ] || kill -KILL "-$group" 2>/dev/null
      kill -KILL "$process" 2>/dev/null
      killed=yes
    done
    [ -n "$killed" ] || return 0
  done
  return 1
}
"""

# Removes a folder, whatever modes are in it; first under another name, so that nobody finds half of it.
_REMOVE = """\
remove() {
  [ -e "$1" ] || return 0
  gone=../gone/${1##*/}.$$
  mkdir -p ../gone && mv -- "$1" "$gone" || return 1
  rm -rf -- "$gone" 2>/dev/null || { chmod -R u+rwX -- "$gone" 2>/dev/null; rm -rf -- "$gone"; }
}
"""

# Sets the name and the tag of the world $1.
_KNOW = """\
know() {
  name=$(readlink -- "$1") || return 1
  name=${name##*/}
  { read -r id <"$1/id" && read -r tag <"$1/tag"; } 2>/dev/null && [ "$id" = "$1" ]
}
"""

_COPY = """\
copied() {
  cp -a --reflink=auto -- "$1/workspace" "$2/workspace" && cp -a --reflink=auto -- "$1/tmp" "$2/tmp"
}
"""

# Prints what is known of the machine, a line each: the folder, who we are, which machine, which start of it, and what is missing.
PREPARE = """\
umask 077
mkdir -p -- "$1" && cd -- "$1" && mkdir -p worlds files snapshots connections gone || exit 1
find gone connections -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} + 2>/dev/null
pwd -P
id -un
id -u
cat /etc/machine-id 2>/dev/null || hostname
cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo
missing=
[ "$(uname -s)" = Linux ] || missing="Linux"
for program in tar grep find cp du; do command -v "$program" >/dev/null || missing="$missing $program"; done
grep -sazqF -e "PATH=" /proc/$$/environ || missing="$missing GNU-grep"
echo "$missing"
"""

# The process at the other end of a connection's first session. At the end of its input, or if nothing came on it for three minutes, it
# ends all that runs in the worlds of the connection. $1: the folder; $2: the connection's token; $3: seconds between looks; $4: what it
# says when it has begun.
GUARD = (
    _END
    + """\
trap '' HUP INT PIPE
cd -- "$1" || exit 1
umask 077
mine=connections/$2; mkdir -p -- "$mine" && : >"$mine/beat" || exit 1
finish() {
  mkdir "$mine/ending" 2>/dev/null || return 1
  names=; tags=
  for file in "$mine"/world-*; do
    name=${file##*/world-}
    { read -r owner <"files/$name/owner"; } 2>/dev/null || continue
    [ "$owner" = "$token" ] || continue
    { read -r tag <"$file"; } 2>/dev/null || continue
    names="$names
MANYHANDS_WORLD=$name"; tags="$tags
 $tag "
  done
  [ -z "$names" ] || end_marked "${names#?}" "${tags#?}"
  rm -rf -- "$mine"
}
token=$2
main=$$
( exec </dev/null >/dev/null 2>&1
  trap 'kill "$!"; exit 0' TERM
  while :; do
    sleep "$3" & wait "$!"
    [ -d "$mine" ] || exit 0
    [ -n "$(find "$mine/beat" -mmin -3)" ] || { finish; kill -KILL "$main"; exit 0; }
  done ) &
watch=$!
printf '\\n%s\\n' "$4"; printf '\\n%s\\n' "$4" >&2
while read -r beat; do : >"$mine/beat"; done
finish || sleep 60
kill -TERM "$watch"
"""
)

# $1: the world; $2: its labels; $3: what its commands begin with; $4: the snapshot that it is made of, or nothing; $5: where commands
# start, if that has to be made; $6: the same, if it has to be there; $7: the connection's token; $8: the world's tag; $9: its name.
# What has this name already is of the same attempt, by a process that died before it could note that.
CREATE = (
    _END
    + _COPY
    + _REMOVE
    + """\
umask 077
{ [ -e "$1" ] || [ -L "$1" ]; } && exit 71
into=../files/$9
if [ -d "$into" ]; then
  end_marked "MANYHANDS_WORLD=$9" " $8 "
  { read -r former <"$into/id" && [ -L "$former" ] && rm -f -- "$former"; } 2>/dev/null
  remove "$into"
fi
failed() { rm -f -- "$2"; remove "$into"; exit "$1"; }
mkdir -- "$into" && ln -s "$into" "$1" || exit 1
{ printf '%s\\n' "$1" >"$into/id" && printf '%s\\n' "$8" >"$into/tag" && printf '%s\\n' "$2" >"$into/labels" &&
  printf '%s\\n' "$3" >"$into/start"; } || failed 1 "$1"
if [ -n "$4" ]; then
  [ -d "../snapshots/$4" ] || failed 74 "$1"
  copied "../snapshots/$4" "$into" || failed 1 "$1"
else
  mkdir -- "$into/workspace" "$into/tmp" || failed 1 "$1"
fi
[ -z "$5" ] || mkdir -p -- "$into/workspace/$5" || failed 73 "$1"
[ -z "$6" ] || [ -d "$6" ] || failed 73 "$1"
printf '%s\\n' "$7" >"$into/owner" && printf '%s\\n' "$8" >"../connections/$7/world-$9" || failed 1 "$1"
"""
)

# The world ends with this connection from now on. $1: the world; $2: the connection's token.
START = (
    _END
    + _KNOW
    + """\
umask 077
know "$1" && [ -f "$1/start" ] && [ -d "$1/workspace" ] || exit 72
{ read -r owner <"$1/owner"; } 2>/dev/null
[ "$owner" = "$2" ] && exit 0
printf '%s\\n' "$2" >"$1/owner" && printf '%s\\n' "$tag" >"../connections/$2/world-$name" || exit 1
end_marked "MANYHANDS_WORLD=$name" " $tag "
"""
)

# $1: the world.
STOP = _END + _KNOW + 'know "$1" || exit 0\nend_marked "MANYHANDS_WORLD=$name" " $tag "\n'

# The same.
DELETE = (
    _END
    + _KNOW
    + _REMOVE
    + """\
[ -L "$1" ] || exit 0
if know "$1"; then
  end_marked "MANYHANDS_WORLD=$name" " $tag "
  { read -r owner <"$1/owner" && rm -f -- "../connections/$owner/world-$name"; } 2>/dev/null
  remove "../files/$name" || exit 1
fi
rm -f -- "$1"
"""
)

# $1: the world; $2: the snapshot; $3: its labels.
SNAPSHOT = (
    _COPY
    + _REMOVE
    + """\
umask 077
[ -d "$1/workspace" ] || exit 72
cd ../snapshots && mkdir -- "$2.part" || exit 1
{ copied "../worlds/$1" "$2.part" && printf '%s\\n' "$3" >"$2.part/labels" && mv -- "$2.part" "$2"; } ||
  { remove "$2.part"; exit 1; }
"""
)

# $1: the snapshot.
DELETE_SNAPSHOT = _REMOVE + 'cd ../snapshots && remove "$1"\n'

# $1: the world; $2: seconds at most.
SIZE = """\
[ -d "$1/workspace" ] || exit 72
timeout "$2" du -skD --apparent-size -- "$1/workspace" "$1/tmp" 2>/dev/null
"""

# Prints a line for each world and snapshot: its kind, 1 if something runs in it, its name, its labels; behind an empty line, KiB and folder
# of each. $1: seconds at most for the sizes.
LIST = """\
cd .. || exit 1
running=$(cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^MANYHANDS_WORLD=//p' | sort -u)
for folder in worlds/* snapshots/*; do
  [ -f "$folder/labels" ] || continue
  name=${folder##*/}; kind=${folder%/*}
  case $name in *.part) continue ;; esac
  runs=0
  if [ "$kind" = worlds ]; then
    target=$(readlink -- "$folder")
    case "
$running
" in *"
${target##*/}
"*) runs=1 ;; esac
  fi
  { read -r labels <"$folder/labels"; } 2>/dev/null || continue
  printf '%s\\t%s\\t%s\\t%s\\n' "$kind" "$runs" "$name" "$labels"
done
printf '\\n'
timeout "$1" du -skD --apparent-size -- worlds/* snapshots/* 2>/dev/null
exit 0
"""

# Writes a tar archive. $1: the folder; $2: what is in it.
GET = """\
[ -e "$1/$2" ] || [ -L "$1/$2" ] || exit 74
tar -c -f - -C "$1" -- "$2"
code=$?
[ "$code" -le 1 ] || exit "$code"
"""

# Unpacks a tar archive. $1: the folder.
PUT = """\
[ -d "$1" ] || exit 73
tar -x -p --numeric-owner -f - -C "$1"
"""


def word(text: str) -> str:
    """The text as one word of a script. Raises ValueError for a NUL."""
    if "\0" in text:
        raise ValueError("a NUL byte can't be passed to a command")
    return shlex.quote(text)


def on_one_line(script: str) -> bytes:
    """A script as one line, since that is what ``read`` takes."""
    quoted = shlex.quote(script).replace("\n", "'\"$NL\"'")
    return f"NL=$(printf '\\012_'); NL=${{NL%_}}; eval {quoted}\n".encode("utf-8", "surrogateescape")


def called(script: str, *arguments: str, folder: str | None = None) -> str:
    """A script with its positional parameters, run in a folder. Raises ValueError for a NUL."""
    words = "".join(f" {word(argument)}" for argument in arguments)
    enter = "" if folder is None else f"cd -- {word(folder)} || exit {GONE}\n"
    return f"{enter}set --{words}\n{script}"


def tag_of(folder: str, name: str) -> int:
    """The number by which the processes of the world of that name are found even if they shed their environment: a limit of
    real-time processes that they all inherit, thousands of years long (``processes.strays`` has more of this)."""
    digest = hashlib.sha256(f"{folder}\0{name}".encode()).digest()
    return _FIRST_TAG + int.from_bytes(digest[:8], "big") % _TAGS


def exports(environment: Mapping[str, str]) -> list[str]:
    """Lines that set variables. Raises ValueError for a name that is none."""
    for name in environment:
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is no name of a variable")
    return [f"export {name}={word(value)}" for name, value in environment.items()]


def start_of(environment: Mapping[str, str], limits: SandboxLimits, directory: str, tag: int) -> str:
    """What each command of a world begins with: its variables, limits and directory. Raises ValueError for a name that is none."""
    lines = [
        *exports(environment),
        f"{{ ulimit -c 0; ulimit -t {max(1, limits.cpu_seconds)}; ulimit -f {max(1, limits.file_size // _BLOCK)}",
        f"ulimit -v {max(1, limits.memory >> 10)}",
        f"prlimit --pid $$ --rttime={tag}:{tag}; }} >/dev/null 2>&1",
        f"cd -- {word(directory)} || exit {NO_FOLDER}",
        "unset OLDPWD",
    ]
    return "\n".join(lines)
