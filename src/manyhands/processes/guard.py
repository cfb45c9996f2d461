"""A small process that outlives a killed owner just long enough to end what the owner's sandbox left running.

For sandboxes whose commands do not end with the process that started them by themselves. It needs a shell and GNU grep; where they
are missing, the next opening of the run ends what is left.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import Process, close_all, fresh_pipes
from manyhands.processes.tags import Tags

# Ends at a line on its input. At the end of its input without one, its owner is gone: it kills every process whose
# environment holds $1, or whose tag begins with $2, as often as it finds one (at most ten times).
_SCRIPT = """\
trap '' HUP INT QUIT TERM
read -r word && exit 0
round=0
while [ "$round" -lt 10 ]; do
  round=$((round + 1))
  found=$(grep -lsazxF -e "$1" /proc/[0-9]*/environ 2>/dev/null
    [ -z "$2" ] || grep -ls -e " $2[0-9][0-9]* " /proc/[0-9]*/limits 2>/dev/null)
  [ -n "$found" ] || exit 0
  for file in $found; do
    process=${file#/proc/}
    kill -KILL "${process%/*}" 2>/dev/null
  done
done
"""

# The like for the process groups that are named.
_GROUPS_SCRIPT = """\
trap '' HUP INT QUIT TERM
read -r word && exit 0
for group; do kill -KILL "-$group" 2>/dev/null; done
"""


class Guard:
    """Kills every process that carries ``mark`` (``NAME=value`` in its environment), or one of ``tags``, when this process ends without
    ``dismiss``; or, with ``groups``, all of these process groups.

    Must be made in the event loop's thread. Raises ItemError(SANDBOX_LOST).
    """

    def __init__(self, mark: str = "", tags: Tags | None = None, *, groups: Sequence[int] | None = None) -> None:
        ((watched, self._lifeline),) = fresh_pipes(1)
        nowhere = -1
        try:
            nowhere = _open_nowhere()
            marked = [_SCRIPT, "sh", mark, "" if tags is None else tags.text]
            words = marked if groups is None else [_GROUPS_SCRIPT, "sh", *map(str, groups)]
            command = ["/bin/sh", "-c", *words]
            self._process = Process(command, {"PATH": os.defpath}, stdin=watched, output=nowhere)
        except BaseException:
            close_all(self._lifeline)
            raise
        finally:
            close_all(watched, nowhere)

    async def dismiss(self) -> None:
        """End it: everything has been ended. Idempotent."""
        if self._lifeline < 0:
            return
        lifeline, self._lifeline = self._lifeline, -1
        with suppress(OSError):  # somebody may have killed it
            os.write(lifeline, b"\n")
        close_all(lifeline)
        if await self._process.wait_for(2.0) is None:
            self._process.kill()


def _open_nowhere() -> int:
    try:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't open {os.devnull}: {error.strerror}") from error
