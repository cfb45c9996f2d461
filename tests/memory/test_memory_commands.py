"""The memory benchmark on the command line: what it prints, shows and refuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from manyhands.cli.main import main
from manyhands.cli.memory.benchmark import line_of, view_of
from manyhands.core.errors import UserError
from manyhands.testing.scripted_server import RecordedRequest, chat_response
from manyhands.workloads.memory.conversation.driver import ConversationStatus, WaitingTest
from manyhands.workloads.memory.datasets.configuration import read_configuration
from tests.support.batches import ServerThread
from tests.support.commands import PROGRAM, environment
from tests.support.memory_benchmarks import START, log_of, write_configuration


def manyhands(*words: str) -> tuple[int, str, str]:
    """A command line in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


def run_words(folder: Path, *more: str, configuration: str = "small.yml") -> list[str]:
    return [
        "memory",
        "run",
        "-c",
        str(folder / configuration),
        f"--data_dir={folder}/data",
        f"--start_time={START}",
        "--tokenizer=estimate",
        *more,
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of three agents."""
    folder = tmp_path_factory.mktemp("commands")
    write_configuration(folder, ("colours", "locations", "jokes"))
    words = run_words(folder, "-a", "simulated", "-a", "scratchpad(simulated)", "-a", "forgetful", "-m", "900")
    code, out, err = manyhands(*words, "--judge_model=simulated")
    assert code == 0, err
    assert re.search(r"LLMChatSession - simulated - 900 \(simulated\)\s+completed", out)
    assert "Results:  " in out
    return folder / "data/tests/small"


def test_other_commands_know_the_run(made: Path) -> None:
    data = f"--data_dir={made.parent.parent}"
    code, out, _ = manyhands("runs", data)
    assert (code, "small" in out) == (0, True)
    assert manyhands("status", "small", data)[0] == 0
    code, out, err = manyhands("check", "small", data)
    assert code == 0, out + err
    code, out, err = manyhands("resume", "small", data)
    assert code == 0, err
    assert out.count("completed") == 3


def test_a_session_is_shown_as_the_conversation_that_it_was(made: Path) -> None:
    code, out, err = manyhands("show", str(made), "1", "--full")
    assert code == 0, err
    shown = " ".join(out.split())
    for kind, test, data in log_of(made, "LLMChatSession - simulated - 900"):
        if kind in (0, 4, 3, 5):
            assert " ".join(data["message"].split()) in shown, (test, data)
    assert re.search(r"message \d+, test Colours - 0:", out)
    assert re.search(r"message \d+, filler:", out)
    assert re.search(r"agent, after \d+\.\d\d s:", out)
    assert '{"seconds"' not in out
    code, out, _ = manyhands("show", str(made), "2")
    assert "assistant, calls:" in out
    assert "add_note" in out


def test_a_session_is_shown_without_its_log(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data/tests/small"
    shutil.copytree(made, copy)
    shutil.rmtree(copy / "results")
    code, out, _ = manyhands("show", str(copy), "3")
    assert code == 0
    assert "its text is not in the log" in out


def test_a_run_resumed_with_other_words_is_refused(made: Path) -> None:
    code, _, err = manyhands("resume", str(made), "--max_cost=3")
    assert code == 2
    assert "manyhands memory run" in err


def test_several_configurations_at_once(tmp_path: Path) -> None:
    write_configuration(tmp_path, ["colours"], name="one")
    write_configuration(tmp_path, ["name_list"], name="two")
    words = ["-c", str(tmp_path / "two.yml"), "-a", "forgetful", "-a", "perfect", "-q"]
    code, out, err = manyhands(*run_words(tmp_path, *words[:-1], configuration="one.yml"))
    assert code == 0, err
    assert out.count("completed") == 4
    (tmp_path / "same.yml").write_text((tmp_path / "one.yml").read_text())
    code, _, err = manyhands(
        *run_words(tmp_path, "-c", str(tmp_path / "same.yml"), "-a", "forgetful", configuration="one.yml")
    )
    assert code == 2
    assert "same run_name" in err


def test_the_originals_command_line(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    program = [sys.executable, str(Path(__file__).parents[2] / "run_benchmark.py")]
    words = ["-c", "small.yml", "-a", "forgetful", "-m", "16000", "-y", "-l", "-i"]
    done = subprocess.run(
        [*program, *words], cwd=tmp_path, capture_output=True, text=True, env=environment(), check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/tests/small (isolated)/results/ForgetfulAgent/runstats.json").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--configuration is required"),
        (["-c", "x.yml"], "--agent_name is required"),
        (["-c", "x.yml", "-a", "perfect", "--concurrency=many"], "concurrency"),
        (["-c", "x.yml", "-a", "command:"], "--agent_name"),
        (["-c", "x.yml", "-a", "perfect", "--agnet=3"], "--agnet"),
        (["-c", "x.yml", "-a", "perfect", "-m", "0"], "max_prompt_size"),
        (["-c", "x.yml", "-a", "perfect"], "x.yml"),
    ],
)
def test_wrong_words_are_one_line(words: Sequence[str], says: str) -> None:
    code, out, err = manyhands("memory", "run", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_help_names_every_command() -> None:
    code, out, _ = manyhands("memory", "--help")
    assert code == 0
    for name in ("run", "generate", "rescore", "report", "describe"):
        assert f"\n  {name} " in out
    assert manyhands("memory", "runn")[0] == 2


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    (tmp_path / "data").write_text("a file")
    code, _, err = manyhands(*run_words(tmp_path, "-a", "forgetful"))
    assert code in (1, 2)
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "internal error" not in err


# --- Configurations


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "config:\n  run_name: a/b\ndatasets:\n  args: {memory_span: 10, dataset_examples: 1}\n  datasets:\n  - name: kv\n",
            1,
        ),
        ("config: {}\ndatasets: {datasets: []}\n", 2),
        ("config: {run_name: x, colour: red}\ndatasets: {args: {}, datasets: [{name: kv, agrs: {}}]}\n", 2),
        ("config: {run_name: x}\ndatasets: {args: {memory_span: -1}, datasets: [{name: kv}]}\n", 2),
        ("config: {run_name: x}\ndatasets: {args: {filler_tokens_low: 1}, datasets: [{name: kv}]}\n", 1),
        ("[", 1),
        ("", 1),
        (
            "config: {run_name: "
            + "x" * 300
            + "}\ndatasets: {args: {memory_span: 9, dataset_examples: 1}, datasets: [{name: kv}]}",
            1,
        ),
    ],
)
def test_every_mistake_of_a_configuration_has_its_line(tmp_path: Path, text: str, lines: int) -> None:
    path = tmp_path / "broken.yml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_configuration(path)
    found = str(caught.value).splitlines()
    assert len(found) == lines, found
    assert all(line.startswith(str(path)) for line in found)


def test_wrong_datasets_are_named_with_their_lines(tmp_path: Path) -> None:
    write_configuration(tmp_path, ["colours", "coulors", {"name": "jokes", "args": {"jokes_tolled": 3}}])
    code, out, err = manyhands(*run_words(tmp_path, "-a", "perfect"))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 2
    assert all("small.yml, line " in line for line in err.splitlines())
    assert "colours" in err
    assert "jokes_told" in err


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["kv", "colours"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "config",
                    "datasets",
                    "args",
                    "name",
                    "run_name",
                    "memory_span",
                    "dataset_examples",
                    "incompatibilities",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES)
def test_whatever_is_in_a_configuration_it_is_read_or_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "any.yml"
    path.write_text(json.dumps(value), encoding="utf-8")
    with contextlib.suppress(UserError):
        read_configuration(path)


# --- The terminal


def at_terminal(words: Sequence[str], folder: Path, answers: Sequence[str] = ()) -> tuple[int, str]:
    """A command line at a terminal of its own; ``answers`` are typed when it asks. Its exit code and what it showed."""
    ours, theirs = pty.openpty()
    left = list(answers)
    shown = b""
    with subprocess.Popen(
        [*PROGRAM, *words],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment(), "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        asked = 0
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
            questions = len(re.findall(rb"\[?y\]?/\[?n\]? ", shown))
            while asked < questions and left:
                asked += 1
                os.write(ours, f"{left.pop(0)}\n".encode())
        os.close(ours)
    return process.returncode, shown.decode(errors="replace")


def test_a_person_is_asked_and_sees_the_sessions(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    words = run_words(tmp_path, "-a", "simulated", "--simulated_latency=0.05")
    code, shown = at_terminal(words, tmp_path)
    assert code == 0, shown
    for text in ("virtual time", "speaking", "waiting", "LLMChatSession - simulated"):
        assert text in shown
    code, shown = at_terminal(words, tmp_path, ["maybe", "", "n", "n"])
    assert code == 2, shown
    assert shown.count("Use them?") == 2  # asked again after an answer that is none
    assert "Continue them?" in shown
    assert "nothing was changed" in shown


def test_the_view_shows_who_speaks_and_who_waits() -> None:
    waiting = tuple(WaitingTest(f"Test [b]{number}[/b]", 100 * number, 60.0 * number) for number in range(5))
    status_of = ConversationStatus("Agent [/x]", "Colours [red]- 0", waiting, 1.7e9, 12_345, 2, 9, 0.5)
    console = Console(file=io.StringIO(), width=400)
    console.print(view_of([status_of]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("Agent [/x]", "Colours [red]- 0", "2/9", "0.50", "12,345", "Test [b]1[/b] (100 tokens and 0:01:00)"):
        assert part in text
    assert "and 2 more" in text
    assert line_of(status_of).startswith("Agent [/x]: 2 of 9 tests ended, score so far 0.50, 12,345 tokens")
    waits = f"waiting until {datetime.fromtimestamp(1.7e9):%Y-%m-%d %H:%M:%S} (in real time)"
    assert line_of(replace(status_of, real_until=1.7e9)).endswith(waits)


# --- Tests that a model writes


def test_a_model_writes_tests_once(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", {"name": "delayed_recall", "args": {"generation": "model"}}))
    words = ["-c", str(tmp_path / "small.yml"), f"--data_dir={tmp_path}/data", "--tokenizer=estimate"]
    code, _, err = manyhands("memory", "run", *words, "-a", "perfect")
    assert code == 2
    assert "manyhands memory generate" in err
    code, _, err = manyhands("memory", "generate", *words)
    assert code == 2
    assert "--judge_model" in err
    code, out, err = manyhands("memory", "generate", *words, "--judge_model=simulated")
    assert code == 0, err
    assert "2 tests are in" in out
    assert {path.parent.name for path in (tmp_path / "data").rglob("*.def.json")} == {"Colours", "Delayed Recall"}
    before = {path: path.read_text() for path in (tmp_path / "data").rglob("*.def.json")}
    assert manyhands("memory", "generate", *words, "--judge_model=simulated")[0] == 0
    assert {path: path.read_text() for path in before} == before
    code, out, err = manyhands("memory", "run", *words, "-a", "perfect", "--judge_model=simulated")
    assert code == 0, err
    assert "2.00 of 2" in out


def test_what_writes_tests_is_asked_with_its_key_and_prices_also_when_it_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MANYHANDS_API_KEY", "key-0123456789abcdef")
    write_configuration(tmp_path, ({"name": "delayed_recall", "args": {"generation": "model"}},))
    (tmp_path / "prices.yaml").write_text("m: {input: 1, output: 1}\n")
    words = ["-c", str(tmp_path / "small.yml"), f"--data_dir={tmp_path}/data", f"--prices={tmp_path}/prices.yaml"]
    asked: list[RecordedRequest] = []

    def reply(request: RecordedRequest) -> dict[str, Any]:
        asked.append(request)
        return chat_response("no tests")

    with ServerThread(reply) as server:
        judge = ["--judge_model=m", f"--judge_base_url={server.base_url}"]
        code, out, err = manyhands("memory", "generate", *words, *judge)
        assert (code, "price" in out + err) == (1, False)
        (folder,) = (tmp_path / "data").rglob("definitions")
        before = len(asked)
        assert manyhands("resume", str(folder))[0] == 1
    assert len(asked) > before > 0
    assert {each.headers["Authorization"] for each in asked} == {"Bearer key-0123456789abcdef"}
