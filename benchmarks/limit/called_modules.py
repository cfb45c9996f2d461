"""A child: the command run in this process, and which of the modules that it imported had none of their functions called.

Arguments: ``words`` of the command. What happens while a module is imported does not count.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import FrameType
from typing import Any

from benchmarks.children import arguments, report


class Calls:
    """The files of whose functions one was called."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._importing = threading.local()

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """A profile function."""
        code, importing = frame.f_code, getattr(self._importing, "depth", 0)
        if code.co_name == "<module>":
            self._importing.depth = importing + {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code.co_flags & inspect.CO_OPTIMIZED:
            self.files.add(code.co_filename)


def main() -> None:
    words, before, calls = arguments()["words"], set(sys.modules), Calls()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    from manyhands.cli.main import main as command

    sys.argv = ["manyhands", *words]
    code = command()
    sys.setprofile(None)
    if code:
        sys.exit(code)
    new = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name not in before}
    report(never=sorted(name for name, file in new.items() if (file or "").endswith(".py") and file not in calls.files))


if __name__ == "__main__":
    os.environ["MANYHANDS_DEBUG"] = "1"
    main()
