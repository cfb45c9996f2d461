"""What a model, a file or a server said is shown on a terminal, and never obeyed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.text import json_text, printable
from manyhands.testing.scripted_server import chat_response
from tests.support.commands import environment, run

NASTY = (
    "b[/oops] [red]x[/red] [link=http://evil]y :smile: \x1b[2J\x1b]0;title\x07 \x07\x08 \x7f \x9b31m \x90q\x9c"
    " \u202eabc\u202c \u2066d\u2069 \u200b\u200f\ufeff \U000e0041 end"
)
UNSAFE = {
    *map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0))),
    *"\u202e\u202c\u2066\u2069\u200b\u200f\ufeff\U000e0041",
}
RICHS_OWN = "\x1b"
"""What rich writes itself to a terminal: sequences that begin with it, for colours and for the bar."""


@given(st.text())
def test_nothing_is_left_that_is_obeyed_or_not_seen(text: str) -> None:
    shown = printable(text + NASTY)
    assert not UNSAFE & set(shown)
    shown.encode()
    written = json_text({"text": text + NASTY})
    assert not UNSAFE & set(written)
    assert json.loads(written) == {"text": text + NASTY}
    assert json_text(text, indent=2).encode()


def test_what_is_plain_stays_as_it_is() -> None:
    text = "Grüße, 你好, a\tb\nc — ‘x’ 😀 [bold] \\x1b"
    assert printable(text) == text


def test_joiners_stay_where_they_are_spelling_and_nowhere_else() -> None:
    text = "می\u200cخواهم क्\u200dष ශ්\u200dරී 👩\u200d👩\u200d👧 🏳️\u200d🌈 ❤️\u200d🔥"
    assert printable(text) == text
    for hidden in ("a\u200db", "中\u200c文", "\u200d", "م\u200c\u200cخ", "م\u200c x", "x\u200d👩", "\u200d👩"):
        assert not set("\u200c\u200d") & set(printable(hidden))
        assert not set("\u200c\u200d") & set(json_text(hidden))
        assert json.loads(json_text(hidden)) == hidden


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@pytest.fixture
def server() -> Iterator[str]:
    """A chat endpoint that calls a tool with nasty arguments, and answers and errs as nastily."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = json.dumps(body["messages"])
            call = {"name": "terminal", "arguments": json.dumps({"command": f"printf '%s' '{NASTY}'"})}
            calls = [{"id": "c", "type": "function", "function": call}]
            done = any(message["role"] == "tool" for message in body["messages"])
            reply: dict[str, Any] = chat_response(NASTY, **({} if done else {"tool_calls": calls}))
            if "err" in prompt:
                reply = {"error": {"message": NASTY}}
            data = json.dumps(reply).encode()
            self.send_response(400 if "err" in prompt else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    served = _Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}/v1"
    served.shutdown()
    served.server_close()


def perform(folder: Path, *words: str) -> tuple[int, str]:
    ended = run(*words, folder=folder)
    return ended.code, ended.out + ended.err


