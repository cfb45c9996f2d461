"""What each option of further models and of the browser does, seen from outside: the same for every workload that has these options."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from manyhands.testing.scripted_server import RecordedRequest
from tests.support.batches import ServerThread
from tests.support.browsers import CHROMIUM, running_browser
from tests.support.picture_files import picture
from tests.support.picture_services import PictureService
from tests.support.web_checks import threaded
from tests.support.web_fakes import LocalSite, page


class Runs(Protocol):
    """Runs of one item each by the built-in agent."""

    @property
    def path(self) -> Path:
        """What paths are relative to."""
        ...

    def result(self, tool: str, arguments: Mapping[str, Any], *words: str, toolset: str = "web") -> str:
        """What the model got in a new run as the result of one call."""
        ...

    def refused(self, *words: str) -> str:
        """What is said of a command line that is refused before anything is made."""
        ...


TOOL_CHECKS: dict[str, Callable[[Runs], None]] = {}


def _option(check: Callable[[Runs], None]) -> None:
    TOOL_CHECKS[check.__name__.removeprefix("_")] = check


def _mixed(runs: Runs, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        runs.result("mixture_of_agents", {"user_prompt": "How many?"}, *words, toolset="moa")
    )["models_used"]
    return found


@_option
def _moa_models(runs: Runs) -> None:
    assert _mixed(runs, "--moa_models=a,b") == {"reference_models": ["a", "b"], "aggregator_model": "a"}
    assert "twice" in runs.refused("--moa_models=a,a")


@_option
def _moa_aggregator(runs: Runs) -> None:
    assert _mixed(runs, "--moa_models=a,b", "--moa_aggregator=c")["aggregator_model"] == "c"
    assert "--moa_models" in runs.refused("--moa_aggregator=c")


def _looked(runs: Runs, *words: str) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    asked = {"image_url": url, "question": "What is it?"}
    found: dict[str, Any] = json.loads(runs.result("vision_analyze", asked, *words, toolset="vision"))
    return found


@_option
def _vision_model(runs: Runs) -> None:
    with ServerThread() as server:
        _looked(runs, "--vision_model=one", f"--vision_base_url={server.base_url}")
        _looked(runs, "--vision_model=other", f"--vision_base_url={server.base_url}")
        assert [body["model"] for body in server.bodies] == ["one", "other"]


@_option
def _vision_base_url(runs: Runs) -> None:
    with ServerThread() as server:
        assert _looked(runs, "--vision_model=sees", f"--vision_base_url={server.base_url}")["success"]
        assert [body["model"] for body in server.bodies] == ["sees"]
    assert "--vision_model" in runs.refused("--vision_base_url=http://localhost:1/v1")


def _drawn(runs: Runs, *words: str) -> list[RecordedRequest]:
    """The requests that a service which makes pictures gets."""
    service = PictureService()
    with ServerThread(service) as server:
        service.base_url = server.base_url
        given = ("--image_provider=openai", f"--image_base_url={server.base_url}", "--image_model=paints")
        said = runs.result("image_generate", {"prompt": "A house"}, *given, *words, toolset="image_gen")
        assert json.loads(said)["success"], said
        return list(server.requests)


@_option
def _image_provider(runs: Runs) -> None:
    assert _drawn(runs)[0].path == "/v1/images/generations"
    assert "needs --image_model" in runs.refused("--image_provider=openai")


@_option
def _image_model(runs: Runs) -> None:
    assert _drawn(runs, "--image_model=other")[0].body["model"] == "other"


@_option
def _image_base_url(runs: Runs) -> None:
    assert len(_drawn(runs)) == 1
    assert "must be an address" in runs.refused("--image_provider=fal", "--image_model=a", "--image_base_url=a")


@_option
def _image_quality(runs: Runs) -> None:
    assert _drawn(runs, "--image_quality=low")[0].body["quality"] == "low"


def _opened(runs: Runs, *words: str) -> dict[str, Any]:
    """The result of opening a page of a site on this machine."""
    with threaded(LocalSite({"/mill": page("The mill", "Corn.")})) as site:
        asked = {"url": f"{site.url}/mill"}
        said = runs.result("browser_navigate", asked, "--web_allow_private", *words, toolset="browser")
        found: dict[str, Any] = json.loads(said)
        return found


@contextmanager
def _wrapped(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A program that starts Chromium, and a file that it leaves when it does."""
    program, mark = folder / "own-chromium", folder / "started"
    program.write_text(f'#!/bin/sh\n: >"{mark}"\nexec "{CHROMIUM}" "$@"\n')
    program.chmod(0o755)
    yield program, mark


@_option
def _browser_executable(runs: Runs) -> None:
    assert "--browser_executable" in runs.refused("--browser_executable=/nowhere")
    if CHROMIUM is not None:
        with _wrapped(runs.path) as (program, mark):
            assert _opened(runs, f"--browser_executable={program}")["title"] == "The mill"
            assert mark.exists()


@_option
def _browser_cdp(runs: Runs) -> None:
    assert "error" in _opened(runs, "--browser_cdp=http://127.0.0.1:9")
    for wrong in ("127.0.0.1:9", "file:///etc", "ws://"):
        assert "--browser_cdp must be an address" in runs.refused(f"--browser_cdp={wrong}")
    said = runs.refused("--browser_cdp=wss://browsers.example/?token=abcdefgh")
    assert "BROWSER_CDP_URL" in said
    assert "abcdefgh" not in said
    assert "one of them" in runs.refused("--browser_cdp=http://127.0.0.1:9", "--browser_executable=/bin/true")
    if CHROMIUM is not None:
        with running_browser(runs.path / "profile") as address:
            assert _opened(runs, f"--browser_cdp={address}")["title"] == "The mill"
            assert _opened(runs, f"--browser_cdp={address}")["title"] == "The mill"


@_option
def _browser_contexts(runs: Runs) -> None:
    assert "--browser_contexts" in runs.refused("--browser_contexts=0")
    if CHROMIUM is not None:
        assert _opened(runs, "--browser_contexts=1")["success"]


@_option
def _browser_resume(runs: Runs) -> None:
    assert "--browser_resume" in runs.refused("--browser_resume=never")
    if CHROMIUM is not None:
        assert _opened(runs, "--browser_resume=attempt")["success"]
