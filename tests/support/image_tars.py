"""File systems for container images, made of this machine's own programs: no registry is asked for anything.

Two kinds: ``full`` has bash, coreutils and the like, git, curl and Python, a user ``tester`` (1000), and an ``/etc/profile`` that sets
another PATH than the image does; ``bare`` has a static busybox alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
IMAGE_PATH = "/opt/tool/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
"""The PATH of the ``full`` image: ``/opt/tool/bin`` has a program ``own-tool`` that prints ``own``."""
_PROGRAMS = """
truncate split comm paste fold nl tac install shuf sha1sum cksum awk hostname which join expand stty sum tty uptime link unlink
vdir bash dash ls cat cp mv rm ln mkdir rmdir chmod chown touch sleep env printenv id whoami head tail wc sort uniq cut tr tee seq
date dd df du stat mkfifo mknod readlink realpath basename dirname mktemp true false test expr printf echo pwd nproc timeout nohup
yes sync sha256sum md5sum base64 od ps kill pgrep pkill grep sed find xargs tar gzip diff cmp setpriv unshare mount umount setsid
chroot flock getent git rg curl
"""
_PASSWD = "root:x:0:0:root:/root:/bin/bash\ntester:x:1000:1000::/home/tester:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
_GROUP = "root:x:0:\ntester:x:1000:\nnogroup:x:65534:\n"
_LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "lib2to3",
    "ensurepip",
    "__pycache__",
    "turtledemo",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
_VERSION = 5
"""To be raised when what is made here changes: tars are kept between sessions."""


def full_image() -> Path:
    """A tar of the ``full`` file system. Raises FileNotFoundError where bash or Python is missing."""
    return _kept("full")


def bare_image() -> Path:
    """A tar of the ``bare`` file system. Raises FileNotFoundError where there is no static busybox."""
    return _kept("bare")


@cache  # what it is made of takes a process a file to find
def _kept(kind: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"manyhands-test-images-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    files = list(_full_files() if kind == "full" else _bare_files())
    seal = hashlib.sha256(repr([(str(source), name, os.stat(source).st_mtime_ns) for source, name in files]).encode())
    tar = folder / f"{kind}-{_VERSION}-{seal.hexdigest()[:16]}.tar"
    if not tar.exists():
        unfinished = folder / f".{os.getpid()}-{tar.name}"
        with tarfile.open(unfinished, "w") as archive:
            _write(archive, kind, files)
        unfinished.rename(tar)
    return tar


def _write(archive: tarfile.TarFile, kind: str, files: Iterable[tuple[Path, str]]) -> None:
    _add_skeleton(archive, merged=kind == "full")
    for source, name in files:
        member = archive.gettarinfo(str(source.resolve()), name)
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.type, member.linkname = tarfile.REGTYPE, ""  # hard links of the machine's are none here
        member.size = source.stat().st_size
        with source.open("rb") as content:
            archive.addfile(member, content)
    if kind == "full":
        _add_link(archive, "usr/bin/sh", "dash")
        _add_file(archive, "opt/tool/bin/own-tool", b"#!/bin/sh\necho own\n", mode=0o755)
    else:
        for applet in subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
            if applet != "busybox":
                _add_link(archive, f"bin/{applet}", "busybox")
    if kind == "full":
        _add_file(archive, "etc/profile", b"PATH=/usr/bin:/bin\nexport PATH\n")
        _add_file(archive, "root/.bashrc", b"export FROM_BASHRC=yes\n")


def _add_skeleton(archive: tarfile.TarFile, *, merged: bool) -> None:
    if merged:
        for name in ("bin", "sbin", "lib", "lib64"):
            _add_folder(archive, f"usr/{name}")
            _add_link(archive, name, f"usr/{name}")
    else:
        _add_folder(archive, "bin")
    for name in ("dev", "proc", "sys", "etc", "opt", "home", "var", "run"):
        _add_folder(archive, name)
    _add_folder(archive, "root", mode=0o700)
    _add_folder(archive, "home/tester", owner=1000)
    for name in ("tmp", "var/tmp"):
        _add_folder(archive, name, mode=0o1777)
    _add_file(archive, "etc/passwd", _PASSWD.encode())
    _add_file(archive, "etc/group", _GROUP.encode())
    _add_file(archive, "home/tester/kept", b"of the image\n", owner=1000)


def _add_folder(archive: tarfile.TarFile, name: str, mode: int = 0o755, owner: int = 0) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, mode, owner, owner
    archive.addfile(member)


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    archive.addfile(member)


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644, owner: int = 0) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.uid, member.gid = len(content), mode, owner, owner
    archive.addfile(member, io.BytesIO(content))


def _bare_files() -> Iterator[tuple[Path, str]]:
    found = shutil.which("busybox", path=SEARCH_PATH)
    if found is None:
        raise FileNotFoundError("no busybox here (Debian's package busybox-static has it)")
    if _libraries(Path(found)):
        raise FileNotFoundError("busybox here is not a static one (Debian's package busybox-static has it)")
    yield Path(found), "bin/busybox"


def _full_files() -> Iterator[tuple[Path, str]]:
    programs = [
        Path(found)
        for name in dict.fromkeys(_PROGRAMS.split())
        if (found := shutil.which(name, path=SEARCH_PATH)) is not None
    ]
    python = next((path for path in map(Path, ("/usr/bin/python3", "/usr/local/bin/python3")) if path.exists()), None)
    if python is None or not any(program.name == "bash" for program in programs):
        raise FileNotFoundError("a test image needs this machine's bash and Python")
    libraries: dict[str, Path] = {}
    for program in (*programs, python):
        yield program, f"usr/bin/{program.name}"
        libraries |= _libraries(program)
    folders = subprocess.run(
        [str(python), "-c", "import sysconfig as s; print(s.get_path('stdlib'), s.get_path('platstdlib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for folder in dict.fromkeys(folders):
        for path, name in _standard_library(Path(folder)):
            yield path, name
            if path.suffix == ".so":
                libraries |= _libraries(path)
    for name, path in libraries.items():
        yield path, name


def _standard_library(folder: Path) -> Iterator[tuple[Path, str]]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("config-"))
        for name in sorted(files):
            path = Path(place) / name
            if path.is_file():
                yield path, str(path).lstrip("/")


def _libraries(program: Path) -> dict[str, Path]:
    """The shared libraries that a program needs, by their names in the image."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    found = {}
    for name in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed, re.MULTILINE):
        inside = name.lstrip("/")
        found[inside if inside.startswith("usr/") else f"usr/{inside}"] = Path(name)
    return found
