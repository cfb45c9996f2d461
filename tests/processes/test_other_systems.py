"""On a system without what is Linux's own, everything is imported, and runs without tools are made and executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_LINUX = """
import os, resource, signal, socket, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in ("manyhands.processes.system.linux", "manyhands.sandboxes.bubblewrap", "manyhands.sandboxes.confinement"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
LINUX = {
    os: "O_PATH pidfd_open sched_getaffinity memfd_create copy_file_range posix_fallocate O_TMPFILE setns unshare sendfile",
    resource: "prlimit RLIMIT_RTTIME",
    signal: "pidfd_send_signal",
    socket: "SOCK_SEQPACKET",
}
for module, names in LINUX.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""
"""What an interpreter does at its start to be on such a system."""
IMPORT = """
import importlib, pkgutil, sys
import manyhands
OF_SANDBOXES = ("manyhands.sandboxes.", "manyhands.testing.sandbox_contract", "manyhands.testing.fake_worlds.")
for found in pkgutil.walk_packages(manyhands.__path__, "manyhands.", onerror=lambda name: None):
    if not found.name.startswith("manyhands.processes.system.linux") and not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ImportError:
            if not found.name.startswith(OF_SANDBOXES):
                raise
print("imported")
"""


SANDBOX = """
class Nowhere:
    kind = "nowhere"
    def unavailable(self):
        return None
    async def create(self, request):
        raise RuntimeError("no tool is to be called")
"""
"""A backend of another package: its name must be given, as no backend of ours is there."""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an interpreter that is, with all that it starts, on such a system."""
    site = cwd / "site"
    (site / "nowhere-1.0.dist-info").mkdir(parents=True)
    (site / "nowhere-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: nowhere\nVersion: 1.0\n")
    entries = "[manyhands.sandboxes]\nnowhere = nowhere:Nowhere\nbroken = nowhere_at_all:Box\n"
    (site / "nowhere-1.0.dist-info" / "entry_points.txt").write_text(entries)
    (site / "nowhere.py").write_text(SANDBOX)
    (site / "sitecustomize.py").write_text(WITHOUT_LINUX)
    command = [sys.executable, *words]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_everything_but_its_sandboxes_is_imported(tmp_path: Path) -> None:
    done = run("-c", IMPORT, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_batch_without_tools_is_executed(executor: str, tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"say {number}"}) for number in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "own.yaml").write_text("no_tools: {description: none, toolsets: {web: 100}}\n")
    words = [
        "--dataset_file=rows.jsonl",
        "--run_name=other",
        "--batch_size=2",
        "--model=simulated",
        "--simulated_latency=0",
        "--sandbox=nowhere",
    ]
    done = run(
        "-m",
        "manyhands",
        "batch",
        *words,
        "--distributions_file=own.yaml",
        "--distribution=no_tools",
        f"--executor={executor}",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "data" / "other" / "trajectories.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("auto", "not available on this system"),
        ("broken", "the plug-in nowhere_at_all:Box can't be used: ModuleNotFoundError"),
        ("docker", "its sandboxes are made of images: name one with --image"),
    ],
)
def test_a_sandbox_that_is_not_there_is_refused_in_one_line(name: str, says: str, tmp_path: Path) -> None:
    code = "import sys\nfrom manyhands.sandboxes.selection import choose_backend\nchoose_backend(sys.argv[1])"
    done = run("-c", code, name, cwd=tmp_path)
    assert done.stderr.splitlines()[-1].startswith(f"manyhands.core.errors.UserError: --sandbox {name}: {says}")
