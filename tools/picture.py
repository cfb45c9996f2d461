"""Makes ``docs/images/run.svg``: a moving picture of a terminal in which a real run is killed half way, and resumed.

    .venv/bin/python tools/picture.py

The commands run in a pseudo-terminal, in a folder of their own that is removed afterwards. Nothing is made up: the
picture shows what they wrote, when they wrote it; only the typing of the commands is added. Where pictures don't move
(by the reader's wish, or in a program without animations), the last moment is shown.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "run.svg"
COLUMNS, LINES = 98, 19
BATCH = "manyhands batch examples/prompts.jsonl --model simulated --simulated_latency 1"
RESUME = "manyhands resume"
ENDING = "manyhands status"
KILLED = "Killed"
KILLED_AT = re.compile(r"\b(1\d|2[0-2])/30\b")
"""What the bar says when the run is killed."""
LONGEST = 120.0
LARGEST = 100_000
OFTEN = 0.2
"""Seconds between two moments at least: what was written in between is seen together."""
TYPING, READING, LAST = 0.12, 1.2, 6.0
"""Seconds for each typed word, after each command's end, and for the last moment."""

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ERASED = re.compile(r"^.*\r?\x1b\[2K")
_CURSOR = re.compile(r"\x1b\[\?25[lh]|\x1b\[1A")
_NORMAL = "1e2026 e06c75 98c379 e5c07b 61afef c678dd 56b6c2 d8dbe2"
_BRIGHT = "5c6370 f08088 aad68c f0d296 82c3fa d796eb 78cdd7 ffffff"
_WIDTH, _HEIGHT, _FONT = 12.2, 24.4, 20
"""Of a character, of a line, of the font, in the picture's units."""
_LEFT, _TOP = 18, 52

Row = tuple[Segment, ...]
"""A line of the terminal, in pieces of one style."""


@dataclass(frozen=True)
class Moment:
    """What the terminal has shown, from its first line on, and for how many seconds it shows that."""

    rows: tuple[Row, ...]
    seconds: float


def _colours(text: str) -> list[tuple[int, int, int]]:
    return [(number >> 16, number >> 8 & 255, number & 255) for number in (int(word, 16) for word in text.split())]


THEME = TerminalTheme((30, 32, 38), (216, 219, 226), _colours(_NORMAL), _colours(_BRIGHT))


def recorded(command: str, folder: Path, killed_at: re.Pattern[str] | None = None) -> Iterator[tuple[float, str]]:
    """All that a command has written to a terminal so far, and the seconds since its start, from time to time.

    ``killed_at``: what it has written when it gets SIGKILL.
    """
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
    output, began = bytearray(), time.monotonic()
    while time.monotonic() < began + LONGEST:
        try:
            output += os.read(master, 65536)
        except OSError:  # the other side is closed: the command has ended
            break
        text = output.decode(errors="replace")
        yield time.monotonic() - began, text
        if killed_at is not None and killed_at.search(_COLOURS.sub("", screen(text))):
            process.kill()
            break
    process.wait(10)
    os.close(master)


def screen(output: str) -> str:
    """What is left to be seen of an output in which lines were written over."""
    lines = _CURSOR.sub("", output).replace("\r\n", "\n").split("\n")
    return "\n".join(_ERASED.sub("", line).rstrip("\r") for line in lines).rstrip("\n")


