"""SIGKILL at random instants for runs whose items have a real Chromium open: the bounded form of ``make crash-test``."""

from __future__ import annotations

import random
from pathlib import Path

from tests.crash.browser_rounds import BrowserRound
from tests.support.browsers import needs_chromium


@needs_chromium
def test_killed_items_buy_the_same(tmp_path: Path) -> None:
    report = BrowserRound(tmp_path, 3, random.Random("browsers")).perform(2)
    assert report.violations == []
    assert report.kills >= 1
