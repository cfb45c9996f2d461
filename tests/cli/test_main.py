"""The entry point, as a person meets it: real processes, exit codes, one line for each error."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.cli.main import COMMANDS, guarded, main
from manyhands.core.errors import RunError, StorageError, UserError
from tests.support.commands import PROGRAM, run

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
ENVIRONMENT.pop("MANYHANDS_DEBUG", None)


def raising(error: BaseException) -> Callable[[], int]:
    def perform() -> int:
        raise error

    return perform


def test_help_names_every_command() -> None:
    ended = run("--help", program=PROGRAM)
    assert ended.code == 0
    assert all(f"\n  {name} " in ended.out for name in COMMANDS)
    assert run("-h").out == run("help").out == ended.out
    alone = run()
    assert (alone.code, alone.out, alone.err) == (0, ended.out, "")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    program = "import sys; from manyhands.cli.main import main; main(['--help']); print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    ).stdout
    assert not {"pydantic", "aiohttp", "rich", "orjson", "asyncio"} & set(output.split())
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        run("--help", program=PROGRAM)
        times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    assert min(times) <= 0.25


def test_version() -> None:
    ended = run("--version")
    assert ended.code == 0
    assert ended.out.startswith("manyhands ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bacht"], "unknown command 'bacht'; did you mean batch? (see manyhands --help)"),
        (["xyz"], "unknown command 'xyz' (see manyhands --help)"),
        (["--resume"], "unknown option --resume before a command (see manyhands --help)"),
    ],
)
def test_unknown_commands_are_refused_with_the_nearest(words: list[str], said: str) -> None:
    ended = run(*words)
    assert (ended.code, ended.out, ended.err) == (2, "", f"manyhands: error: {said}\n")


def test_every_command_exists_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("say\nit"), 2, "manyhands: error: say\nmanyhands: error: it\n"),
        (RunError("locked"), 2, "manyhands: error: locked\n"),
        (StorageError("disk\nfull"), 1, "manyhands: error: disk full\n"),
        (KeyboardInterrupt(), 130, "manyhands: interrupted\n"),
        (PermissionError(13, "Permission denied", "/a/b"), 2, "manyhands: error: /a/b: permission denied\n"),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("text"), 2, "manyhands: error: text\n"),
        (KeyError("k\nl"), 1, "manyhands: internal error: KeyError: 'k\\nl' (set MANYHANDS_DEBUG=1 to see where)\n"),
        (
            BrokenPipeError("a pipe inside"),
            1,
            "manyhands: internal error: BrokenPipeError: a pipe inside (set MANYHANDS_DEBUG=1 to see where)\n",
        ),
    ],
)
def test_every_exception_becomes_a_line_and_an_exit_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MANYHANDS_DEBUG", raising=False)
    assert guarded(raising(error), []) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("way", ["--verbose", "environment"])
def test_tracebacks_only_when_asked_for(
    way: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANYHANDS_DEBUG", "1" if way == "environment" else "0")
    assert guarded(raising(ValueError("deep")), [way]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.endswith("manyhands: internal error: ValueError: deep\n")


@pytest.mark.parametrize("words", [["--api_key=sk-9", "--verbose"], ["--api-key", "sk-9", "--verbose"]])
def test_a_typed_key_is_shown_nowhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(ValueError("refused: sk-9")), words)
    said = capsys.readouterr().err
    assert "refused: ***" in said
    assert "sk-9" not in said


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    program = (
        "import sys; from manyhands.cli.main import guarded\n"
        "def perform():\n    for _ in range(100_000): print('x' * 100)\n    return 0\n"
        "sys.exit(guarded(perform, []))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141
