"""``manyhands view`` as a person starts it: what it prints, what curl gets, how it ends, and what it refuses."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.commands import PROGRAM, environment


@contextmanager
def _viewer(cache: Path, *words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A viewer that goes on, and the line that it printed."""
    process = subprocess.Popen(
        [*PROGRAM, "view", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "XDG_CACHE_HOME": str(cache), **variables},
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def _get(port: int, path: str, cookie: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    return connection.getresponse()


def test_one_line_has_the_address_and_its_token(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with _viewer(tmp_path / "cache", str(runs)) as (process, line):
        found = re.fullmatch(
            rf"Runs in {re.escape(str(runs))}: http://127\.0\.0\.1:(\d+)(/\?token=\S+) \(Ctrl-C ends it\)\n", line
        )
        assert found is not None, line
        port = int(found[1])
        assert _get(port, "/").status == 401
        entered = _get(port, found[2])
        assert entered.status == 303
        cookie = str(entered.headers["Set-Cookie"]).split(";")[0]
        assert _get(port, found[2]).status == 401, "a link lets one browser in"
        page = _get(port, "/", cookie)
        assert page.status == 200
        assert "There are no runs in" in page.read().decode()
        twin = json.loads(_get(port, "/?format=json", cookie).read())
        assert twin["runs"] == []
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_browser_is_not_told_the_link_by_its_arguments(tmp_path: Path) -> None:
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.write_text(f'#!/bin/sh\necho "$@" >{told}.new; mv {told}.new {told}\n')
    browser.chmod(0o755)
    with _viewer(tmp_path / "cache", str(tmp_path), "--open", BROWSER=str(browser)) as (process, line):
        link = line.split()[3]
        end = time.monotonic() + 20
        while not told.exists() and time.monotonic() < end:
            time.sleep(0.02)
        address = urlsplit(told.read_text().strip())
        assert (address.scheme, address.query, "token" in address.path) == ("file", "", False)
        page = Path(unquote(address.path))
        assert page.stat().st_mode & 0o777 == 0o600
        assert f'content="0;url={link}"' in page.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert not page.exists()


def test_the_cookie_is_good_for_the_next_viewer_at_the_same_port(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with _viewer(tmp_path / "cache", str(runs)) as (process, line):
        address = line.split()[3]
        port = int(address.split(":")[2].split("/")[0])
        cookie = str(_get(port, address[address.index("/?") :]).headers["Set-Cookie"]).split(";")[0]
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    with _viewer(tmp_path / "cache", str(runs), f"--port={port}"):
        assert _get(port, "/", cookie).status == 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["--host=0.0.0.0"], "--host must be a loopback address (127.0.0.1, ::1 or localhost), not '0.0.0.0'"),
        (["--port=70000"], "must be a port from 0 to 65535, not '70000'"),
        (["--index_gib=much"], "must be a number above 0, up to 100000, not 'much'"),
    ],
)
def test_what_it_refuses_is_said_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    done = subprocess.run([*PROGRAM, "view", *words], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with _viewer(tmp_path / "cache", str(tmp_path)) as (_, line):
        port = line.split()[3].split(":")[2].split("/")[0]
        again = [*PROGRAM, "view", str(tmp_path), f"--port={port}"]
        done = subprocess.run(
            again, capture_output=True, text=True, timeout=30, env={**environment(), "XDG_CACHE_HOME": str(tmp_path)}
        )
    assert done.returncode == 2
    assert re.fullmatch(r"manyhands: error: can't listen on 127\.0\.0\.1 port \d+: .*\n", done.stderr), done.stderr


def test_help_answers_at_once() -> None:
    begun = time.monotonic()
    done = subprocess.run([*PROGRAM, "view", "--help"], capture_output=True, text=True, timeout=30, check=True)
    assert "--no_index" in done.stdout
    assert time.monotonic() - begun < 5, "the server is not imported for it"
