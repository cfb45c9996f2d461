"""Stand-ins for the objects of the clients of Modal and Daytona, as far as our drivers use them, and for the program ``apptainer``.

They are written from the clients' signatures, and say nothing about the services themselves. Commands run in bubblewrap, over a folder as
``/workspace``.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

INSIDE = (
    "bwrap --unshare-pid --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--proc /proc --dev /dev --tmpfs /tmp --setenv HOME /root"
)
_count = itertools.count(1)


def inside(folder: Path, words: tuple[str, ...] | list[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return [*INSIDE.split(), "--bind", str(folder), "/workspace", "--chdir", "/workspace", "--", *words]


class Calls:
    """A method of Modal's client, which is called by ``.aio``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.aio = function


# --- Modal


class _Error(Exception):
    pass


class ModalDouble:
    """The module ``modal``."""

    class exception:
        Error = _Error
        InvalidError = type("InvalidError", (_Error,), {})
        ImageBuildError = type("ImageBuildError", (_Error,), {})
        RemoteError = type("RemoteError", (_Error,), {})
        NotFoundError = type("NotFoundError", (_Error,), {})

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[dict[str, Any]] = []
        self.sandboxes: dict[str, Any] = {}
        self.config = SimpleNamespace(config={"token_id": "ak-1"})
        self.App = SimpleNamespace(lookup=Calls(self._app))
        self.Image = SimpleNamespace(
            debian_slim=lambda: "slim", from_id=lambda name: name, from_registry=lambda name: name
        )
        self.Sandbox = SimpleNamespace(create=Calls(self._create), from_id=Calls(self._from_id), list=Calls(self._list))

    async def _app(self, name: str, *, create_if_missing: bool) -> Any:
        return SimpleNamespace(app_id="ap-1")

    async def _create(self, *command: str, image: Any, tags: dict[str, str], **more: Any) -> Any:
        if image == "missing:1":
            raise self.exception.ImageBuildError("no such image")
        number = next(_count)
        folder = self.folder / str(number)
        if str(image).startswith("im-"):
            shutil.copytree(self.folder / str(image), folder)
        self.made.append({"image": image, "tags": tags, **more})
        name = f"sb-{number}"

        async def execute(*words: str, env: dict[str, str], workdir: str | None, text: bool) -> Any:
            assert text is False
            line = ["env", *(f"{key}={value}" for key, value in {**more["env"], **env}.items()), *words]
            return await _modal_process(inside(folder, line))

        async def snapshot(*, timeout: int, ttl: int) -> Any:
            taken = f"im-{next(_count)}"
            shutil.copytree(folder, self.folder / taken)
            return SimpleNamespace(object_id=taken)

        async def terminate() -> None:
            del self.sandboxes[name]

        async def poll() -> None:
            return None

        async def get_tags() -> dict[str, str]:
            return tags

        self.sandboxes[name] = SimpleNamespace(
            object_id=name,
            exec=Calls(execute),
            snapshot_filesystem=Calls(snapshot),
            terminate=Calls(terminate),
            poll=Calls(poll),
            get_tags=Calls(get_tags),
            tags=tags,
        )
        return self.sandboxes[name]

    async def _from_id(self, name: str) -> Any:
        if name not in self.sandboxes:
            raise self.exception.NotFoundError(name)
        return self.sandboxes[name]

    async def _list(self, *, app_id: str, tags: dict[str, str] | None) -> AsyncIterator[Any]:
        for sandbox in list(self.sandboxes.values()):
            if set((tags or {}).items()) <= set(sandbox.tags.items()):
                yield sandbox


async def _modal_process(words: list[str]) -> Any:
    process = await asyncio.create_subprocess_exec(*words, stdin=-1, stdout=-1, stderr=-1)
    assert process.stdin is not None
    stdin = SimpleNamespace(
        write=process.stdin.write, write_eof=process.stdin.write_eof, drain=Calls(process.stdin.drain)
    )
    return SimpleNamespace(
        stdin=stdin, stdout=_parts(process.stdout), stderr=_parts(process.stderr), wait=Calls(process.wait)
    )


async def _parts(stream: Any) -> AsyncIterator[bytes]:
    while part := await stream.read(1 << 16):
        yield part


# --- Daytona


