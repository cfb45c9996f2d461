"""The credentials that a person's engine configuration has for registries. They are read when they are needed, and never kept or recorded.

Files: ``config.json`` of Docker (``DOCKER_CONFIG``, else ``~/.docker``), ``auth.json`` of Podman (``REGISTRY_AUTH_FILE``, else below
``XDG_RUNTIME_DIR`` or ``~/.config``). Entries are ``{"auths": {HOST: {"auth": base64 of USER:PASSWORD}}}``, or the name of a helper program
(``credHelpers``, ``credsStore``), which is asked as Docker's own client asks it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyhands.core.redaction import KNOWN

_HELPER_SECONDS = 20.0
_MAX_BYTES = 1_000_000


def credentials(kind: str, repository: str) -> tuple[str, str] | None:
    """User and password for a repository (``host:port/name``); None if the configuration has none. A repository without a host is one of
    Docker's own registry."""
    for path in _files(kind, os.environ):
        found = _in_file(_content(path), repository)
        if found is not None:
            KNOWN.add([found[1]])
            return found
    return None


def _files(kind: str, environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HOME") or "/")
    if kind == "podman":
        if given := environment.get("REGISTRY_AUTH_FILE"):
            yield Path(given)
            return
        yield Path(environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "containers/auth.json"
        if os.getuid() == 0:
            yield Path("/run/containers/0/auth.json")
        yield home / ".config/containers/auth.json"
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _content(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _in_file(content: Mapping[str, Any], repository: str) -> tuple[str, str] | None:
    auths = content.get("auths")
    auths = auths if isinstance(auths, dict) else {}
    helpers = content.get("credHelpers")
    helpers = helpers if isinstance(helpers, dict) else {}
    for name in _names(repository):
        for key in helpers:
            if _matches(key, name):
                return _helped(str(helpers[key]), key)
        for key, entry in auths.items():
            if _matches(key, name):
                store = content.get("credsStore")
                return _decoded(entry) or (_helped(store, key) if isinstance(store, str) else None)
    return None


def _names(repository: str) -> Iterator[str]:
    """What an entry may be called: the repository, its parents, its host; ``index.`` for those without a host."""
    host, slash, _ = repository.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        yield "index."
        return
    parts = repository.split("/")
    yield from ("/".join(parts[:end]) for end in range(len(parts), 0, -1))


def _matches(key: str, name: str) -> bool:
    bare = key.removeprefix("https://").removeprefix("http://")
    if name == "index.":
        return bare.startswith(name)
    return bare.rstrip("/") == name or (
        "/" not in name and bare.partition("/")[0] == name and bare.startswith((f"{name}/v1", f"{name}/v2"))
    )


def _decoded(entry: object) -> tuple[str, str] | None:
    given = entry.get("auth") if isinstance(entry, dict) else None
    if not isinstance(given, str) or not given:
        return None
    try:
        user, colon, password = base64.b64decode(given).decode().partition(":")
    except ValueError:  # no base64, or no text
        return None
    return (user, password.rstrip("\0")) if colon else None


def _helped(helper: str, key: str) -> tuple[str, str] | None:
    """What a helper program says. It gets the key by its input, and answers on its output."""
    if not helper.replace("-", "").replace("_", "").isalnum():
        return None
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=key.encode(),
            capture_output=True,
            timeout=_HELPER_SECONDS,
            check=False,
        )
        said = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or not isinstance(said, dict):
        return None
    user, password = said.get("Username"), said.get("Secret")
    return (user, password) if isinstance(user, str) and isinstance(password, str) else None
