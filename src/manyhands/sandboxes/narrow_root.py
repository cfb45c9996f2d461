"""What commands in a bubblewrap sandbox can see of the file system."""

from __future__ import annotations

import os
import posixpath
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.project import PROJECT, hidden_below
from manyhands.sandboxes.protocol import SandboxLimits

WORKSPACE = "/workspace"
USER = 1000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PYTHON = Path("/usr/bin/python3")
_SHARED_MEMORY = 64 << 20

# Public by nature: no keys, no passwords, no names of machines. Of these only what everybody may read is shown.
_ETC = (
    "alternatives",
    "ca-certificates",
    "debian_version",
    "fonts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust/extracted/pem",
    "pki/tls/certs",
    "protocols",
    "python3",
    "python3.11",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_FOR_NETWORK = ("resolv.conf",)
OWN_FILES = {
    "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:{USER}:{USER}:user:{WORKSPACE}:/bin/bash\n",
    "/etc/group": f"root:x:0:\nuser:x:{USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}
"""Files that are made for the sandbox, with their contents."""

_TAKEN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")


def mounts(
    folder: Path, alias: str | None, limits: SandboxLimits, project: Path | None = None, hidden: Iterable[Path] = ()
) -> list[str]:
    """Arguments for bwrap. ``folder``: the sandbox's host folder. ``alias``: a further path at which the workspace is seen.
    ``project``: the host's folder to show read-only, but for the ``hidden`` folders in it."""
    workspace = os.fspath(folder / "workspace")
    arguments = ["--unshare-all", *(["--share-net"] if limits.network else [])]
    arguments += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    arguments += ["--uid", str(USER), "--gid", str(USER)]
    arguments += [*_programs(), *_public_etc(limits.network), *_python(_PYTHON)]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    arguments += ["--bind", os.fspath(folder / "tmp"), "/tmp", "--bind", workspace, WORKSPACE]
    if alias is not None:
        arguments += ["--bind", workspace, alias]
    if project is not None:
        arguments += _shown(project, hidden)
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def search_path(python: Path = _PYTHON) -> str:
    """PATH inside."""
    return _PATH if python.exists() else f"{_PATH}:{Path(sys.base_prefix) / 'bin'}"


def start_directory(cwd: str | None, project: Path | None = None) -> tuple[str, str | None]:
    """Where commands start for a row's ``cwd``, and the path at which the workspace must be seen besides, if any.

    Relative: below the workspace. Absolute: the workspace is seen there too, unless it is in the project. Raises
    ItemError(INVALID_INPUT).
    """
    if not cwd:
        return WORKSPACE if project is None else PROJECT, None
    if "\0" in cwd:
        raise ItemError(Cause.INVALID_INPUT, "cwd holds a NUL character")
    path = posixpath.normpath(posixpath.join(WORKSPACE, cwd))
    path = "/" + path.lstrip("/")
    if path == WORKSPACE or path.startswith(f"{WORKSPACE}/"):
        return path, None
    if project is not None and (path == PROJECT or path.startswith(f"{PROJECT}/")):
        if not (project / posixpath.relpath(path, PROJECT)).is_dir():
            raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} is no folder of the project")
        return path, None
    if not posixpath.isabs(cwd):
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} leads out of the workspace")
    if path in ("/", "/tmp") or path.split("/")[1] in _TAKEN:
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} is a folder of the system and can't be a workspace")
    return path, path


def _shown(project: Path, hidden: Iterable[Path]) -> list[str]:
    arguments = ["--ro-bind", os.fspath(project), PROJECT]
    for path in hidden_below(project, hidden):
        place = posixpath.join(PROJECT, path)
        arguments += ["--tmpfs", place, "--remount-ro", place]
    return arguments


def _programs() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    return arguments


def _public_etc(network: bool) -> list[str]:
    arguments = []
    for name in (*_ETC, *(_FOR_NETWORK if network else ())):
        path = f"/etc/{name}"
        if _readable_by_all(path):
            arguments += ["--ro-bind", path, path]
    return arguments


def _readable_by_all(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False


def _python(usual: Path) -> list[str]:
    """Where the system has no Python, ours is shown, without what was installed into an environment of it."""
    if usual.exists() or sys.base_prefix.startswith("/usr"):
        return []
    return ["--ro-bind", sys.base_prefix, sys.base_prefix]
