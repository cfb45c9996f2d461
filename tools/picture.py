"""Makes ``docs/images/run.svg``: what a terminal shows of a real run that is killed half way, and resumed.

    .venv/bin/python tools/picture.py

The commands run in a pseudo-terminal, in a folder of their own that is removed afterwards. Nothing is made up: the
picture holds what they wrote.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "run.svg"
COLUMNS, LINES = 118, 60
BATCH = (
    "manyhands batch --dataset_file=examples/prompts.jsonl --batch_size=5 --run_name=first "
    "--model=simulated --simulated_latency=0.4 --distribution=terminal_only --concurrency=2"
)
KILLED_AT = re.compile(r"\b(1[2-9]|2\d)/30\b")
"""What the bar says when the run is killed."""
LONGEST = 120.0
LARGEST = 100_000

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ERASED = re.compile(r"^.*\r?\x1b\[2K")
_CURSOR = re.compile(r"\x1b\[\?25[lh]|\x1b\[1A")
_WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_NORMAL = "1e2026 e06c75 98c379 e5c07b 61afef c678dd 56b6c2 d8dbe2"
_BRIGHT = "5c6370 f08088 aad68c f0d296 82c3fa d796eb 78cdd7 ffffff"


def _colours(text: str) -> list[tuple[int, int, int]]:
    return [(number >> 16, number >> 8 & 255, number & 255) for number in (int(word, 16) for word in text.split())]


THEME = TerminalTheme((30, 32, 38), (216, 219, 226), _colours(_NORMAL), _colours(_BRIGHT))


def recorded(command: str, folder: Path, killed_at: re.Pattern[str] | None = None) -> str:
    """What a command writes to a terminal. ``killed_at``: what it has written when it gets SIGKILL."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "HOME": str(folder),
    }
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    output, ends_at = bytearray(), time.monotonic() + LONGEST
    while time.monotonic() < ends_at:
        try:
            output += os.read(master, 65536)
        except OSError:  # the other side is closed: the command has ended
            break
        if killed_at is not None and killed_at.search(_COLOURS.sub("", output.decode(errors="replace"))):
            process.kill()
            break
    process.wait(10)
    os.close(master)
    return output.decode(errors="replace")


def screen(output: str) -> str:
    """What is left to be seen of an output in which lines were written over."""
    lines = _CURSOR.sub("", output).replace("\r\n", "\n").split("\n")
    return "\n".join(_ERASED.sub("", line).rstrip("\r") for line in lines).rstrip("\n")


def prompt(command: str) -> Text:
    """A command as it is typed, on several lines if need be."""
    words = command.split(" ")
    lines, line = [], "$"
    for word in words:
        if len(line) + len(word) + 3 > COLUMNS:
            lines.append(line + " \\")
            line = "   "
        line += " " + word
    return Text("\n".join([*lines, line]), style="bold green")


def picture() -> str:
    """The picture as SVG, without references to fonts on other machines."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples")
        resume = "manyhands resume data/first"
        console.print(prompt(BATCH))
        console.print(Text.from_ansi(screen(recorded(BATCH, folder, KILLED_AT))))
        console.print(Text("Killed   (by kill -9, half way)", style="bold red"))
        console.print(prompt(resume))
        console.print(Text.from_ansi(screen(recorded(resume, folder))))
    svg = console.export_svg(title="manyhands", theme=THEME, unique_id="run")
    return _WEB_FONTS.sub("", svg).replace("Fira Code", "ui-monospace, Menlo, Consolas")


def main() -> int:
    svg = picture()
    if "30 of 30" not in svg.replace("&#160;", " ") and "30/30" not in svg:
        raise RuntimeError("the run did not get to its end; look at the picture")
    if len(svg.encode()) > LARGEST:
        raise RuntimeError(f"the picture has {len(svg.encode())} bytes, {LARGEST} is the most")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(svg, encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {len(svg.encode())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
