"""Makes the environments of ``tests/oracles``, as ``tests/oracles/environments.toml`` names them; those that are there stay.

.venv/bin/python tools/oracle_env.py .venv-oracle-              makes all of them: .venv-oracle-openai and so on
.venv/bin/python tools/oracle_env.py .venv-oracle- openai trl   makes these
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ENVIRONMENTS = Path(__file__).resolve().parents[1] / "tests/oracles/environments.toml"
STAMP = ".ready"
Wanted = Mapping[str, Mapping[str, Any]]


def main(words: Sequence[str]) -> int:
    """Make environments. Returns the exit code."""
    wanted: Wanted = tomllib.loads(ENVIRONMENTS.read_text(encoding="utf-8"))
    if not words or (unknown := [name for name in words[1:] if name not in wanted]):
        print(__doc__ if not words else f"unknown: {', '.join(unknown)}; known: {', '.join(wanted)}", file=sys.stderr)
        return 2
    for name in words[1:] or wanted:
        ready(words[0], name, wanted)
    return 0


def ready(prefix: str, name: str, wanted: Wanted) -> Path:
    """The folder of an environment, which is there and has what it should have."""
    folder = Path(f"{prefix}{name}").absolute()
    used = wanted[name].get("uses")
    beneath = ready(prefix, used, wanted) if used else None
    stamp, content = folder / STAMP, json.dumps([wanted[name], used and wanted[used], sys.version])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == content:
        return folder
    print(f"installing the environment {name} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    if beneath is not None:
        (site_packages(folder) / "beneath.pth").write_text(f"{site_packages(beneath)}\n", encoding="utf-8")
    install(folder, wanted[name].get("packages", ()))
    install(folder, wanted[name].get("alone", ()), "--no-deps", "--ignore-requires-python")
    stamp.write_text(content, encoding="utf-8")
    return folder


def site_packages(folder: Path) -> Path:
    """Where the packages of an environment are."""
    return next((folder / "lib").glob("python3*/site-packages"))


def install(folder: Path, packages: Sequence[str], *options: str) -> None:
    """Install packages into an environment. Ends the program if pip can't."""
    if not packages:
        return
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, *options, *packages], check=False).returncode:
        sys.exit(f"{folder}: {', '.join(packages)} could not be installed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
