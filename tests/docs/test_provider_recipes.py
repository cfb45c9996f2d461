"""The command lines of ``docs/providers.md``, performed against servers that behave as these providers do."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.batches import ServerThread, run_command
from tests.support.host_servers import HOSTS, KEY, SERVERS, fields_of_requests, reached_at, reply_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/providers.md"
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
VARIABLES = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "OPENROUTER_API_KEY", "MANYHANDS_API_KEY")


def recipes() -> list[tuple[str, str]]:
    """Each command of each section with the lines under it, in the order of the page."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    return [
        (f"{section.splitlines()[0]}-{number}", part)
        for section in sections
        for number, part in enumerate(
            part
            for block in CONSOLE.findall(section)
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
            if part.startswith("manyhands ")
        )
    ]


def address_in(words: list[str]) -> str:
    """The endpoint that a command names."""
    return next(word.removeprefix("--base_url=") for word in words if "://" in word and "--header" not in word)


@pytest.mark.parametrize(("section", "part"), recipes(), ids=[name for name, _ in recipes()])
def test_a_recipe(section: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _, printed = part.partition("\n")
    words = shlex.split(command)[1:]
    url = address_in(words)
    host = urlsplit(url).netloc
    rules = (SERVERS if host.startswith("localhost") else HOSTS)[host]
    for name in VARIABLES:
        monkeypatch.setenv(name, KEY)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with ServerThread(lambda request: reply_of(request, rules)) as server:
        here = server.base_url if host.startswith("localhost") else url.replace("https://", "http://")
        if here != server.base_url:
            reached_at(monkeypatch, server.base_url)
        told = [word.replace(url, here) for word in words]
        if words[0] == "batch":
            told += ["--max_samples=2", "--sandbox=local", "--executor=local", "--quiet"]
        ran = run_command(tmp_path, *told)
        assert ran.code == 0, ran
        fields = fields_of_requests(server.requests)
        refusals = [each for each in server.requests if each.body and rules.refuse(each.body)]
    if words[0] == "batch":
        assert refusals == []
        assert not fields or rules.reasoning_field in fields
    output = " ".join(ran.out.replace(here, url).split())
    for line in printed.splitlines():
        for piece in line.split("…"):
            assert " ".join(piece.split()) in output, (line, ran.out)


def test_every_provider_has_a_recipe() -> None:
    assert {name.rpartition("-")[0] for name, _ in recipes()} == {
        *("OpenAI", "Azure", "OpenRouter", "vLLM", "SGLang", "Ollama", "LiteLLM")
    }
