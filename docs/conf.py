"""The documentation as a site: the pages as they are read in the repository, with navigation and search (``make docs``).

Sphinx reads this file. The source is the repository's root, so that links are the same here and there. Nothing in the site
comes from another machine. Every page has its place in ``NAVIGATION``: one that is missing there, and a link that leads
nowhere, are errors in ``make lint``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

NAVIGATION = {
    "Start": [
        "docs/installation",
        "docs/quickstart",
        "docs/viewer",
        "docs/operating",
        "docs/cluster",
        "docs/models",
        "docs/providers",
        "docs/README",
    ],
    "Trajectories": [
        "docs/trajectories",
        "docs/tools",
        "docs/web",
        "docs/browser",
        "docs/pictures",
        "docs/sandboxes",
        "docs/containers",
        "docs/agents-on-a-repository",
        "docs/swe-bench",
        "docs/harbor-tasks",
        "docs/reference/trajectory-files",
    ],
    "CSV jobs": ["docs/csv-jobs", "docs/job-stages", "docs/job-workers", "docs/mcp", "docs/reference/job-tools"],
    "Evaluations": [
        "docs/evaluations",
        "docs/evaluations-in-python",
        "docs/agentv-examples",
        "docs/reference/eval-files",
        "docs/reference/targets",
        "docs/reference/graders",
        "docs/reference/grader-keys",
        "docs/reference/eval-results",
    ],
    "Exports": ["docs/exports"],
    "Memory benchmark": ["docs/memory", "docs/memory-datasets"],
    "Reference": [
        "docs/command-line",
        "docs/reference/command-batch",
        "docs/reference/command-jobs",
        "docs/reference/command-eval",
        "docs/reference/command-memory",
        "docs/schemas/README",
        "docs/promises",
        "docs/security",
    ],
    "The project": ["docs/concepts", "docs/architecture", "examples/README", "CONTRIBUTING", "CHANGELOG"],
}
"""The pages by headings, in their order. The home page is the README."""

project = "manyhands"
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "examples/README.md"]
exclude_patterns = [".*", "build", "data", "site", "src", "tests", "benchmarks"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language
smartquotes = False  # two dashes are an option's
suppress_warnings = ["misc.highlighting_failure"]  # printed text is no program

html_theme = "furo"
html_title = "manyhands"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
templates_path: list[str] = []


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """The table of contents stands in no page, since it would be seen as text in the repository."""
    if page == root_doc:
        for heading, pages in NAVIGATION.items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(pages) + "\n```\n"


def add_index(app: Sphinx, failure: Exception | None) -> None:
    """Web servers look for the home page by this name."""
    home = Path(app.outdir) / f"{root_doc}.html"
    if failure is None and home.exists():
        shutil.copy(home, home.with_name("index.html"))


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