class Film:
    """The moments of a terminal in their order."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._console = Console(width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        self._above: tuple[Row, ...] = ()

    def type(self, command: str) -> None:
        """Show a command as it is typed, word by word."""
        words = command.split(" ")
        for number in range(1, len(words) + 1):
            self._show(Text("$ " + " ".join(words[:number]), style="bold green"), TYPING)
        self._keep(READING / 2)

    def run(self, command: str, folder: Path, killed_at: re.Pattern[str] | None = None) -> None:
        """Type a command, then show what it writes, while it writes."""
        self.type(command)
        shown, text = 0.0, ""
        for seconds, text in recorded(command, folder, killed_at):
            if seconds - shown >= OFTEN:
                self._show(Text.from_ansi(screen(text)), seconds - shown)
                shown = seconds
        self._show(Text.from_ansi(screen(text)), 0)
        self._keep(READING)

    def say(self, text: str, style: str, seconds: float) -> None:
        """Show a line that no command has written."""
        self._show(Text(text, style=style), 0)
        self._keep(seconds)

    def _show(self, text: Text, seconds: float) -> None:
        lines = self._console.render_lines(text, pad=False)
        rows = tuple(tuple(Segment.simplify(line)) for line in lines)
        self.moments.append(Moment(self._above + rows, seconds))

    def _keep(self, seconds: float) -> None:
        """What is shown stays, for so many seconds alone; what comes is below."""
        last = self.moments.pop()
        self.moments.append(Moment(last.rows, last.seconds + seconds))
        self._above = last.rows


def film() -> list[Moment]:
    """A run that is killed half way, and resumed."""
    made = Film()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples")
        made.run(BATCH, folder, KILLED_AT)
        made.say(f"{KILLED}   # kill -9, in the middle of some conversations", "bold red", 2 * READING)
        made.run(RESUME, folder)
        made.run(ENDING, folder)
    made.say("$ ", "bold green", LAST)
    return made.moments


class Drawing:
    """The moments as SVG: each line of each moment is drawn once, and seen while it is there."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        self._moments = moments
        self._starts = [0.0]
        for moment in moments:
            self._starts.append(self._starts[-1] + moment.seconds)
        self._styles: dict[str, str] = {}
        self._times: dict[tuple[int, int], str] = {}

    def svg(self) -> str:
        """The picture, without references to fonts or anything else on other machines."""
        body = "\n".join(self._lines())
        width, height = COLUMNS * _WIDTH + 2 * _LEFT, LINES * _HEIGHT + _TOP + 18
        dots = "".join(
            f'<circle cx="{26 + 22 * number}" cy="26" r="7" fill="#{colour}"/>'
            for number, colour in enumerate(("ff5f57", "febc2e", "28c840"))
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" xml:space="preserve">\n'
            "<title>A run of 30 prompts is killed half way, and resumed</title>\n"
            f"<style>\n{self._css()}</style>\n"
            f'<rect x="1" y="1" width="{width - 2:g}" height="{height - 2:g}" rx="10" fill="{THEME.background_color.hex}"'
            ' stroke="#5c6370"/>\n'
            f"{dots}\n"
            f'<svg x="{_LEFT}" y="{_TOP}" width="{COLUMNS * _WIDTH:g}" height="{LINES * _HEIGHT:g}">\n'
            f'<g class="moving">\n{body}\n</g>\n</svg>\n</svg>\n'
        )

    def _lines(self) -> Iterator[str]:
        for number in range(max(len(moment.rows) for moment in self._moments)):
            for row, begin, end in self._seen(number):
                pieces = "".join(self._pieces(row, (number + 0.75) * _HEIGHT))
                if pieces:
                    yield f"<g{self._time(begin, end)}>{pieces}</g>"

    def _seen(self, number: int) -> Iterator[tuple[Row, int, int]]:
        """What a line holds, with the moment from which and the one before which it does."""
        held: tuple[Row, int] | None = None
        for at, moment in enumerate(self._moments):
            row = moment.rows[number] if number < len(moment.rows) else None
            if held is not None and row != held[0]:
                yield *held, at
                held = None
            if held is None and row is not None:
                held = (row, at)
        if held is not None:
            yield *held, len(self._moments)

    def _pieces(self, row: Row, y: float) -> Iterator[str]:
        column = 0
        for text, style, _ in row:
            inner = text.strip(" ")
            if inner:
                x = (column + len(text) - len(text.lstrip(" "))) * _WIDTH
                yield (
                    f'<text class="{self._style(style or Style.null())}" x="{x:g}" y="{y:g}"'
                    f' textLength="{len(inner) * _WIDTH:g}">{escape(inner)}</text>'
                )
            column += len(text)

    def _style(self, style: Style) -> str:
        """The name of the class for a style."""
        colour = THEME.foreground_color if style.color is None else style.color.get_truecolor(THEME)
        rules = f"fill:{colour.hex}"
        rules += ";font-weight:bold" * bool(style.bold) + ";font-style:italic" * bool(style.italic)
        rules += ";opacity:.6" * bool(style.dim)
        return self._styles.setdefault(rules, f"s{len(self._styles)}")

    def _time(self, begin: int, end: int) -> str:
        """The class of what is seen from one moment until before another; none if that is always."""
        if (begin, end) == (0, len(self._moments)):
            return ""
        return f' class="{self._times.setdefault((begin, end), f"t{len(self._times)}")}"'

    def _css(self) -> str:
        font = f"font:{_FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
        rules = [f"text{{{font};white-space:pre}}"]
        rules += [f".{name}{{{rule}}}" for rule, name in self._styles.items()]
        rules.append(f"[class^=t],.moving{{animation:{self._starts[-1]:.2f}s step-end infinite}}")
        for (begin, end), name in self._times.items():
            seen = [(begin, "visible")] if begin == 0 else [(0, "hidden"), (begin, "visible")]
            seen += [] if end == len(self._moments) else [(end, "hidden")]
            frames = "".join(f"{self._percent(at)}{{visibility:{what}}}" for at, what in seen)
            rules.append(f"@keyframes {name}{{{frames}}}.{name}{{animation-name:{name};visibility:{seen[-1][1]}}}")
        frames = "".join(f"{self._percent(at)}{{{self._moved(at)}}}" for at in range(len(self._moments)))
        rules.append(f"@keyframes moving{{{frames}}}.moving{{animation-name:moving;{self._moved(-1)}}}")
        rules.append("@media (prefers-reduced-motion:reduce){[class^=t],.moving{animation:none}}")
        return "\n".join(rules) + "\n"

    def _percent(self, moment: int) -> str:
        return f"{100 * self._starts[moment] / self._starts[-1]:.2f}%"

    def _moved(self, moment: int) -> str:
        """How far a terminal has scrolled that shows the last lines."""
        hidden = max(0, len(self._moments[moment].rows) - LINES)
        return f"transform:translateY({-hidden * _HEIGHT:g}px)"


def main() -> int:
    moments = film()
    shown = "".join(segment.text for row in moments[-1].rows for segment in row)
    if "30/30" not in shown:
        raise RuntimeError(f"the run did not get to its end:\n{shown}")
    svg = Drawing(moments).svg()
    if len(svg.encode()) > LARGEST:
        raise RuntimeError(f"the picture has {len(svg.encode())} bytes, {LARGEST} is the most")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(svg, encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {len(svg.encode())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
