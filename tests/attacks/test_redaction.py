"""A planted key is in nothing that a run leaves behind or shows, however it is written, and wherever it came from."""

from __future__ import annotations

import html
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.redaction import REDACTED, Redactor, is_secret, secrets_of, without_user_info
from manyhands.core.settings import shown as settings_shown
from manyhands.core.text import shorten
from manyhands.engine.journal.records import unpack
from manyhands.processes.output import Capture, KeptStream
from manyhands.testing.scripted_server import chat_response
from tests.support.commands import PROGRAM, run

KEY = "sk-planted/0123456789+abcdefXYZ"
UNPACKED = "digest"
"""The only column of a journal whose bytes are no packed JSON: they may begin in any way."""


def spelled(text: str) -> dict[str, str]:
    """A text as JSON, addresses, pages and programs escape it."""
    ways: dict[str, Callable[[str], str]] = {
        "plain": lambda c: c,
        "json": lambda c: f"\\u{ord(c):04x}",
        "JSON": lambda c: f"\\u{ord(c):04X}",
        "json in json": lambda c: f"\\\\u{ord(c):04x}",
        "slash": lambda c: "\\/" if c == "/" else c,
        "one": lambda c: "\\u002d" if c == "-" else c,
        "address": lambda c: f"%{ord(c):02X}",
        "quoted": lambda c: quote(c, safe=""),
        "page": lambda c: f"&#{ord(c)};",
        "page, hexadecimal": lambda c: f"&#x{ord(c):x};",
        "page, names": lambda c: html.escape(c).replace("/", "&sol;").replace("+", "&plus;"),
        "program": lambda c: f"\\x{ord(c):02x}",
        "octal": lambda c: f"\\{ord(c):03o}",
        "braces": lambda c: f"\\u{{{ord(c):x}}}",
    }
    return {name: "".join(map(way, text)) for name, way in ways.items()}


# --- The redactor


@given(secret=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=8, max_size=20), data=st.data())
def test_a_secret_is_found_with_each_of_its_characters_written_in_any_way(secret: str, data: st.DataObject) -> None:
    if not is_secret(secret):
        return
    redactor = Redactor([secret])
    ways: list[Callable[[str], str]] = [
        json.dumps,
        quote,
        html.escape,
        lambda c: f"\\u{ord(c):04x}",
        lambda c: f"&#x{ord(c):X};",
    ]
    written = "".join(data.draw(st.sampled_from(ways))(c).strip('"') if c != '"' else c for c in secret)
    for text in (secret, written, json.dumps(secret), json.dumps(json.dumps(written))):
        assert REDACTED in redactor.text(f"before {text} after")
        assert redactor.is_in(json.dumps({"text": text}).encode())
        assert REDACTED in json.dumps(redactor.json({"deep": [{"text": text}]}))


@pytest.mark.parametrize("secret", ["-----BEGIN-----\nabc/def+0123\tx\n-----END-----", "first line\r\nsecond é\fline"])
def test_a_secret_of_several_lines_is_found_however_its_lines_end(secret: str) -> None:
    redactor = Redactor([secret])
    lines = secret.replace("\r\n", "\n")
    for text in (secret, lines, lines.replace("\n", "\r\n")) if "\r" not in secret else (secret,):
        once = json.dumps(text)
        for written in (text, once, json.dumps(once), json.dumps(json.dumps(once)), repr(text), quote(text)):
            assert redactor.text(f"before {written} after").count(REDACTED) == 1, written
            assert REDACTED.encode() in redactor.data(f"before {written} after".encode())
            document = json.dumps({"text": written}).encode()
            masked = redactor.masked(document)
            assert (len(masked), b"line" in masked, b"abc" in masked) == (len(document), False, False)
            assert json.loads(masked)
            assert redactor.is_in(document)


