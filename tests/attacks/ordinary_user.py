"""Runs a selection of tests as an ordinary user, out of a folder of copies that this user can read.

Nothing is mounted, and no owner or mode of anything is changed but of what is made here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USER = 54_321
"""An id that no account has."""
NEEDED = ("pytest", "pytest-asyncio", "pytest-timeout")
COPIED = (
    "src/manyhands",
    "tests/attacks",
    "tests/network",
    "tests/sandboxes",
    "tests/support",
    "tests/__init__.py",
    "pyproject.toml",
)
SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """A user without rights, with ``folder`` readable and ``home`` its own."""

    folder: Path
    home: Path
    python: str

    def run(self, command: Sequence[str], seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, in the folder of copies."""
        identity = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PYTHONPATH": os.pathsep.join(str(self.folder / name) for name in ("src", "packages")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
        }
        return subprocess.run(
            ["setpriv", *identity, "--", *command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )

    def tests(self, *words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """Run tests as this user."""
        return self.run([self.python, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *words], seconds)


@contextmanager
def ordinary_user(*packages: str) -> Iterator[OrdinaryUser]:
    """Make the folder, with further packages; it is removed at the end. Needs the rights of root."""
    folder = Path(tempfile.mkdtemp(prefix="manyhands-user-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        home = folder / "home"
        for path in (home, home / "tmp"):
            path.mkdir(mode=0o700)
            os.chown(path, USER, USER)
        for name in COPIED:
            _copy(ROOT / name, folder / name)
        for distribution in _distributions(packages):
            _copy_distribution(distribution, folder / "packages")
        _readable(folder, home)
        yield OrdinaryUser(folder, home, _python(folder))
    finally:
        shutil.rmtree(folder)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _distributions(packages: Sequence[str]) -> list[metadata.Distribution]:
    """What manyhands needs to run, what its tests need, further packages, and what those need."""
    found: dict[str, metadata.Distribution] = {}
    waiting = ["manyhands", *NEEDED, *packages]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another platform or Python
            continue
        waiting += [requirement for line in found[name].requires or () if (requirement := _required(line))]
    del found["manyhands"]
    return list(found.values())


def _required(line: str) -> str | None:
    """The name in a requirement (PEP 508), but for those of extras."""
    name = re.match(r"[\w.-]+", line)
    return name[0] if name and "extra" not in line.partition(";")[2] else None


def _copy_distribution(distribution: metadata.Distribution, target: Path) -> None:
    for file in distribution.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), target / file)


def _readable(folder: Path, home: Path) -> None:
    """Let everybody read the copies. Only files and folders made here are met: links are not followed."""
    for name, folders, files in os.walk(folder):
        if Path(name) == home:
            folders.clear()
            continue
        os.chmod(name, 0o755)
        for file in files:
            path = os.path.join(name, file)
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.access(path, os.X_OK) and "/bin/" in path else 0o644)


def _python(folder: Path) -> str:
    """A Python of this version that the user can run: ours, the system's, or a copy of ours."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    for candidate in (base, f"/usr/bin/{version}"):
        if _runs(candidate):
            return candidate
    copied = folder / "python"
    prefix = Path(sys.base_prefix)
    for source in (prefix / "lib" / version, *prefix.glob(f"lib/lib{version}*.so*")):
        _copy_part(source, copied / source.relative_to(prefix))
    (copied / "bin").mkdir()
    shutil.copy(base, copied / "bin" / version)
    _readable(copied, copied / "none")
    return str(copied / "bin" / version)


def _copy_part(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "site-packages", "test"))
    else:
        shutil.copy(source, target)


def _runs(python: str) -> bool:
    # What setpriv starts is still found with root's rights; what that starts is not.
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--", "sh", "-c", 'exec "$@"', "sh"]
    command += [python, "-I", "-c", ""]
    return subprocess.run(command, capture_output=True, cwd="/").returncode == 0
