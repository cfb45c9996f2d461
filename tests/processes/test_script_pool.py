"""Graders' programs, as processes and in warm interpreters."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from manyhands.core.errors import GraderError
from manyhands.processes.scripts import MAX_OUTPUT, ScriptResult, Scripts, script_words

ENVIRON = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
WAYS = pytest.mark.parametrize("warm", [True, False], ids=["warm", "fresh"])


@pytest.fixture
async def warm() -> AsyncIterator[Scripts]:
    async with Scripts.opened(f"tests.{os.getpid()}.1", ENVIRON, at_once=4) as scripts:
        yield scripts


@pytest.fixture
async def fresh() -> AsyncIterator[Scripts]:
    async with Scripts.opened(f"tests.{os.getpid()}.2", ENVIRON, at_once=4, warm=False) as scripts:
        yield scripts


async def run(
    scripts: Scripts,
    command: str | Sequence[str],
    folder: Path,
    payload: bytes = b"",
    *,
    seconds: float = 20.0,
    environment: Mapping[str, str] | None = None,
) -> ScriptResult:
    return await scripts.run(command, payload, folder=folder, seconds=seconds, environment=environment or {})


SCRIPTS = {
    "nothing": "",
    "prints": "print('a'); print('b', end='')",
    "echo": "import sys; sys.stdout.write(sys.stdin.read()[::-1])",
    "bytes": "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())",
    "lines": "for line in open(0): print(line.upper())",
    "unread": "print('did not look')",
    "exit 3": "import sys; print('x'); sys.exit(3)",
    "exit text": "import sys; sys.exit('bad')",
    "exit none": "raise SystemExit",
    "exit true": "raise SystemExit(True)",
    "exit at once": "import os; print('lost'); os._exit(7)",
    "exit flushed": "import os, sys; print('kept'); sys.stdout.flush(); os._exit(7)",
    "exception": "def f():\n    return 1 / 0\nf()\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error\n",
    "group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
    "syntax": "print('a'\n",
    "latin": "# -*- coding: latin-1 -*-\nprint(len('\u00e9'))",
    "error output": "import sys; print('e', file=sys.stderr); print('o')",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\nraise KeyError(1)\n",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hi')",
    "atexit and error": "import atexit; atexit.register(print, 'bye'); raise KeyError('k')",
    "thread": "import threading, time\ndef f():\n    time.sleep(0.05); print('later')\nthreading.Thread(target=f).start()\nprint('now')",
    "daemon": "import threading, time\nthreading.Thread(target=lambda: time.sleep(60), daemon=True).start()\nprint('now')",
    "unclosed file": "f = open('made.txt', 'w'); f.write('kept'); print('x')",
    "file read": "import os; print(open('made.txt').read() if os.path.exists('made.txt') else '')",
    "del": "class C:\n    def __del__(self): print('gone')\nc = C()\nprint('here')",
    "del and exit code": "import sys\nclass C:\n    def __del__(self): print('gone')\nc = C()\nsys.exit(7)",
    "del in a module": "import helper, sys\nclass C:\n    def __del__(self): print('gone', file=sys.stderr)\nhelper.c = C()\nprint('x')",
    "cycle": "class C:\n    def __del__(self): print('gone')\nc = C(); c.c = c\ndel c\nprint('here')",
    "other stream": "import io, sys; o = sys.stdout; sys.stdout = io.TextIOWrapper(io.FileIO(1, 'w', closefd=False)); print('x', end='')",
    "stream kept": "import json, sys; json.out = sys.stdout; print('x', end=''); sys.stdout = None",
    "stream of its own": "import sys\n"
    "class S:\n    def write(self, text): sys.__stdout__.write(text)\n    def flush(self): pass\nsys.stdout = S(); print('x')",
    "stream closed": "import os, sys; print('x'); os.close(1); sys.exit(3)",
    "exit code": "import sys; sys.exit(-2)",
    "names": "print(__name__, __file__, __package__, __spec__, __doc__, sorted(globals()))",
    "doc": "'''What it is.'''\nprint(__doc__)",
    "main": "import sys; print(sys.modules['__main__'].__name__); x = 1; print(sys.modules['__main__'].x)",
    "argv": "import sys; print(sys.argv, sys.orig_argv[1:], sys.executable)",
    "path": "import sys; print(sys.path)",
    "flags": "import sys; print(sys.flags, sys.stdin.encoding, sys.stdout.errors, sys.getfilesystemencoding())",
    "streams": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
    "    print(s.name, s.mode, s.isatty(), s.fileno(), s.line_buffering, s.seekable(), s.closed)",
    "cwd": "import os; print(os.getcwd())",
    "environment": "import os; print(os.environ.get('EXTRA'), os.environ.get('HOME'), os.getenv('MANYHANDS_RUN') is not None)",
    "child environment": "import subprocess; print(subprocess.check_output(['sh', '-c', 'echo $EXTRA']))",
    "sibling": "import helper; print(helper.VALUE, helper.__name__)",
    "package": "from pkg.inner import value; print(value)",
    "relative": "from . import helper",
    "shadowing": "import select, json; print(select.MINE, json.dumps([1]))",
    "builtins": "import builtins; print(__builtins__ is builtins, type(__builtins__).__name__)",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "no future": "def f(x: undefined = 1): pass",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "broken pipe": "import os, signal; print(signal.getsignal(signal.SIGPIPE), signal.getsignal(signal.SIGINT))",
    "session": "import os; print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())",
    "descriptors": "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4])",
    "pickle": "import pickle\nclass C: pass\nprint(type(pickle.loads(pickle.dumps(C()))) is C)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass C:\n    x: int\nprint(C(1))",
    "fork": "import os\nif os.fork() == 0:\n    print('child'); raise SystemExit\nos.wait(); print('parent')",
    "pool": "import multiprocessing as m\ndef f(x): return x + 1\n"
    "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2]))",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0); print('ran')\nasyncio.run(f())",
    "json": "import json, sys; p = json.load(sys.stdin); print(json.dumps({'score': 1, 'hits': [p['answer']]}))",
    "recursion": "import sys; print(sys.getrecursionlimit())\ndef f(n): return n and f(n - 1)\nprint(f(500))",
    "interrupt": "raise KeyboardInterrupt",
    "unicode": "print('\u00e4\u4e16\U0001f600')",
    "modules": "import sys; print([m for m in ('json', 'asyncio', 'manyhands', 'typing') if m in sys.modules and m != 'json'])",
}  # fmt: skip


def files_in(folder: Path) -> None:
    (folder / "helper.py").write_text("VALUE = 5\n")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "inner.py").write_text("value = 'inner'\n")


@pytest.mark.parametrize("name", SCRIPTS)
async def test_warm_is_as_good_as_fresh(name: str, warm: Scripts, fresh: Scripts, tmp_path: Path) -> None:
    files_in(tmp_path)
    if name == "shadowing":
        (tmp_path / "select.py").write_text("MINE = True\n")
    encoding = "latin-1" if name == "latin" else "utf-8"
    (tmp_path / "check.py").write_text(SCRIPTS[name], encoding=encoding)
    found = []
    for scripts in (fresh, warm):
        (tmp_path / "made.txt").unlink(missing_ok=True)
        command = ["python", "./check.py", "a b", "-c"]
        found.append(await run(scripts, command, tmp_path, b'{"answer": "x"}\n', environment={"EXTRA": "more"}))
        if name == "unclosed file":
            assert (tmp_path / "made.txt").read_text() == "kept"
    one, other = found
    assert warm.warm_runs == 1
    assert (other.exit_code, other.stdout) == (one.exit_code, one.stdout)
    if name not in ("interrupt", "relative"):  # whose tracebacks show the frame that ran the script
        assert other.stderr == one.stderr


async def test_scripts_in_other_folders_are_found_like_a_fresh_interpreter_finds_them(
    warm: Scripts, fresh: Scripts, tmp_path: Path
) -> None:
    inner = tmp_path / "scripts"
    inner.mkdir()
    files_in(inner)
    (inner / "check.py").write_text("import sys, os, helper; print(__file__, sys.path[0], sys.argv, os.getcwd())")
    (tmp_path / "link.py").symlink_to(inner / "check.py")
    for path in ("scripts/check.py", "./scripts/check.py", str(inner / "check.py"), "link.py", "scripts/../link.py"):
        assert (await run(warm, ["python", path], tmp_path)).stdout == (
            await run(fresh, ["python", path], tmp_path)
        ).stdout
    assert warm.warm_runs == 5


async def test_a_line_for_a_shell_is_warm_only_if_a_shell_would_make_words_of_it() -> None:
    assert script_words("python3 scripts/check.py  --strict") == ["python3", "scripts/check.py", "--strict"]
    assert script_words(["/usr/bin/python3.11", "a b.py", "$x"]) == ["/usr/bin/python3.11", "a b.py", "$x"]
    for line in (
        "python3 check.py; echo",
        "python3 check.py > out",
        "python3 $FILE.py",
        "python3 'check.py'",
        "python3 -u check.py",
        "python3 -m check",
        "A=1 python3 check.py",
        "python2 check.py",
        "node check.py",
        "python3",
        "python3 check.py\nrm x",
        "python3 ~/check.py",
        "",
    ):
        assert script_words(line) is None


async def test_lines_are_run_by_sh_and_lists_as_they_are(warm: Scripts, tmp_path: Path) -> None:
    assert (await run(warm, "echo $((1 + 1)) | tr 2 3", tmp_path)).stdout == b"3\n"
    assert (await run(warm, ["echo", "$HOME ; x"], tmp_path)).stdout == b"$HOME ; x\n"
    assert (await run(warm, "exit 9", tmp_path)).exit_code == 9


async def test_what_can_not_be_started_is_an_error(warm: Scripts, tmp_path: Path) -> None:
    with pytest.raises(GraderError, match="no-such-program-here can't be started"):
        await run(warm, ["no-such-program-here", "x"], tmp_path)
    with pytest.raises(GraderError, match="there is no folder"):
        await run(warm, "true", tmp_path / "gone")
    assert (await run(warm, "no-such-program-here", tmp_path)).exit_code == 127
    missing = await run(warm, "python3 missing.py", tmp_path)
    assert missing.exit_code == 2
    assert b"missing.py" in missing.stderr


@WAYS
async def test_large_input_may_be_left_unread(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("print('done')")
    (tmp_path / "some.py").write_text("import sys; print(len(sys.stdin.read(10)))")
    (tmp_path / "all.py").write_text("import sys; print(len(sys.stdin.read()))")
    payload = b"x" * (8 << 20)
    async with Scripts.opened(f"tests.{os.getpid()}.3", ENVIRON, warm=warm) as scripts:
        assert (await run(scripts, "python3 check.py", tmp_path, payload)).stdout == b"done\n"
        assert (await run(scripts, "python3 some.py", tmp_path, payload)).stdout == b"10\n"
        assert (await run(scripts, "python3 all.py", tmp_path, payload)).stdout == b"8388608\n"


@WAYS
async def test_output_is_capped_and_nobody_is_killed_for_it(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import sys\nfor _ in range(30): sys.stdout.write('y' * (1 << 20))\nprint('\\nend')\nsys.stderr.write('e' * (1 << 20))\n"
    )
    async with Scripts.opened(f"tests.{os.getpid()}.4", ENVIRON, warm=warm) as scripts:
        result = await run(scripts, "python3 loud.py", tmp_path)
    assert result.exit_code == 0
    assert len(result.stdout) == MAX_OUTPUT
    assert result.omitted == 20 * (1 << 20) + 5
    assert result.stdout.endswith(b"\nend\n")
    assert len(result.stderr) <= 1 << 16


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300"])
away = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(os.getpid(), child.pid, away.pid, flush=True)
time.sleep(300)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@WAYS
async def test_the_time_limit_ends_everything_that_was_started(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    async with Scripts.opened(f"tests.{os.getpid()}.5", ENVIRON, warm=warm) as scripts:
        began = time.monotonic()
        result = await run(scripts, "python3 stubborn.py", tmp_path, seconds=1.5)
        assert result.exit_code is None
        assert time.monotonic() - began < 8
        pids = [int(word) for word in result.stdout.split()]
        assert len(pids) == 3
        assert not any(map(alive, pids))
        assert (await run(scripts, "echo on", tmp_path)).stdout == b"on\n"


@WAYS
async def test_a_grandchild_that_holds_the_output_keeps_nobody_waiting(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import subprocess\n"
        "subprocess.Popen(['sleep', '300'])\n"
        "away = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print(away.pid)\n"
    )
    async with Scripts.opened(f"tests.{os.getpid()}.6", ENVIRON, warm=warm) as scripts:
        began = time.monotonic()
        result = await run(scripts, "python3 leaves.py", tmp_path, seconds=60)
        assert time.monotonic() - began < 10
        assert result.exit_code == 0
    assert not alive(int(result.stdout))


@WAYS
async def test_cancelling_ends_the_program(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(300)")
    async with Scripts.opened(f"tests.{os.getpid()}.7", ENVIRON, warm=warm) as scripts:
        task = asyncio.create_task(run(scripts, "python3 slow.py", tmp_path))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(int((tmp_path / "pid").read_text()))


@WAYS
async def test_only_so_many_run_at_once(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(
        "import os, time\nname = f'running-{os.getpid()}'\nopen(name, 'w').close()\ntime.sleep(0.1)\n"
        "print(sum(n.startswith('running-') for n in os.listdir()))\nos.remove(name)\n"
    )
    async with Scripts.opened(f"tests.{os.getpid()}.8", ENVIRON, at_once=3, warm=warm) as scripts:
        results = await asyncio.gather(*(run(scripts, "python3 count.py", tmp_path) for _ in range(9)))
    counts = [int(result.stdout) for result in results]
    assert max(counts) <= 3
    assert max(counts) > 1


async def test_many_runs_are_kept_apart(warm: Scripts, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(
        "import sys, os\nimport helper\nhelper.seen.append(1)\nos.environ['X'] = 'x'\nprint(sys.stdin.read(), len(helper.seen))"
    )
    (tmp_path / "helper.py").write_text("seen = []\n")
    results = await asyncio.gather(
        *(run(warm, "python3 check.py", tmp_path, str(number).encode()) for number in range(60))
    )
    assert [result.stdout for result in results] == [f"{number} 1\n".encode() for number in range(60)]
    assert warm.warm_runs == 60


async def test_an_interpreter_that_is_killed_is_an_error_and_replaced(warm: Scripts, tmp_path: Path) -> None:
    (tmp_path / "kill.py").write_text(f"import os, time; os.kill(os.getppid(), {int(signal.SIGKILL)}); time.sleep(60)")
    (tmp_path / "fine.py").write_text("print('fine')")
    with pytest.raises(GraderError, match="ended by somebody else"):
        await run(warm, "python3 kill.py", tmp_path)
    assert (await run(warm, "python3 fine.py", tmp_path)).stdout == b"fine\n"


async def test_a_script_that_is_changed_is_run_as_it_is_now(warm: Scripts, tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "check.py").write_text(f"print('{text}')")
        assert (await run(warm, "python3 check.py", tmp_path)).stdout == f"{text}\n".encode()


async def test_settings_of_the_interpreter_itself_take_a_fresh_one(warm: Scripts, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("import sys; print(sys.flags.hash_randomization)")
    result = await run(warm, "python3 check.py", tmp_path, environment={"PYTHONHASHSEED": "0"})
    assert (result.stdout, warm.warm_runs) == (b"0\n", 0)


async def test_a_program_that_is_no_interpreter_is_run_as_a_process(warm: Scripts, tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho not python: $1\n")
    program.chmod(0o755)
    (tmp_path / "check.py").write_text("print('x')")
    result = await run(warm, ["./python3", "check.py"], tmp_path)
    assert (result.stdout, warm.warm_runs) == (b"not python: check.py\n", 0)


async def test_nothing_is_left_when_the_pool_is_closed(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("import os; print(os.getppid())")
    async with Scripts.opened(f"tests.{os.getpid()}.9", ENVIRON) as scripts:
        parent = int((await run(scripts, "python3 check.py", tmp_path)).stdout)
        assert alive(parent)
    assert not alive(parent)


OWNER = """
import asyncio, os, sys
from pathlib import Path
from manyhands.processes.scripts import Scripts
async def main():
    async with Scripts.opened(f"tests.owner.{os.getpid()}", os.environ, warm=sys.argv[2] == "warm") as scripts:
        await scripts.run("python3 slow.py", b"", folder=Path(sys.argv[1]), seconds=None, environment={})