def test_the_lines_of_a_secret_are_secrets_too() -> None:
    secret = "-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkqhkiG9w0B\nshort\n-----END PRIVATE KEY-----\n"
    shown = "+-----BEGIN PRIVATE KEY-----\n+MIIBVgIBADANBgkqhkiG9w0B\n+short\n"
    assert Redactor([secret]).text(shown) == shown.replace("MIIBVgIBADANBgkqhkiG9w0B", REDACTED)


def test_short_values_numbers_and_stand_ins_are_no_secrets() -> None:
    for word in (
        "",
        "none",
        "dummy",
        "1234567",
        "128000000",
        "simulated",
        "lm-studio",
        "not-needed",
        "sk-no-key-required",
        "database",
        "development",
    ):
        assert not is_secret(word), word
    for word in (KEY, "hunter2hunter", "correct horse", "12345678901234567890"):
        assert is_secret(word), word


@pytest.mark.parametrize("part", ["\\", "\\u", "\\\\0", "%", "&#0", "&#x000", "sk-planted", "\\u0073"])
def test_the_time_to_look_grows_with_the_length_of_the_text_only(part: str) -> None:
    redactor = Redactor([KEY, "sk-another-0123456789"])

    def seconds(size: int) -> float:
        text, times = part * (size // len(part)), []
        for _ in range(5):
            began = time.thread_time()
            redactor.text(text)
            times.append(time.thread_time() - began)
        return min(times)

    assert seconds(400_000) < 6 * seconds(200_000) + 0.01


def test_no_half_of_a_secret_stays_where_a_text_is_cut() -> None:
    from manyhands.core.redaction import KNOWN, protect

    protect([KEY])
    assert KEY[:8] not in shorten("x" * 140 + KEY + "y" * 300, 300)
    for place in range(170, 215):
        capture = Capture(400)
        capture.feed(b"x" * place + KEY.encode() + b"y" * 150 + KEY.encode() + b"z" * place)
        text = KNOWN.data(capture.joined())
        assert len(capture.joined()) == 400
        assert KEY[:6].encode() not in text
        assert KEY[-6:].encode() not in text


@pytest.mark.parametrize("before", range(65536 - 4096 - 40, 65536 - 4096 + 8, 7))
def test_no_half_of_a_secret_is_kept_of_a_stream_without_line_breaks(tmp_path: Path, before: int) -> None:
    stream = KeptStream(tmp_path / "kept", Redactor([KEY]))
    for data in (
        b"x" * before,
        KEY.encode(),
        b"y" * (65600 - before),
        b"z" * 70000 + KEY.encode()[:20],
        KEY.encode()[20:],
    ):
        stream.feed(data)
    stream.close()
    kept = (tmp_path / "kept").read_bytes()
    assert kept.count(REDACTED.encode()) == 2
    assert found_in(kept, "kept") == []


def test_a_masked_document_has_its_length_and_stays_one() -> None:
    secret = 'nvapi-"quoted\\\\-0123'
    redactor = Redactor([secret, "xsecret-0123"])
    value = {"a": f"line\n{secret[1:]} {secret}", "b": [spelled(secret)["json"], "\nxsecret-0123"] * 50}
    data = json.dumps(value).encode()
    masked = redactor.masked(data)
    assert len(masked) == len(data)
    assert isinstance(json.loads(masked), dict)
    assert not redactor.is_in(masked)
    for text in (secret, json.dumps(secret), json.dumps(json.dumps(secret))):
        assert REDACTED in redactor.text(text)


def test_passwords_in_addresses_are_not_shown() -> None:
    shown = without_user_info("https://me:hunter2@host/v1 and http://tok@other:80/x and mail me@home.org")
    assert shown == f"https://{REDACTED}@host/v1 and http://{REDACTED}@other:80/x and mail me@home.org"
    for password in ("hunter2", "hunter2@x", "hunter2/y?z#", "it's-hunter2", "hunter2" + "x" * 60):
        assert "hunter2" not in without_user_info(f"not 'https://me:{password}@host/v1'")
        assert "hunter2" not in settings_shown(f"https://me:{password}@host/v1")


# --- Whole runs


class Hostile(ThreadingHTTPServer):
    """A chat endpoint that says what a function of the request's number and body gives: (status, body)."""

    daemon_threads = True

    def __init__(self, reply: Callable[[int, Any], tuple[int, bytes]]) -> None:
        self.asked: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, body = reply(len(outer.asked), outer.asked[-1])
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@pytest.fixture
def hostile() -> Iterator[Callable[[Callable[[int, Any], tuple[int, bytes]]], Hostile]]:
    servers: list[Hostile] = []

    def begun(reply: Callable[[int, Any], tuple[int, bytes]]) -> Hostile:
        servers.append(Hostile(reply))
        return servers[-1]

    yield begun
    for server in servers:
        server.shutdown()
        server.server_close()


def perform(folder: Path, *words: str, program: Sequence[str] = (), **more: str) -> tuple[int, str]:
    """A command line, with the key in its environment; its exit code and all that it said."""
    ended = run(*words, folder=folder, program=program, environ={"OPENAI_API_KEY": KEY, **more})
    return ended.code, ended.out + ended.err


def found_in(data: bytes, where: str) -> list[str]:
    """The ways in which the key, or a telling part of it, stands in bytes."""
    parts = {**spelled(KEY), "beginning": KEY[:8], "end": KEY[-8:]}
    return [f"{where}: {name}" for name, text in parts.items() if text.encode() in data]


def leaks(folder: Path) -> list[str]:
    """Where the key stands in the files below a folder, in journals also in what is compressed."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found += found_in(path.read_bytes(), str(path))
    for path in folder.rglob("run.db"):
        found += _leaks_of_journal(path)
    return found


def _leaks_of_journal(path: Path) -> list[str]:
    found = []
    with closing(sqlite3.connect(path)) as journal:
        for (table,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = journal.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            for row in cursor:
                for name, cell in zip(names, row, strict=True):
                    where = f"{table}.{name}"
                    found += found_in(cell if isinstance(cell, bytes) else str(cell).encode(), where)
                    if isinstance(cell, bytes) and name != UNPACKED:
                        found += found_in(json.dumps(unpack(cell), ensure_ascii=False).encode(), where)
    return found


def raw_chat(content: str, calls: Sequence[tuple[str, str]] = ()) -> bytes:
    """A completion, whose texts are given as they stand in JSON, so that they may hold escapes."""
    tool_calls = ",".join(
        f'{{"id":"c{number}","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}'
        for number, (name, arguments) in enumerate(calls)
    )
    plain = json.dumps(chat_response("CONTENT", **({"tool_calls": "CALLS"} if calls else {})))
    return plain.replace('"CALLS"', f"[{tool_calls}]").replace("CONTENT", content).encode()


def batch(
    folder: Path,
    server: Hostile,
    *more: str,
    prompts: str = '{"prompt": "Go."}\n',
    program: Sequence[str] = (),
    executor: str = "local",
) -> tuple[int, str]:
    (folder / "prompts.jsonl").write_text(prompts, encoding="utf-8")
    words = ["batch", "--dataset_file=prompts.jsonl", "--batch_size=1", "--run_name=r", f"--base_url={server.url}"]
    usual = ["--model=m", f"--executor={executor}", "--num_workers=1", "--sandbox=local", "--max_tokens=100"]
    usual += ["--distribution=terminal_only", "--max_attempts=1", "--keep_unreasoned"]
    return perform(folder, *words, *usual, *more, program=program)


def test_a_key_that_a_model_repeats_in_all_ways(tmp_path: Path, hostile: Any) -> None:
    ways = " ".join(spelled(KEY).values())
    written, arguments = json.dumps(ways)[1:-1], json.dumps(json.dumps({"command": f"echo '{ways}'"}))[1:-1]
    server = hostile(
        lambda number, _: (200, raw_chat(f"I call {written}", [("terminal", arguments)] if number == 1 else []))
    )
    code, said = batch(tmp_path, server, "--verbose", executor="processes")
    assert code == 0, said
    assert found_in(said.encode(), "said") == []
    assert leaks(tmp_path) == []
    assert REDACTED in perform(tmp_path, "show", "r", "1", "--full")[1]
    for words in (["show", "r"], ["show", "r", "1", "--full"], ["show", "r", "1", "--json"], ["status", "r"]):
        assert found_in(perform(tmp_path, *words)[1].encode(), " ".join(words)) == []
    code, said = perform(tmp_path, "check", "r")
    assert code == 0, said


def test_a_key_that_is_escaped_in_the_answer_itself(tmp_path: Path, hostile: Any) -> None:
    escaped = spelled(KEY)["json"]
    call = [("terminal", f'{{\\"command\\": \\"echo {escaped}\\"}}')]
    server = hostile(lambda number, _: (200, raw_chat(f"I call {escaped}", call if number == 1 else [])))
    code, said = batch(tmp_path, server)
    assert code == 0, said
    assert leaks(tmp_path) == []


COMMANDS = (
    "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\\\0' '\\\\n' | grep -a KEY",
    "for p in /proc/[0-9]*; do tr '\\\\0' '\\\\n' < $p/environ; done 2>/dev/null | grep -a sk- | sed 's,/,%2F,'",
    "env",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_that_a_command_finds_on_the_host(tmp_path: Path, hostile: Any, command: str) -> None:
    arguments = json.dumps(json.dumps({"command": command.replace("\\\\", "\\")}))[1:-1]
    server = hostile(lambda number, _: (200, raw_chat("Look.", [("terminal", arguments)] if number == 1 else [])))
    # Its environment is in /proc only where it has an interpreter of its own.
    code, said = batch(tmp_path, server, program=PROGRAM, executor="processes")
    assert code == 0, said
    assert leaks(tmp_path) == []
    assert found_in(json.dumps(server.asked).encode(), "sent") == []


def test_a_key_in_errors_that_are_cut(tmp_path: Path, hostile: Any) -> None:
    def reply(_: int, body: Any) -> tuple[int, bytes]:
        kind, padding = body["messages"][-1]["content"].split()
        message = "x" * int(padding) + f"Authorization: Bearer {KEY}"
        return 400, message.encode() if kind == "text" else json.dumps({"error": {"message": message}}).encode()

    paddings = (0, 440, 450, 460, 465, 470, 475, 3960, 3970, 3975)
    prompts = [f"{kind} {padding}" for kind in ("text", "json") for padding in paddings]
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
    code, said = batch(tmp_path, hostile(reply), prompts=lines)
    assert code == 1
    assert found_in(said.encode(), "said") == []
    assert leaks(tmp_path) == []
    for item in range(1, len(prompts) + 1, 4):
        assert found_in(perform(tmp_path, "show", "r", str(item))[1].encode(), "shown") == []


def test_what_was_redacted_is_replayed_and_not_paid_for_again(tmp_path: Path, hostile: Any) -> None:
    written = spelled(KEY)["one"].replace("\\", "\\\\")
    arguments = json.dumps(json.dumps({"command": f"echo {KEY}"}))[1:-1]
    down = True

    def reply(number: int, body: Any) -> tuple[int, bytes]:
        if len([message for message in body["messages"] if message["role"] == "tool"]) == 1 and down:
            return 400, b'{"error": {"message": "not now"}}'
        asked = any(message["role"] == "tool" for message in body["messages"])
        return 200, raw_chat(f"I say {written}" if down else "Done.", [] if asked else [("terminal", arguments)])

    server = hostile(reply)
    assert batch(tmp_path, server)[0] == 1
    assert len(server.asked) == 2
    down = False
    code, said = perform(tmp_path, "resume", "data/r", OPENAI_API_KEY="sk-rotated-9876543210")
    assert code == 0, said
    assert len(server.asked) == 3
    assert "fresh attempt" not in said
    assert leaks(tmp_path) == []


def test_a_key_that_a_prompt_holds(tmp_path: Path, hostile: Any) -> None:
    server = hostile(lambda *_: (200, raw_chat("Yes.")))
    words = ["batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", f"--base_url={server.url}"]
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": f"Is {KEY} a key?"}), encoding="utf-8")
    more = ["--model=m", "--executor=local", "--max_tokens=100", "--distribution=terminal_only"]
    code, said = perform(tmp_path, *words, *more, f"--ephemeral_system_prompt=The key is {KEY}.", "--keep_unreasoned")
    assert code == 0, said
    assert leaks(tmp_path / "data") == []
    before = len(server.asked)
    code, said = perform(tmp_path, "resume", "data/r")
    assert code == 0, said
    assert len(server.asked) == before


def test_a_password_in_an_address_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Go."}\n', encoding="utf-8")
    address = f"https://me:hunter2-{'x' * 50}@localhost:1/v1"
    target = f"{{provider: openai, model: m, api_key: '${{{{ K }}}}', base_url: '{address}'}}"
    suite = f"targets: {{t: {target}}}\ntests: [{{id: a, input: x}}]\n"
    (tmp_path / "suite.yaml").write_text(suite, encoding="utf-8")
    for words in (
        ["batch", "--dataset_file=prompts.jsonl", "--batch_size=1", "--run_name=r", f"--base_url={address}"],
        ["jobs", "spawn", "prompts.jsonl", "--instruction=x", f"--base_url={address}"],
        ["eval", "suite.yaml", "--run_name=e"],
        ["memory", "run", "-a", address, "-c", "none.yml"],
        ["mcp", f"--base_url={address}"],
    ):
        code, said = perform(tmp_path, *words)
        assert code == 2, said
        assert "hunter2" not in said, words
    below = (path for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert not any(b"hunter2" in path.read_bytes() for path in below)


SUITE = """
description: keys
targets:
  leaky: {provider: cli, command: "%(python)s leaky.py {PROMPT_FILE} {OUTPUT_FILE}"}
assert:
  - {type: contains, value: planted}
  - {name: code, type: code_judge, script: [%(python)s, judge.py]}
tests:
  - {id: one, input: "Say it.", criteria: says it}
"""
LEAKY = """
import os, sys
key = os.environ["OPENAI_API_KEY"]
open(sys.argv[2], "w").write("My key is " + key + " or " + "".join("\\\\u%04x" % ord(c) for c in key))
print("out", key); print("err", key, file=sys.stderr)
"""
JUDGE = """
import json, os, sys
key = os.environ["OPENAI_API_KEY"]
print(json.dumps({"score": 0.5, "hits": ["x" * 480 + key], "misses": [key.replace("-", "\\\\u002d")], "reasoning": key}))
"""


def test_a_key_in_answers_verdicts_and_reports_of_an_evaluation(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE % {"python": sys.executable}, encoding="utf-8")
    (tmp_path / "leaky.py").write_text(LEAKY, encoding="utf-8")
    (tmp_path / "judge.py").write_text(JUDGE, encoding="utf-8")
    reports = [f"--output=data/e.{ending}" for ending in ("html", "xml", "json", "yaml", "jsonl")]
    _, said = perform(tmp_path, "eval", "suite.yaml", "--run_name=e", "--verbose", *reports)
    assert (tmp_path / "data" / "e" / "results.jsonl").is_file(), said
    assert REDACTED in (tmp_path / "data" / "e" / "results.jsonl").read_text()
    assert found_in(said.encode(), "said") == []
    assert leaks(tmp_path / "data") == []
    assert REDACTED in (tmp_path / "data" / "e.html").read_text()


BATCH_SUITE = """
description: keys
targets:
  all: {provider: cli, batch_requests: true, command: "%(python)s all.py {EVAL_FILE} {OUTPUT_FILE}"}
assert: [{type: contains, value: planted}]
tests:
  - {id: one, input: "Say it."}
  - {id: two, input: "Say it again."}
"""
ALL = """
import json, os, sys
key = os.environ["OPENAI_API_KEY"]
with open(sys.argv[2], "w") as file:
    for name in ("one", "two"):
        file.write(json.dumps({"id": name, "text": "It is " + key}) + "\\n")
        file.write("no record: " + key.replace("-", "\\\\u002d") + "\\n")
"""


def test_a_key_in_the_output_of_a_batch_command(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(BATCH_SUITE % {"python": sys.executable}, encoding="utf-8")
    (tmp_path / "all.py").write_text(ALL, encoding="utf-8")
    _, said = perform(tmp_path, "eval", "suite.yaml", "--run_name=e")
    assert (tmp_path / "data" / "e" / "results.jsonl").is_file(), said
    assert found_in(said.encode(), "said") == []
    assert leaks(tmp_path / "data") == []
    before = (tmp_path / "data" / "e" / "results.jsonl").read_bytes()
    _, said = perform(tmp_path, "resume", "data/e")
    assert leaks(tmp_path / "data") == []
    assert (tmp_path / "data" / "e" / "results.jsonl").read_bytes().count(b"\n") == before.count(b"\n")


WORKER = """
import os, sys
key = os.environ["OPENAI_API_KEY"]
if sys.argv[1] == "a":
    print('{"value": "%s"}' % key.replace("-", "\\\\u002d"))
else:
    sys.exit("y" * 100 + key + "z" * 190)
"""


def test_a_key_in_cells_and_errors_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,text\n1,a\n2,b\n", encoding="utf-8")
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    words = ["jobs", "spawn", "rows.csv", "--instruction=Do {text}.", "--job_name=j", "--output_csv_path=out.csv"]
    more = [
        "--num_workers=1",
        f"--worker_command={sys.executable} {tmp_path / 'worker.py'} {{text}}",
        "--max_attempts=1",
    ]
    _, said = perform(tmp_path, *words, *more)
    assert (tmp_path / "data" / "j" / "run.db").is_file(), said
    assert found_in(said.encode(), "said") == []
    for shown in (["status", "j", "--json"], ["show", "j"], ["show", "j", "1"], ["show", "j", "2", "--json"]):
        assert found_in(perform(tmp_path, "jobs", *shown)[1].encode(), " ".join(shown)) == []
    assert leaks(tmp_path) == []


def test_each_of_several_keys_in_one_variable_is_a_secret() -> None:
    assert {"planted-one", "planted-two"} <= {*secrets_of({"OPENAI_API_KEYS": "planted-one , planted-two"})}


def test_keys_of_the_environment_are_those_with_such_names(tmp_path: Path, hostile: Any) -> None:
    """Not only the key of the endpoint: whatever a command finds out about the process that started it."""
    others = {"HF_TOKEN": "hf_planted-elsewhere-1", "HTTPS_PROXY": "http://me:planted-elsewhere-2@localhost:1"}
    arguments = json.dumps(json.dumps({"command": " ".join(["echo", *others.values()])}))[1:-1]
    server = hostile(lambda number, _: (200, raw_chat("Look.", [("terminal", arguments)] if number == 1 else [])))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Go."}\n', encoding="utf-8")
    words = ["batch", "--dataset_file=prompts.jsonl", "--batch_size=1", "--run_name=r", f"--base_url={server.url}"]
    more = ["--model=m", "--executor=local", "--sandbox=local", "--distribution=terminal_only", "--max_tokens=100"]
    code, said = perform(tmp_path, *words, *more, "--keep_unreasoned", **others)
    assert code == 0, said
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert b"planted-elsewhere" not in path.read_bytes(), path
    assert os.path.exists(tmp_path / "data" / "r" / "trajectories.jsonl")
