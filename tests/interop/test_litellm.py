"""A run through LiteLLM's proxy, with its own made-up answers and with the simulated model behind it.

``make interop-test`` installs the proxy into an environment of its own, since it needs other versions of libraries.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.batches import BatchFolder, run_command
from tests.support.ports import held_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
PROGRAM = os.environ.get("LITELLM") or shutil.which("litellm")
KEY = "sk-interop-0123456789"
STARTS_WITHIN = 120.0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a proxy with the models ``mock`` and ``caller``."""
    if PROGRAM is None:
        pytest.skip("there is no litellm; make interop-test installs it")
    with held_port() as port, held_port() as behind:
        yield from _served(tmp_path_factory.mktemp("proxy"), PROGRAM, port, behind)


def _served(folder: Path, program: str, port: int, behind: int) -> Iterator[str]:
    mock = {"model": "openai/mock", "api_key": "none", "mock_response": "The answer."}
    caller = {"model": "openai/simulated", "api_key": "none", "api_base": f"http://127.0.0.1:{behind}/v1"}
    models = [{"model_name": name, "litellm_params": each} for name, each in (("mock", mock), ("caller", caller))]
    config = folder / "config.yaml"
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    simulate = [sys.executable, "-m", "manyhands", "simulate", f"--port={behind}"]
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        stack.callback(_end, subprocess.Popen(simulate, env=environment, stdout=log, stderr=log))
        del environment["PYTHONPATH"]  # the proxy has an environment of its own
        stack.callback(_end, subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log))
        base_url = f"http://127.0.0.1:{port}/v1"
        _wait_for(f"{base_url}/models", folder / "log")
        yield base_url


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(url: str, log: Path) -> None:
    latest = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < latest:
        try:
            with urlopen(Request(url, headers={"Authorization": f"Bearer {KEY}"}), timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace")[-2000:])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchFolder:
    monkeypatch.setenv("MANYHANDS_API_KEY", KEY)
    return BatchFolder(tmp_path)


def test_answers_of_the_proxy_itself(proxy: str, folder: BatchFolder) -> None:
    words = ("--model=mock", f"--base_url={proxy}", "--keep_unreasoned", "--stop=###", "--header=X-Team: mine")
    ran = folder.batch(*words, '--extra_body={"metadata": {"team": "mine"}}')
    assert ran.code == 0, ran
    answers = {line["conversations"][-1]["value"] for line in folder.lines()}
    assert {answer.rpartition("\n")[2] for answer in answers} == {"The answer."}
    assert folder.json("summary.json")["ledger"]["completed"] == 3


def test_tools_reasoning_and_a_resume_through_the_proxy(proxy: str, folder: BatchFolder) -> None:
    words = ("--model=caller", f"--base_url={proxy}", "--max_tokens=1000", "--seed=3")
    assert folder.batch(*words, "--max_samples=1").code == 0
    ran = run_command(folder.path, "resume", "r", "--max_samples=3", "--quiet")
    assert ran.code == 0, ran
    statistics = folder.json("statistics.json")
    reasoned = statistics["reasoning_statistics"]
    assert reasoned["turns_with_reasoning"] == reasoned["total_assistant_turns"] > 3
    assert folder.json("summary.json")["ledger"]["completed"] == 3
    assert all(line["metadata"]["simulated"] for line in folder.lines())
    assert run_command(folder.path, "check", "r").code == 0


def test_what_is_found_out_about_the_proxy(proxy: str, folder: BatchFolder) -> None:
    ran = run_command(folder.path, "check-endpoint", proxy, "--model=caller", "--json")
    assert ran.code == 0, ran
    report = json.loads(ran.out)
    found = {name: check["result"] for name, check in report["checks"].items()}
    assert {found[name] for name in ("key accepted", "tool calls", "reasoning returned", "takes reasoning back")} == {
        "yes"
    }
    assert report["options"] == [f"--base_url={proxy}", "--model=caller"]
    words = ("--model=caller", "--api_key=sk-wrong-0123456789", "--json")
    refused = run_command(folder.path, "check-endpoint", proxy, *words)
    assert refused.code == 1
    assert not json.loads(refused.out)["usable"]


def test_a_model_that_the_proxy_does_not_have(proxy: str, folder: BatchFolder) -> None:
    ran = folder.batch("--model=unknown", f"--base_url={proxy}", "--max_samples=1")
    assert ran.code == 1
    assert "Invalid model name" in folder.lines("failures.jsonl")[0]["message"]
