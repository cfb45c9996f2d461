"""The service that keeps fake worlds: a loopback HTTP server in a process of its own.

A world is a folder that is the root of its commands, in namespaces of its own made by bubblewrap; as root its commands have the usual
capabilities of containers. A snapshot is a copy of the folder. ``/control`` orders faults: latency, refused and broken requests, and the
death of the service or of a world.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from manyhands.processes.strays import remove_tree
from manyhands.processes.system import children
from manyhands.sandboxes.commands.cgroups import Group, make_group
from manyhands.sandboxes.remote.driver import has_labels
from manyhands.testing.fake_worlds.layers import layer_between

_FIRST_PROCESS = Path(__file__).with_name("first_process.py")
_CAPABILITIES = [0, 1, 3, 4, 5, 6, 7, 10]
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE, as capabilities(7) numbers them."""
_CHUNK = 1 << 16
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = ("etc", "usr", "proc", "dev", "tmp", "root", "home", "var", "run", "opt", "project")
_PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
)


@dataclass
class KeptWorld:
    """A world, running or not."""

    id: str
    spec: dict[str, Any]
    folder: Path
    config: dict[str, Any]
    owner: str | None = None
    process: subprocess.Popen[bytes] | None = None
    orders: socket.socket | None = None
    group: Group | None = None
    numbers: int = 0
    ends: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    streams: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Service:
    """All worlds, images and snapshots below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._identity = f"fake {secrets.token_hex(8)}"
        self._worlds: dict[str, KeptWorld] = {}
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, int] = {}
        self._faults: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        for name in ("images", "worlds", "snapshots"):
            (folder / name).mkdir()
        self._make_images()

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._faulty], client_max_size=1 << 30)
        application.add_routes(
            [
                web.get("/identity", self._tell_identity),
                web.get("/counts", self._tell_counts),
                web.post("/control", self._control),
                web.get("/hold/{owner}", self._hold),
                web.get("/worlds", self._list),
                web.post("/worlds", self._create),
                web.post("/worlds/{id}/start", self._start),
                web.post("/worlds/{id}/stop", self._stop),
                web.post("/worlds/{id}/snapshot", self._snapshot),
                web.get("/worlds/{id}/size", self._size),
                web.get("/worlds/{id}/exec", self._execute),
                web.put("/worlds/{id}/archive", self._put),
                web.get("/worlds/{id}/archive", self._get),
                web.delete("/worlds/{id}", self._delete),
                web.get("/snapshots/{id}/changes", self._changes),
                web.delete("/snapshots/{id}", self._delete_snapshot),
            ]
        )
        return application

    async def end(self) -> None:
        """End all worlds."""
        await asyncio.gather(*(self._end(world) for world in self._worlds.values()))

    # Faults to order

    @web.middleware
    async def _faulty(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path in ("/control", "/counts"):
            response: web.StreamResponse = await handler(request)
            return response
        kind = f"{request.method} {request.path.rstrip('/').rpartition('/')[2] if request.match_info.get('id') else request.path}"
        if request.method == "DELETE":
            kind = f"DELETE {request.path.split('/')[1]}"
        self._counts[kind] = self._counts.get(kind, 0) + 1
        await asyncio.sleep(self._faults.get("latency", 0.0))
        if self._due("refuse"):
            return web.Response(status=429, headers={"Retry-After": "0.05"})
        if self._due("drop") and request.transport is not None:
            request.transport.close()
        answer: web.StreamResponse = await handler(request)
        return answer

    def _due(self, fault: str) -> bool:
        left = self._faults.get(fault, 0)
        if left >= 1:
            self._faults[fault] = left - 1
        return left >= 1

    async def _control(self, request: web.Request) -> web.Response:
        order = await request.json()
        if order.pop("identity", None):
            self._identity = f"fake {secrets.token_hex(8)}"
        killed = order.pop("kill", None)
        if killed is not None:
            await self._end(self._worlds[killed])
        if order.pop("break_streams", None):
            for world in self._worlds.values():
                for task in world.streams:
                    task.cancel()
        self._faults.update(order)
        return web.json_response({})

    async def _tell_counts(self, request: web.Request) -> web.Response:
        return web.json_response(self._counts)

    # Worlds

    async def _tell_identity(self, request: web.Request) -> web.Response:
        return web.json_response({"identity": self._identity})

    async def _hold(self, request: web.Request) -> web.StreamResponse:
        """An owner is there as long as it holds this connection."""
        socket_ = web.WebSocketResponse()
        await socket_.prepare(request)
        owner = request.match_info["owner"]
        self._owners[owner] = self._owners.get(owner, 0) + 1
        try:
            await socket_.send_str("held")
            async for _ in socket_:
                pass
        finally:
            self._owners[owner] -= 1
            for world in list(self._worlds.values()):
                if world.owner == owner:
                    await self._end(world)
        return socket_

    async def _create(self, request: web.Request) -> web.Response:
        spec = await request.json()
        image = spec["image"] or "base"
        source = self._folder / ("snapshots" if image in self._snapshots else "images") / image
        if "/" in image or not (source / "root").is_dir():
            raise _refused(f"no such image: {image}")
        config = json.loads((source / "config.json").read_text())
        world = KeptWorld(secrets.token_hex(6), spec, self._folder / "worlds" / secrets.token_hex(6), config)
        user = spec["user"] or config["user"]
        if self._user(source / "root", user) is None:
            raise _refused(f"no such user: {user}")
        world.folder.mkdir()
        await _copied(source / "root", world.root)
        (world.root / "workspace").mkdir(exist_ok=True)
        directory = spec["directory"] or config["directory"] or ("/project" if spec["project"] else "/workspace")
        if not directory.startswith("/"):
            directory = os.path.normpath(f"/workspace/{directory}")
            if not directory.startswith("/workspace/"):
                raise _refused(f"cwd {spec['directory']!r} leads out of the workspace")
            (world.root / directory[1:]).mkdir(parents=True, exist_ok=True)
        uid, gid = self._user(world.root, user) or (0, 0)
        if os.geteuid() == 0 and image not in self._snapshots:
            os.chown(world.root / "workspace", uid, gid)
        self._worlds[world.id] = world
        world.config = {**config, "user": user, "directory": directory}
        await self._begin(world, request.query.get("owner"))
        if not directory.startswith("/project") and not (world.root / directory[1:]).is_dir():
            await self._end(world)
            del self._worlds[world.id]
            raise _refused(f"cwd {directory!r} is no folder of the image")
        project = Path(spec["project"]) / directory.removeprefix("/project").strip("/") if spec["project"] else None
        if project is not None and directory.startswith("/project") and not project.is_dir():
            await self._end(world)
            del self._worlds[world.id]
            raise _refused(f"cwd {directory!r} is no folder of the project")
        home = "/root" if uid == 0 else "/home/user"
        return web.json_response(
            {"id": world.id, "workspace": "/workspace", "directory": directory, "home": home}, status=201
        )

    async def _begin(self, world: KeptWorld, owner: str | None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root, spec = world.root, world.spec
        project = ["--ro-bind", spec["project"], f"{root}/project"] if spec["project"] else []
        for hidden in spec["hidden"]:
            project += ["--tmpfs", f"{root}/project/{hidden}", "--remount-ro", f"{root}/project/{hidden}"]
        shown = ("/usr", "/etc/alternatives") if world.config["host_programs"] else ()
        usr = [word for path in shown for word in ("--ro-bind-try", path, f"{root}{path}")]
        limits = spec["limits"]
        world.group = make_group(memory=limits["memory"], processes=limits["processes"])
        network = [] if limits["network"] else ["--unshare-net"]
        command = [
            *("bwrap", "--unshare-pid", *network, "--unshare-ipc", "--unshare-uts", "--die-with-parent"),
            *("--as-pid-1", "--cap-add", "ALL", "--bind", "/", "/", "--proc", f"{root}/proc", "--dev", f"{root}/dev"),
            *(*usr, *project, "--", sys.executable, "-I", "-S", str(_FIRST_PROCESS)),
        ]
        if world.group is not None:
            enter = 'for file; do [ "$file" = -- ] && break; echo 0 >"$file"; shift; done; shift; exec "$@"'
            command = ["/bin/sh", "-c", enter, "sh", *world.group.entrances, "--", *command]
        world.process = _spawned(command, theirs.fileno())
        theirs.close()
        ours.setblocking(False)
        world.orders, world.owner = ours, owner
        reader = asyncio.ensure_future(self._read_ends(world, ours))
        world.ends[0] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(asyncio.shield(world.ends[0]), 10)
        except TimeoutError:
            reader.cancel()
            raise web.HTTPServiceUnavailable(text="the world does not start") from None

    async def _read_ends(self, world: KeptWorld, orders: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(orders, _CHUNK):
                said = json.loads(data)
                end = world.ends.pop(said.get("number", 0), None)
                if end is not None and not end.done():
                    end.set_result(said.get("code", 0))
        except OSError:
            pass
        orders.close()
        for end in world.ends.values():
            if not end.done():
                end.set_result(137)
        world.ends.clear()

    async def _end(self, world: KeptWorld) -> None:
        process, world.process, world.owner = world.process, None, None
        if process is not None:
            for child in children(process.pid):
                _kill(child)
            _kill(process.pid)
            await asyncio.to_thread(process.wait)
        if world.group is not None:
            group, world.group = world.group, None
            await asyncio.to_thread(_remove, group)

    async def _start(self, request: web.Request) -> web.Response:
        world = self._world(request)
        if not world.running:
            await self._end(world)
            await self._begin(world, request.query.get("owner"))
        return web.json_response({})

    async def _stop(self, request: web.Request) -> web.Response:
        world = self._worlds.get(request.match_info["id"])
        if world is not None:
            await self._end(world)
        return web.json_response({})

    async def _delete(self, request: web.Request) -> web.Response:
        world = self._worlds.pop(request.match_info["id"], None)
        if world is not None:
            await self._end(world)
            await asyncio.to_thread(remove_tree, world.folder)
        return web.json_response({})

    async def _list(self, request: web.Request) -> web.Response:
        wanted = json.loads(request.query.get("labels", "{}"))
        found = [
            {"id": world.id, "labels": world.spec["labels"], "running": world.running, "snapshot": False}
            for world in self._worlds.values()
            if has_labels(world.spec["labels"], wanted)
        ]
        found += [
            {"id": id, "labels": kept["labels"], "running": False, "snapshot": True}
            for id, kept in self._snapshots.items()
            if has_labels(kept["labels"], wanted)
        ]
        return web.json_response(found)

    async def _snapshot(self, request: web.Request) -> web.Response:
        world = self._world(request)
        id = f"snapshot-{secrets.token_hex(6)}"
        folder = self._folder / "snapshots" / id
        folder.mkdir()
        await asyncio.sleep(self._faults.get("snapshot_seconds", 0.0))
        await _copied(world.root, folder / "root")
        (folder / "config.json").write_text(json.dumps(world.config))
        self._snapshots[id] = {"labels": await request.json()}
        return web.json_response({"id": id}, status=201)

    async def _delete_snapshot(self, request: web.Request) -> web.Response:
        if self._snapshots.pop(request.match_info["id"], None) is not None:
            await asyncio.to_thread(remove_tree, self._folder / "snapshots" / request.match_info["id"])
        return web.json_response({})

    async def _changes(self, request: web.Request) -> web.Response:
        """What a snapshot has beyond an image: one layer."""
        if request.match_info["id"] not in self._snapshots:
            raise web.HTTPNotFound(text="no such snapshot")
        snapshot = self._folder / "snapshots" / request.match_info["id"] / "root"
        image = self._folder / "images" / request.query["image"] / "root"
        return web.Response(body=await asyncio.to_thread(layer_between, image, snapshot))

    async def _size(self, request: web.Request) -> web.Response:
        root = self._world(request).root
        return web.json_response({"size": await asyncio.to_thread(_size_of, root)})

    async def _put(self, request: web.Request) -> web.Response:
        world, data = self._world(request), await request.read()
        code, _, errors = await self._inside(world, ["tar", "-x", "-C", request.query["path"], "-f", "-"], data)
        if code != 0:
            raise web.HTTPBadRequest(text=errors.decode(errors="replace"))
        return web.json_response({})

    async def _get(self, request: web.Request) -> web.Response:
        world, path = self._world(request), request.query["path"]
        if (await self._inside(world, ["test", "-e", path], b""))[0] != 0:
            raise web.HTTPNotFound(text="no such file")
        command = ["tar", "-c", "-C", os.path.dirname(path), "-f", "-", "--", os.path.basename(path)]
        code, data, errors = await self._inside(world, command, b"")
        if code != 0:
            raise web.HTTPBadRequest(text=errors.decode(errors="replace"))
        return web.Response(body=data)

    # Commands

    async def _inside(self, world: KeptWorld, command: list[str], data: bytes) -> tuple[int, bytes, bytes]:
        """Run a command to its end as root."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            given.write(data)
            given.seek(0)
            order = {"command": command, "environment": {}, "user": "root", "directory": "/"}
            end = self._order(world, order, [given.fileno(), out.fileno(), errors.fileno()])
            code = await end
            out.seek(0)
            errors.seek(0)
            return code, out.read(), errors.read()

    def _order(self, world: KeptWorld, order: dict[str, Any], descriptors: list[int]) -> asyncio.Future[int]:
        if not world.running or world.orders is None:
            raise web.HTTPConflict(text=f"world {world.id} is not running")
        found = self._user(world.root, order["user"] or world.config["user"])
        if found is None:
            raise _refused(f"no such user: {order['user']}")
        uid, gid = found
        limits = world.spec["limits"]
        bounds = {"RLIMIT_FSIZE": limits["file_size"], "RLIMIT_CPU": limits["cpu_seconds"], "RLIMIT_CORE": 0}
        if world.group is None:
            bounds["RLIMIT_AS"] = limits["memory"]
        home = {"HOME": "/root" if uid == 0 else "/home/user"}
        variables = {**world.config["environment"], **home, **world.spec["environment"], **order["environment"]}
        world.numbers += 1
        mine = os.geteuid() == 0
        message = {
            "number": world.numbers,
            "command": order["command"],
            "environment": variables,
            "directory": order["directory"] or world.config["directory"],
            "root": str(world.root),
            "user": uid if mine else os.geteuid(),
            "group": gid if mine else os.getegid(),
            "capabilities": _CAPABILITIES if mine else [],
            "limits": bounds,
        }
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        world.ends[world.numbers] = end
        with tempfile.TemporaryFile() as written:
            written.write(json.dumps(message).encode())
            written.seek(0)
            world.orders.setblocking(True)
            socket.send_fds(world.orders, [b"o"], [written.fileno(), *descriptors])
            world.orders.setblocking(False)
        return end

    def _user(self, root: Path, name: str) -> tuple[int, int] | None:
        lines = (root / "etc" / "passwd").read_text().splitlines()
        for fields in (line.split(":") for line in lines):
            if name in (fields[0], fields[2]):
                return int(fields[2]), int(fields[3])
        return (int(name), int(name)) if name.isdecimal() else None

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        """The order comes as the first message; then what goes to the command's input, and back what it writes."""
        world = self._world(request)
        stream = web.WebSocketResponse(max_msg_size=1 << 26)
        await stream.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        world.streams.add(task)
        try:
            order = await stream.receive_json()
            pipes = [os.pipe() for _ in range(3)]
            (stdin, feed), (read_out, out), (read_errors, errors) = pipes
            try:
                end = self._order(world, order, [stdin, out, errors])
            except (web.HTTPException, OSError) as error:
                for descriptor in (feed, read_out, read_errors):
                    os.close(descriptor)
                status = error.status if isinstance(error, web.HTTPException) else 409
                await stream.send_json({"status": status, "text": getattr(error, "text", None) or str(error)})
                return stream
            finally:
                for descriptor in (stdin, out, errors):
                    os.close(descriptor)
            await stream.send_json({"status": 200})
            await _serve_streams(stream, end, feed, read_out, read_errors)
        finally:
            world.streams.discard(task)
        return stream

    def _world(self, request: web.Request) -> KeptWorld:
        world = self._worlds.get(request.match_info["id"])
        if world is None:
            raise web.HTTPNotFound(text=f"no such world: {request.match_info['id']}")
        return world

    # Images

    def _make_images(self) -> None:
        environment = {"PATH": f"/opt/tools/bin:{_PATH}", "FROM_IMAGE": "yes"}
        base = self._image("base", environment, host_programs=True)
        for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
            if os.path.islink(f"/{name}"):
                (base / name).symlink_to(f"usr/{name}")
        (base / "etc" / "alternatives").mkdir()
        for name in ("ld.so.cache", "ld.so.conf", "nsswitch.conf", "services"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", base / "etc" / name)
        program = base / "opt" / "tools" / "bin" / "of-the-image"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho from the image\n")
        program.chmod(0o755)
        busybox = shutil.which("busybox")
        if busybox is not None:
            small = self._image("small", {"PATH": "/bin"}, host_programs=False)
            (small / "bin").mkdir()
            shutil.copy(busybox, small / "bin" / "busybox")
            names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
            for name in names:
                if name not in ("busybox", "bash"):
                    (small / "bin" / name).symlink_to("busybox")

    def _image(self, name: str, environment: dict[str, str], *, host_programs: bool) -> Path:
        folder = self._folder / "images" / name
        root = folder / "root"
        for each in _FOLDERS:
            (root / each).mkdir(parents=True, exist_ok=True)
        (root / "home" / "user").mkdir()
        (root / "tmp").chmod(0o1777)
        if os.geteuid() == 0:
            os.chown(root / "home" / "user", 1000, 1000)
        passwd = (
            _PASSWD if os.geteuid() == 0 else _PASSWD + f"{pwd.getpwuid(os.geteuid()).pw_name}:x:{os.geteuid()}::::\n"
        )
        (root / "etc" / "passwd").write_text(passwd)
        (root / "etc" / "shadow").write_text("root:*:1::::::\n")
        (root / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")
        (root / "root" / ".bashrc").write_text("in_bashrc=yes\n")
        config = {"environment": environment, "directory": None, "user": "root", "host_programs": host_programs}
        (folder / "config.json").write_text(json.dumps(config))
        return root


def _refused(why: str) -> web.HTTPUnprocessableEntity:
    return web.HTTPUnprocessableEntity(text=why)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _spawned(command: list[str], stdin: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=stdin, start_new_session=True)


def _remove(group: Group) -> None:
    group.kill()
    group.remove()


async def _copied(source: Path, target: Path) -> None:
    copying = await asyncio.create_subprocess_exec("cp", "-a", "--reflink=auto", "--", str(source), str(target))
    if await copying.wait() != 0:
        raise web.HTTPInternalServerError(text="can't copy")


def _size_of(root: Path) -> int:
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _write_all(file: Any, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except (OSError, ValueError):  # nobody reads any more
        pass


async def _serve_streams(
    stream: web.WebSocketResponse, end: asyncio.Future[int], feed: int, read_out: int, read_errors: int
) -> None:
    copies = [
        asyncio.ensure_future(_copy_out(read_out, stream, b"o")),
        asyncio.ensure_future(_copy_out(read_errors, stream, b"e")),
    ]
    ending = asyncio.ensure_future(_tell_end(stream, end, copies))
    feeding = os.fdopen(feed, "wb", buffering=0)
    try:
        async for message in stream:
            if message.type is WSMsgType.BINARY:
                await asyncio.to_thread(_write_all, feeding, message.data)
            elif message.type is WSMsgType.TEXT:
                feeding.close()
    finally:
        if not feeding.closed:
            feeding.close()
        for task in (*copies, ending):
            task.cancel()


async def _copy_out(descriptor: int, stream: web.WebSocketResponse, kind: bytes) -> None:
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while data := await reader.read(_CHUNK):
            await stream.send_bytes(kind + data)
    except ConnectionError:
        pass
    finally:
        transport.close()


async def _tell_end(stream: web.WebSocketResponse, end: asyncio.Future[int], copies: list[asyncio.Task[None]]) -> None:
    code = await end
    await asyncio.wait(copies, timeout=2.0)  # as engines do: what it left behind may hold its output open
    try:
        await stream.send_str(json.dumps({"code": code}))
        await stream.close()
    except ConnectionError:
        pass


async def _serve(folder: Path) -> None:
    service = Service(folder)
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)  # its owner holds this open
    await service.end()
    remove_tree(folder)
    os._exit(0)  # without waiting for what threads wait for


def main() -> None:
    asyncio.run(_serve(Path(tempfile.mkdtemp(prefix="fake-worlds-"))))


if __name__ == "__main__":
    main()
