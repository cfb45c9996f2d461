"""What commands see in a world made of an image: its files under an overlay of the sandbox's own (overlayfs, ``userxattr``), beside the
kernel's folders.

In the sandbox's host folder: ``upper`` is what differs from the image, ``work`` belongs to the kernel. Deleted files of the image are
character devices 0:0 in ``upper``, and folders that hide theirs have an extended attribute (Documentation/filesystems/overlayfs.rst).

The overlay is mounted in a mount namespace that only bubblewrap's own process is in, before it makes that of the sandbox. So it is gone
when they are, whatever happens to us.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.bubblewrap.as_root import Folder
from manyhands.sandboxes.bubblewrap.own_ids import OwnIds
from manyhands.sandboxes.bubblewrap.root import EMPTY, closed_interfaces
from manyhands.sandboxes.files.trees import NotPlain, Tree, open_folder, open_regular, read_at_most
from manyhands.sandboxes.images.unpacked import MOUNT_POINTS
from manyhands.sandboxes.project import PROJECT, hidden_below
from manyhands.sandboxes.protocol import SandboxLimits

UPPER, WORK = "upper", "work"
_PLACES = ("/mnt", "/opt", "/srv", "/media", "/home")
"""Folders that most systems have, over one of which the overlay is mounted; nobody else sees it there."""
_SHARED_MEMORY = 256 << 20
_MAX_FILE = 4 << 20
_NEEDED = ("bwrap", "nsenter", "unshare", "mount", "sh")

# $1: the image; $2: the sandbox's folder; $3: where to mount; then the names that must be folders there, ``--``, and bubblewrap's words.
# Descriptors instead of paths: those could hold what separates options.
_MOUNT = """\
mount -n -t overlay -o userxattr,nosuid,nodev,\
lowerdir=/proc/self/fd/8,upperdir=/proc/self/fd/7/upper,workdir=/proc/self/fd/7/work manyhands "$3" 8<"$1" 7<"$2" || exit 1
top=$3; shift 3
while [ "$1" != -- ]; do
  if [ -h "$top/$1" ] || [ ! -d "$top/$1" ]; then echo "/$1 is no folder any more"; exit 1; fi
  shift
done
shift
exec "$@"
"""


def bubblewrap_words(root: Path, folder: Path, ids: OwnIds, namespace: int, bwrap: str) -> list[str]:
    """The words that start bubblewrap with the overlay mounted at ``mounted_at()``. ``root``: the unpacked image; ``folder``: the
    sandbox's; ``namespace``: a descriptor of the user namespace of ``ids``, to be inherited. Raises ItemError(SANDBOX_LOST)."""
    user = f"--user=/proc/self/fd/{namespace}"
    mounting = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh", os.fspath(root)]
    mounting += [os.fspath(folder), mounted_at(), *MOUNT_POINTS, "--"]
    if ids.as_root:  # root's own rights reach folders that nobody inside could enter
        return [*mounting, "nsenter", user, bwrap]
    return ["nsenter", user, "--preserve-credentials", *mounting, bwrap]


def missing_program() -> str | None:
    """A program that is needed and not there."""
    return next((name for name in _NEEDED if shutil.which(name) is None), None)


def mounted_at() -> str:
    """Raises ItemError(SANDBOX_LOST)."""
    place = next((place for place in _PLACES if os.path.isdir(place) and not os.path.islink(place)), None)
    if place is None:
        raise ItemError(
            Cause.SANDBOX_LOST, f"none of these folders is there to mount an image at: {', '.join(_PLACES)}"
        )
    return place


def shown_folders(folder: Path, project: Path | None, hidden: Iterable[Path]) -> list[Folder]:
    """What is seen besides the image: what closes interfaces of the kernel, and the project."""
    found = closed_interfaces(folder / EMPTY)
    if project is not None:
        found.append(Folder(project, PROJECT))
        found += [Folder(folder / EMPTY, posixpath.join(PROJECT, path)) for path in hidden_below(project, hidden)]
    return found