def on_a_terminal(folder: Path, *words: str) -> str:
    """What a command says with a terminal for all its streams."""
    master, slave = pty.openpty()
    kept = {**environment(), "TERM": "xterm-256color", "COLUMNS": "300"}
    program = [sys.executable, "-P", "-m", "manyhands", *words]
    process = subprocess.Popen(program, cwd=folder, env=kept, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    output = bytearray()
    try:
        while data := os.read(master, 65536):
            output += data
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(master)
    process.wait(60)
    return output.decode("utf-8").replace("\r\n", "\n")


def obeyed(said: str, *, terminal: bool = False) -> set[str]:
    found = UNSAFE & set(said)
    return found - {RICHS_OWN, "\r"} if terminal else found


def nasty_sequences(said: str) -> list[str]:
    return [part for part in ("\x1b[2J", "\x1b]0;", "\x1b]8;") if part in said]


@pytest.fixture
def batch(tmp_path: Path, server: str) -> tuple[Path, str]:
    """A folder with a batch of nasty prompts that was performed, and what that said."""
    rows = [{"prompt": f"Say {NASTY}", "id": NASTY}, {"prompt": "err", "id": f"{NASTY} err"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ["batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", f"--base_url={server}", "--verbose"]
    more = ["--model=m", "--num_workers=1", "--sandbox=local", "--distribution=terminal_only", "--max_attempts=1"]
    code, said = perform(tmp_path, *words, *more)
    assert code == 1, said
    return tmp_path, said


def test_a_batch_and_all_that_shows_it(batch: tuple[Path, str]) -> None:
    folder, said = batch
    assert obeyed(said) == set()
    assert "oops" in said
    for words in (
        ["show", "r"],
        ["show", "r", "1"],
        ["show", "r", "2", "--full"],
        ["status", "r"],
        ["runs"],
        ["check", "r"],
    ):
        code, said = perform(folder, *words)
        assert code == 0, said
        assert obeyed(said) == set(), words
    assert "b[/oops] [red]x[/red]" in perform(folder, "show", "r")[1]
    for words in (["show", "r", "--json"], ["show", "r", "1", "--json"]):
        code, said = perform(folder, *words)
        assert obeyed(said) == set(), words
        assert NASTY in json.dumps([json.loads(line) for line in said.splitlines()], ensure_ascii=False).replace(
            "\\u001b", "\x1b"
        ).replace("\\u0007", "\x07").replace("\\b", "\x08").replace("\\u007f", "\x7f")


def test_a_terminal_gets_only_the_sequences_that_are_ours(batch: tuple[Path, str]) -> None:
    folder, _ = batch
    for words in (["show", "r"], ["show", "r", "1", "--full"], ["resume", "data/r", "--verbose"], ["show", "r", "2"]):
        said = on_a_terminal(folder, *words)
        assert "oops" in said, words
        assert obeyed(said, terminal=True) == set(), words
        assert nasty_sequences(said) == [], words


@pytest.mark.parametrize("name", ["\x1b[2Jx", "[bold]x[red", "\x9b31m\u202ex", "line\nmanyhands: done"])
def test_a_file_whose_name_is_nasty(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.jsonl").write_text("{broken\n", encoding="utf-8")
    for words in (
        ["batch", f"--dataset_file={name}.jsonl", "--batch_size=1", "--run_name=r", "--model=simulated"],
        ["eval", f"{name}.jsonl", "--run_name=e"],
        ["show", name],
        ["status", f"{name}/x"],
        ["jobs", "show", name],
        ["jobs", "spawn", f"{name}.jsonl", "--instruction=x"],
        ["memory", "run", "-c", f"{name}.yml", "-a", "simulated"],
        [name],
    ):
        code, said = perform(tmp_path, *words)
        assert code == 2, (words, said)
        assert obeyed(said) == set(), words
        assert "Traceback" not in said


def test_runs_whose_names_and_files_are_nasty(tmp_path: Path) -> None:
    for number, name in enumerate(("a[/oops]", "b\x1b[2J", "c\x9b\u202e")):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "run.db").write_bytes(b"no database" * number)
    for words in (["runs"], ["runs", "--json"], ["jobs", "list"], ["memory", "report"]):
        code, said = perform(tmp_path, *words)
        assert code in (0, 2), said
        assert obeyed(said) == set(), words
        assert "Traceback" not in said


SUITE = """
targets:
  shouts: {provider: cli, command: "%(python)s shout.py {OUTPUT_FILE}"}
assert: [{type: contains, value: x, name: "%(nasty)s"}]
tests:
  - {id: "%(nasty)s", input: "%(nasty)s"}
"""


def test_an_evaluation(tmp_path: Path) -> None:
    nasty = json.dumps(NASTY)[1:-1].replace("\\ud", "\\\\ud")
    (tmp_path / "suite.yaml").write_text(SUITE % {"python": sys.executable, "nasty": nasty}, encoding="utf-8")
    shout = f"import sys\nprint({NASTY!r})\nprint({NASTY!r}, file=sys.stderr)\nsys.exit({NASTY!r})\n"
    (tmp_path / "shout.py").write_text(shout, encoding="utf-8")
    for words in (
        ["eval", "suite.yaml", "--run_name=e", "--verbose"],
        ["eval", "validate", "suite.yaml"],
        ["show", "e", "1"],
    ):
        code, said = perform(tmp_path, *words)
        assert code != 1 or words[0] == "eval", said
        assert obeyed(said) == set(), (words, said)
        assert "Traceback" not in said
    said = on_a_terminal(tmp_path, "eval", "suite.yaml", "--run_name=e2", "--verbose")
    assert obeyed(said, terminal=True) == set()
    assert nasty_sequences(said) == []


WORKER = """
import sys
sys.stderr.write(%r)
sys.exit(1)
"""


def test_a_job(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'id,text\n1,"{NASTY}"\n', encoding="utf-8")
    (tmp_path / "worker.py").write_text(WORKER % NASTY, encoding="utf-8")
    command = f"--worker_command={sys.executable} {tmp_path / 'worker.py'}"
    words = ["jobs", "spawn", "rows.csv", "--instruction=Do {text}.", "--job_name=j", "--num_workers=1", command]
    _, said = perform(tmp_path, *words, "--max_attempts=1")
    assert (tmp_path / "data" / "j").is_dir(), said
    assert obeyed(said) == set()
    for more in (
        ["show", "j"],
        ["show", "j", "1"],
        ["show", "j", "1", "--json"],
        ["status", "j"],
        ["list"],
        ["list", "--json"],
    ):
        said = perform(tmp_path, "jobs", *more)[1]
        assert obeyed(said) == set(), more
    assert obeyed((tmp_path / "data" / "j" / "runner.log").read_text(encoding="utf-8")) == set()
    assert nasty_sequences(on_a_terminal(tmp_path, "jobs", "show", "j", "1")) == []
