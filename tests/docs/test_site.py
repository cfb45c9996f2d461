"""The documentation as a site: it is built without a warning, and its pages fetch nothing from other machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//|url\(["']?(?:https?:)?//|@import"""
)


def test_the_site_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    site = tmp_path / "site"
    doctrees = ROOT / "build/doctrees"  # what make lint has read need not be read again
    options = ["--quiet", "--fail-on-warning", "--conf-dir", "docs", "--doctree-dir", str(doctrees)]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "README.html", "docs/quickstart.html", "search.html"} <= pages
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert [path.name for path in read if FETCHED.search(path.read_text(encoding="utf-8"))] == []
    assert "batch_runner" in (site / "searchindex.js").read_text(encoding="utf-8")