def bubblewrap_arguments(shown: Sequence[Folder], limits: SandboxLimits, *, attached: bool) -> list[str]:
    """``shown``: what ``shown_folders`` said; with ``attached``, they are put in later."""
    arguments = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += [] if limits.network else ["--unshare-net"]
    # Not --die-with-parent: bubblewrap killed while its child waits for it would leave that behind. Both end with number 1's input.
    arguments += ["--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    arguments += ["--bind", mounted_at(), "/", "--proc", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(_SHARED_MEMORY), "--perms", "1777", "--tmpfs", "/dev/shm"]
    if not attached:
        for each in shown:
            arguments += ["--bind" if each.writable else "--ro-bind", os.fspath(each.source), each.target]
    return [*arguments, "--remount-ro", "/dev", "--chdir", "/"]


# --- Files of the sandbox, seen from the host


def fill_upper(folder: Path, root: Path, ids: OwnIds, *, network: bool) -> None:
    """Put into a fresh ``upper`` what the image lacks and every world has: ``/etc/hosts``, and with a network ``/etc/resolv.conf``. An
    image whose ``/etc`` is a link is left as it is. Raises OSError."""
    upper = folder / UPPER
    _imitate(upper, root, ids)
    wanted = {} if _content(root, "etc/hosts") else {"hosts": b"127.0.0.1 localhost sandbox\n::1 localhost\n"}
    if network:
        wanted["resolv.conf"] = Path("/etc/resolv.conf").read_bytes()
    etc = root / "etc"
    if not wanted or etc.is_symlink() or (etc.exists() and not etc.is_dir()):
        return
    (upper / "etc").mkdir()
    _imitate(upper / "etc", etc, ids)
    for name, content in wanted.items():
        (upper / "etc" / name).write_bytes(content)
        _belong(upper / "etc" / name, ids, 0, 0, 0o644)


def make_workspace(folder: Path, root: Path, name: str, ids: OwnIds, uid: int, gid: int) -> None:
    """Have a folder at the root that the image lacks. Raises OSError."""
    made = folder / UPPER / name
    if not (os.path.lexists(root / name) or os.path.lexists(made)):
        made.mkdir()
        _belong(made, ids, uid, gid, 0o755)


def has_folder(folder: Path, root: Path, path: str) -> bool | None:
    """Whether a path is a folder inside; None if only the inside can tell, because of a link or of what was deleted."""
    parts = [part for part in path.split("/") if part]
    for tree in (folder / UPPER, root):
        try:
            with open_folder(tree, parts):
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return False


def read_merged(folder: Path, root: Path, path: str) -> str:
    """The text of a small file inside that lies behind no link; empty if there is none."""
    for tree in (folder / UPPER, root):
        content = _content(tree, path)
        if content is not None:
            return content.decode(errors="replace")
    return ""


@dataclass(frozen=True, slots=True)
class Programs:
    """Which shells an image has."""

    sh: bool
    bash: bool

    @classmethod
    def of(cls, root: Path) -> Programs:
        """Raises OSError."""
        with Tree(root) as tree:
            return cls(_there(tree, "bin/sh"), any(_there(tree, f"{folder}/bash") for folder in _PROGRAMS))


_PROGRAMS = ("bin", "usr/bin", "usr/local/bin")


def _there(tree: Tree, path: str) -> bool:
    try:
        return bool(tree.status(tree.resolved(path, "")).st_mode & 0o111)
    except (OSError, NotPlain):
        return False


def _content(tree: Path, path: str) -> bytes | None:
    *above, name = path.split("/")
    try:
        with open_folder(tree, above) as folder:
            descriptor = open_regular(folder, name)
    except OSError:
        return None
    try:
        return read_at_most(descriptor, _MAX_FILE)
    finally:
        os.close(descriptor)


def _imitate(path: Path, other: Path, ids: OwnIds) -> None:
    """Give a folder of the host's the owner and the mode of another one, which may be missing."""
    try:
        status = other.lstat()
    except FileNotFoundError:
        _belong(path, ids, 0, 0, 0o755)
        return
    if ids.as_root:
        os.chown(path, status.st_uid, status.st_gid)
    path.chmod(status.st_mode & 0o1777)


def _belong(path: Path, ids: OwnIds, uid: int, gid: int, mode: int) -> None:
    if ids.as_root:
        os.chown(path, *ids.owners.of(uid, gid))
    path.chmod(mode)