class DaytonaDouble:
    """The module ``daytona``, and its client."""

    class DaytonaError(Exception):
        pass

    class DaytonaNotFoundError(DaytonaError):
        pass

    class DaytonaBadRequestError(DaytonaError):
        pass

    class DaytonaValidationError(DaytonaError):
        pass

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Any] = []
        self.sandboxes: dict[str, Any] = {}
        self.snapshots: set[str] = set()
        for name in (
            "CreateSandboxFromImageParams",
            "CreateSandboxFromSnapshotParams",
            "Resources",
            "ListSandboxesQuery",
            "SessionExecuteRequest",
        ):
            setattr(self, name, SimpleNamespace)
        self.snapshot = SimpleNamespace(get=self._snapshot, delete=self._delete_snapshot)

    def AsyncDaytona(self) -> Any:
        return self

    async def create(self, params: Any, *, timeout: float) -> Any:
        number = next(_count)
        folder = self.folder / str(number)
        if hasattr(params, "snapshot"):
            shutil.copytree(self.folder / params.snapshot, folder)
        self.made.append(params)
        name = f"box-{number}"

        async def create_snapshot(taken: str, *, timeout: float) -> None:
            shutil.copytree(folder, self.folder / taken)
            self.snapshots.add(taken)

        async def delete(*, timeout: float) -> None:
            del self.sandboxes[name]

        self.sandboxes[name] = box = SimpleNamespace(
            id=name, labels=params.labels, state="started", delete=delete, create_snapshot=create_snapshot
        )

        async def stop(*, timeout: float) -> None:
            box.state = "stopped"

        async def start(*, timeout: float) -> None:
            box.state = "started"

        box.stop, box.start, box.process = stop, start, _DaytonaProcess(folder, params.env_vars)
        return box

    async def get(self, name: str) -> Any:
        if name not in self.sandboxes:
            raise self.DaytonaNotFoundError(name)
        return self.sandboxes[name]

    async def list(self, query: Any) -> AsyncIterator[Any]:
        for box in [*self.sandboxes.values()]:
            yield box

    async def close(self) -> None:
        pass

    async def _snapshot(self, name: str) -> str:
        if name not in self.snapshots:
            raise self.DaytonaNotFoundError(name)
        return name

    async def _delete_snapshot(self, name: str) -> None:
        self.snapshots.remove(name)


class _DaytonaProcess:
    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._folder = folder
        self._variables = variables
        self._running: dict[str, Any] = {}

    async def create_session(self, session: str) -> None:
        self._running[session] = None

    async def delete_session(self, session: str) -> None:
        del self._running[session]

    async def execute_session_command(self, session: str, request: Any) -> Any:
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in self._variables.items())
        words = inside(self._folder, ["sh", "-c", exports + request.command])
        self._running[session] = await asyncio.create_subprocess_exec(*words, stdin=-1, stdout=-1)
        return SimpleNamespace(cmd_id="1")

    async def get_session_command_logs_async(
        self, session: str, command: str, out: Callable[[str], None], err: Callable[[str], None]
    ) -> None:
        while part := await self._running[session].stdout.read(1000):
            out(part.decode("ascii"))

    async def send_session_command_input(self, session: str, command: str, data: str) -> None:
        self._running[session].stdin.write(data.encode())
        await self._running[session].stdin.drain()


# --- Apptainer

APPTAINER = """\
#!/bin/sh
# state: $APPTAINER_DOUBLE/NAME holds the overlay's folder
double={double}
echo "$*" >>"$double/calls"
case "$1 $2" in
  "build "*) sleep 0.2; echo "image of $3" >"$2" ;;
  "instance list")
    printf '{"instances": ['; comma=
    for file in "$double"/instances/*; do
      [ -f "$file" ] && printf '%s{"instance": "%s"}' "$comma" "${file##*/}" && comma=,
    done
    echo ']}' ;;
  "instance start")
    while [ "$1" != --overlay ]; do shift; done
    overlay=$2; while [ $# -gt 1 ]; do shift; done
    mkdir -p "$overlay/upper"; echo "$overlay" >"$double/instances/$1" ;;
  "instance stop") while [ $# -gt 1 ]; do shift; done; rm "$double/instances/$1" ;;
  "exec --pwd")
    directory=$3; read -r overlay <"$double/instances/${4#instance://}" || exit 255; shift 4
    for name in $(env | sed -n 's/^APPTAINERENV_\\([A-Z_]*\\)=.*/\\1/p'); do eval "export $name=\\"\\$APPTAINERENV_$name\\""; done
    exec {inside} --bind "$overlay/upper" /workspace --chdir "$directory" -- "$@" ;;
esac
"""


def apptainer_double(folder: Path) -> Path:
    """A folder for the search path with the stand-in for the program; it notes its calls in ``calls`` there."""
    (folder / "instances").mkdir(parents=True)
    program = folder / "apptainer"
    program.write_text(APPTAINER.replace("{double}", str(folder)).replace("{inside}", INSIDE))
    program.chmod(0o755)
    return folder
