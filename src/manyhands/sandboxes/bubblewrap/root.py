"""What commands in a bubblewrap sandbox can see of the file system."""

from __future__ import annotations

import os
import posixpath
import stat
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.bubblewrap.as_root import Folder
from manyhands.sandboxes.project import PROJECT, hidden_below
from manyhands.sandboxes.protocol import SandboxLimits

WORKSPACE = "/workspace"
_OWN = "own-"
"""In a sandbox's host folder: what stands before the names of its further folders (``SandboxRequest.folders``)."""
EMPTY = "empty"
"""In a sandbox's host folder: an empty folder, which is visible instead of what is hidden."""
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
# Files and folders of /proc that lead to the kernel or the machine instead of to processes.
_CLOSED = (
    "acpi",
    "asound",
    "bus",
    "cmdline",
    "config.gz",
    "driver",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "modules",
    "mtrr",
    "pressure",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
)
_FOR_NETWORK = ("resolv.conf",)
OWN_FILES = {
    "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:{USER}:{USER}:user:{WORKSPACE}:/bin/bash\n",
    "/etc/group": f"root:x:0:\nuser:x:{USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    # A project that seems to belong to somebody else (root, where the file system can't show it as ours) is still to be worked with.
    "/etc/gitconfig": "[safe]\n\tdirectory = *\n",
}
"""Files that are made for the sandbox, with their contents."""

_TAKEN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")


def folders(
    folder: Path, alias: str | None, project: Path | None, hidden: Iterable[Path], own: Iterable[str] = ()
) -> list[Folder]:
    """The host's folders that are seen inside, besides those of programs. ``folder``: the sandbox's host folder. ``alias``: a further
    path at which the workspace is seen. ``project``: shown read-only, but for the ``hidden`` folders in it, which look empty. ``own``:
    paths of further folders of the sandbox."""
    workspace = folder / "workspace"
    found = [Folder(folder / "tmp", "/tmp", writable=True)]
    found += [Folder(own_folder(folder, path), path, writable=True) for path in own]
    found += [Folder(workspace, target, writable=True) for target in (WORKSPACE, alias) if target is not None]
    found += _python(_PYTHON)
    found += [Folder(Path(path), path, public=True) for path in _public_etc() if os.path.isdir(path)]
    found += closed_interfaces(folder / EMPTY)
    if project is not None:
        found.append(Folder(project, PROJECT))
        found += [Folder(folder / EMPTY, posixpath.join(PROJECT, path)) for path in hidden_below(project, hidden)]
    return found


def own_folder(folder: Path, path: str) -> Path:
    """Where one of a sandbox's further folders is on the host. Raises ItemError(INVALID_INPUT) for a path that it can't have."""
    name = path.removeprefix("/")
    if not path.startswith("/") or "/" in name or name in ("", "..", ".", "tmp", "workspace", "project", *_TAKEN):
        raise ItemError(Cause.INVALID_INPUT, f"{path!r} can't be a folder of a sandbox")
    return folder / f"{_OWN}{name}"


def copies(network: bool) -> list[str]:
    """The public files of ``/etc``: each is copied, which takes bubblewrap a fifth of the time of a mount."""
    names = [*_public_etc(), *(f"/etc/{name}" for name in _FOR_NETWORK if network)]
    return [path for path in names if stat.S_ISREG(mode := _mode(path)) and mode & stat.S_IROTH]


def mounts(shown: Sequence[Folder], limits: SandboxLimits, *, attached: bool) -> list[str]:
    """Arguments for bwrap. ``shown``: what ``folders`` said; with ``attached`` only mount points for them are made, and ``attach`` does the
    rest in a tenth of the time: bubblewrap reads the whole list of mounts for each one that it makes."""
    arguments = ["--unshare-all", *(["--share-net"] if limits.network else [])]
    arguments += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    arguments += ["--uid", str(USER), "--gid", str(USER)]
    arguments += [*_programs(), "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    for each in shown:
        if not attached:
            arguments += ["--bind" if each.writable else "--ro-bind", os.fspath(each.source), each.target]
        elif not each.target.startswith(("/proc/", f"{PROJECT}/")):  # what these lie in has them already
            arguments += ["--dir", each.target]
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


def closed_interfaces(empty: Path) -> list[Folder]:
    """What closes those interfaces of the kernel which are not about processes: what can be set is read-only, what tells of
    the machine is empty. ``empty``: an empty folder of the host's."""
    found = [Folder(Path("/proc/sys"), "/proc/sys", public=True)]
    found += [Folder(empty if is_folder else Path(os.devnull), path, public=True) for path, is_folder in _interfaces()]
    return found


@cache
def _interfaces() -> list[tuple[str, bool]]:
    """Those that are here, and whether they are folders. What ordinary people can neither read nor write anyway is left as it is."""
    found = []
    for name in _CLOSED:
        mode = _mode(path := f"/proc/{name}")
        if stat.S_ISDIR(mode) or mode & (stat.S_IROTH | stat.S_IWOTH):
            found.append((path, stat.S_ISDIR(mode)))
    return found


@cache
def _programs() -> Sequence[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    return arguments


@cache
def _public_etc() -> list[str]:
    """What there is of it that everybody may read."""
    return [path for name in _ETC if _mode(path := f"/etc/{name}") & stat.S_IROTH]


def _mode(path: str) -> int:
    """0 if there is nothing."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _python(usual: Path) -> list[Folder]:
    """Where the system has no Python, ours is shown, without what was installed into an environment of it."""
    if usual.exists() or sys.base_prefix.startswith("/usr"):
        return []
    return [Folder(Path(sys.base_prefix), sys.base_prefix)]
