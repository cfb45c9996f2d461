"""What is installed is what the lock files name: by hash, from whatever index."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAKEN = {"batch_runner", "run_benchmark"}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_package_has_a_version_and_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    entries = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").strip().splitlines()
    assert len(text) < 1 << 20
    for entry in entries:
        words, *hashes = re.split(r" +--hash=", entry)
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+?)? *", words), entry
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64} *", one) for one in hashes), entry
    assert {"hatchling", "editables", "aiohttp"} <= {entry.partition("==")[0] for entry in entries}
    assert not re.search(r"https?://|file:|^-", text.replace("    --hash", ""), flags=re.MULTILINE)


def test_what_runs_is_part_of_what_is_tested() -> None:
    running, testing = (
        set(re.findall(r"^[a-z0-9-]+==[\w.]+", (ROOT / name).read_text(), flags=re.MULTILINE))
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert running < testing


def test_nothing_depends_on_the_two_top_level_modules() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in TAKEN):
            continue
        for node in ast.walk(ast.parse(text)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not TAKEN & {module.partition(".")[0] for module in modules}, path