asyncio.run(main())
"""


@WAYS
async def test_nothing_is_left_when_the_owner_is_killed(warm: bool, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '300'])\n"
        "open('new', 'w').write(f'{os.getpid()} {child.pid}')\nos.rename('new', 'pids')\ntime.sleep(300)"
    )
    words = [sys.executable, "-c", OWNER, str(tmp_path), "warm" if warm else "fresh"]
    owner = await asyncio.create_subprocess_exec(*words, env=ENVIRON)
    try:
        async with asyncio.timeout(20):
            while not (tmp_path / "pids").exists():
                await asyncio.sleep(0.02)
    finally:
        owner.kill()
        await owner.wait()
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    async with asyncio.timeout(10):
        while any(map(alive, pids)):
            await asyncio.sleep(0.05)


async def test_where_no_copy_can_be_made_the_script_is_run_afresh(tmp_path: Path) -> None:
    interpreter = tmp_path / "python3"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os\ndef fork(): raise BlockingIOError(11, 'no more processes')\nos.fork = fork\n"
    )
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"} exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    (tmp_path / "check.py").write_text("print(input())")
    async with Scripts.opened(f"tests.{os.getpid()}.10", ENVIRON) as scripts:
        result = await run(scripts, ["./python3", "check.py"], tmp_path, b"said\n")
        assert (result.exit_code, result.stdout, scripts.warm_runs) == (0, b"said\n", 0)
