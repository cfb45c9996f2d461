"""Chromium's own sandbox: on for an ordinary user, and off for root, who can't have it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from manyhands.network.rules import NetworkRules
from manyhands.tools.services.browser.chromium import Chromium
from tests.attacks.ordinary_user import ordinary_user
from tests.support.browsers import CHROMIUM, main_process, needs_chromium, renderers, words_of
from tests.support.local_shop import local_shop

pytestmark = needs_chromium


async def test_pages_are_in_its_sandbox_unless_root_runs_it(tmp_path: Path) -> None:
    chromium = Chromium(CHROMIUM, None, tmp_path / "browser", NetworkRules.all(["127.0.0.1"]))
    try:
        page = await (await (await chromium.browser()).new_context()).new_page()
        await chromium.let_out(page)
        async with local_shop() as shop:
            await page.goto(shop.url)
            assert await page.title() == "Lamps"
        main = main_process(tmp_path / "browser")
        is_root = os.geteuid() == 0
        assert ("--no-sandbox" in words_of(main)) == is_root
        found = renderers(main)
        assert found
        for renderer in found:
            status = (renderer / "status").read_text()
            namespaces = re.findall(r"^NSpid:(.*)", status, re.MULTILINE)[0].split()
            filters = re.findall(r"^Seccomp:\s*(\d)", status, re.MULTILINE)[0]
            assert ("--no-sandbox" in words_of(renderer), len(namespaces) == 1, filters != "2") == (is_root,) * 3
    finally:
        await chromium.close()


if os.getuid() == 0:

    @pytest.mark.slow
    def test_it_is_on_for_an_ordinary_user() -> None:
        with ordinary_user("playwright") as user:
            (user.folder / "packages" / "playwright" / "driver" / "node").chmod(0o755)
            ended = user.tests("tests/attacks/test_browser_sandbox.py")
        assert ended.returncode == 0, ended.stdout[-20_000:]
        assert "1 passed" in ended.stdout
