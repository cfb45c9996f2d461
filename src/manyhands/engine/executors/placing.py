"""The process that asks Ray for workers: ``python -m manyhands.engine.executors.placing``, which orders come to as lines of JSON.

Ray is kept out of the owner: its core takes over signals, and ends the process that it is in when the cluster is lost. The owner lives on
and says what happened. When the owner dies so does this process, and with it Ray ends all actors of it.

In come ``{"begin": {...}}`` first, then ``{"start": NAME, "call": TEXT, "near": NODE}``, ``{"kill": NAME}``. Out go ``{"ready": ADDRESS}``
or ``{"error": TEXT}``; ``{"placed": NAME, "node": ID, "address": TEXT}``, ``{"unusable": NAME, "why": TEXT, "node": ID}``,
``{"refused": NAME, "why": TEXT}`` where Ray will never start it, and ``{"ended": NAME, "code": NUMBER, "printed": TEXT}`` or
``{"ended": NAME, "how": TEXT, "node_lost": BOOL}``; ``{"draining": [ID, ...]}``; and ``{"trouble": TEXT}`` for what nobody has foreseen.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TextIO

from manyhands.core import VERSION
from manyhands.core.text import one_line
from manyhands.engine.executors import actor
from manyhands.processes.system import die_with_parent

LOOK_SECONDS = 1.0
"""How often Ray is asked which nodes are about to go."""
LOOKS_IN_VAIN = 10
"""Questions in a row that Ray did not answer, after which the log says so."""
MAX_TEXT = 500
"""Characters of what Ray says of an error."""
INIT_SECONDS = 30.0
_CPUS = "num_cpus"
_GPUS = "num_gpus"
_MEMORY = "memory"


class Placer:
    """Has Ray place workers. All of it happens in the thread that ``run`` is called in: in those in which Ray says that something is done,
    nothing can be asked of it."""

    def __init__(self, ray: Any, run_id: str, resources: Mapping[str, float], say: Callable[[dict[str, Any]], None]):
        self._work: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        """What is to be done, and for which worker."""
        self._ray = ray
        self._run_id = run_id
        self._say = say
        own = {_CPUS: 1.0, **resources}
        named = {name: own.pop(name) for name in (_CPUS, _GPUS, _MEMORY) if name in own}
        self._class = ray.remote(actor.WorkerActor)
        self._options = {**named, "resources": own or None, "max_restarts": 0, "max_task_retries": 0}
        self._near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._actors: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        """The nodes of workers that are at work, by the workers' names."""
        self._lost_nodes: set[str] = set()
        self._draining: set[str] = set()

    def run(self) -> None:
        """Do what the owner orders, and what follows from it, until it orders no more."""
        threading.Thread(target=self._read_orders, daemon=True).start()
        threading.Thread(target=self._watch_nodes, daemon=True).start()
        while (work := self._work.get()) is not None:
            name, task = work
            try:
                task()
            except Exception as error:  # noqa: BLE001 - whatever Ray raises or answers, the owner waits for word of this worker
                traceback.print_exc()
                self._say({"trouble": f"{type(error).__name__}: {one_line(str(error))}"[:MAX_TEXT]})
                self.kill(name)
                self._ended(name, error)

    def _read_orders(self) -> None:
        try:
            for line in sys.stdin:
                match json.loads(line):
                    case {"start": name, "call": call, "near": near}:
                        self._work.put((name, partial(self.start, name, call, near)))
                    case {"kill": name}:
                        self._work.put((name, partial(self.kill, name)))
        finally:
            self._work.put(None)

    def start(self, name: str, call: str, near: str) -> None:
        """Have a worker started wherever there is room for it, on the node ``near`` rather than on others if one is named."""
        where = self._near(near, soft=True) if near else "SPREAD"
        try:
            worker = self._actors[name] = self._class.options(**self._options, scheduling_strategy=where).remote()
        except (TypeError, ValueError) as error:  # of what workers are to reserve
            self._say({"refused": name, "why": one_line(_words(error))[:MAX_TEXT]})
            return
        self._when_done(name, worker.about.remote(), lambda done: self._placed(name, call, done))

    def kill(self, name: str) -> None:
        """End a worker at once."""
        if (worker := self._actors.pop(name, None)) is not None:
            with suppress(Exception):
                self._ray.kill(worker)

    def _watch_nodes(self) -> None:
        """Say which nodes are about to go, for as long as the process lives."""
        failures = 0
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                from ray._private.state import state  # there is no public way to ask for it

                draining = set(state.get_draining_nodes()) - self._draining
            except Exception as error:  # noqa: BLE001 - the cluster may be going, or its interface another one
                failures += 1
                if failures == LOOKS_IN_VAIN:
                    print(f"nodes that are about to go are not noticed: {error}", file=sys.stderr)
                continue
            failures = 0
            if draining:
                self._draining |= draining
                self._say({"draining": sorted(draining)})

    def _when_done(self, name: str, reference: Any, then: Callable[[Future[Any]], None]) -> None:
        reference.future().add_done_callback(lambda done: self._work.put((name, partial(then, done))))

    def _placed(self, name: str, call: str, done: Future[Any]) -> None:
        if (error := done.exception()) is not None:
            missing = "No module named" in str(error)
            self._ended(name, error) if not missing else self._unusable(name, one_line(str(error)))
            return
        about = done.result()
        if (why := unlike_us(about)) is not None:
            self._unusable(name, why, about["node"])
            return
        if name not in self._actors:  # killed meanwhile
            return
        self._nodes[name] = about["node"]
        self._say({"placed": name, "node": about["node"], "address": about["address"]})
        working = self._actors[name].work.remote(self._run_id, call)
        self._when_done(name, working, lambda done: self._worked(name, done))

    def _unusable(self, name: str, why: str, node: str = "") -> None:
        self.kill(name)
        self._say({"unusable": name, "why": why[:MAX_TEXT], "node": node})

    def _worked(self, name: str, done: Future[Any]) -> None:
        if (error := done.exception()) is not None:
            self._ended(name, error)
            return
        self._nodes.pop(name, None)
        self.kill(name)
        code, printed = done.result()
        self._say({"ended": name, "code": code, "printed": printed})

    def _ended(self, name: str, error: BaseException) -> None:
        self._actors.pop(name, None)
        node = self._nodes.pop(name, None)
        lost = node is not None and self._is_lost(node)
        how = "its node is gone" if lost else _brief(error)
        self._say({"ended": name, "how": how, "node_lost": lost})

    def _is_lost(self, node: str) -> bool:
        """Whether a node is gone. It is asked once: an answer that does not come takes a second, and many workers may have been on it."""
        if node not in self._lost_nodes and not answers(self._ray.nodes, node):
            self._lost_nodes.add(node)
        return node in self._lost_nodes


def answers(nodes: Callable[[], list[dict[str, Any]]], node: str) -> bool:
    """Whether Ray is still there on a node. What Ray says itself (``nodes``) is late by some seconds; where it says nothing, the node is
    not known to be gone."""
    try:
        found = next((each for each in nodes() if each["NodeID"] == node), None)
    except Exception:  # noqa: BLE001 - whatever Ray raises while its head is busy or going
        return True
    if found is None or not found["Alive"]:
        return False
    with suppress(OSError):
        socket.create_connection((found["NodeManagerAddress"], found["NodeManagerPort"]), timeout=1.0).close()
        return True
    return False


def unlike_us(about: Mapping[str, Any]) -> str | None:
    """Why a node can't execute what this process makes, if it can't."""
    ours, python = VERSION, ".".join(map(str, sys.version_info[:2]))
    where = f"the node {about['address']}"
    if about["python"] != python:
        return f"{where} has Python {about['python']}, and this machine {python}: all must have the same"
    if about["manyhands"] is None:
        return f"manyhands is not installed on {where}: install version {ours} in the Python of its Ray"
    if about["manyhands"] != ours:
        return f"{where} has manyhands {about['manyhands']}, and this machine {ours}: all must have the same"
    return None


def _words(error: Exception) -> str:
    """What an exception says: Ray gives some of it in parts."""
    return "".join(map(str, error.args))


def _brief(error: BaseException) -> str:
    text = str(error)
    if "running low on memory" in text or type(error).__name__ == "OutOfMemoryError":
        return "Ray ended it, as its node ran out of memory"
    return "its actor was killed" if type(error).__name__ == "ActorDiedError" else one_line(text)[:MAX_TEXT]


def _connected(begin: Mapping[str, Any]) -> tuple[Any, str]:
    """Ray, connected, and the address by which it knows this machine. Raises whatever Ray raises."""
    import logging

    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(actor)  # type: ignore[no-untyped-call]
    ray.init(
        address=begin["address"] or os.environ.get("RAY_ADDRESS") or "auto",
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
        runtime_env={"py_modules": begin["modules"]} if begin["modules"] else None,
    )
    return ray, ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]


def _why(error: BaseException, begin: Mapping[str, Any]) -> str:
    text = one_line(str(error))
    if isinstance(error, ConnectionError) and not begin["address"]:
        return "no Ray cluster was found: name one with --ray_address, or start one with: ray start --head"
    return f"Ray can't be used: {text[:MAX_TEXT]}"


def main() -> int:
    """Do what the owner says, until it closes standard input."""
    parent = os.getppid()
    die_with_parent()
    if parent != os.getppid():
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    lock = threading.Lock()
    begin = json.loads(sys.stdin.readline() or "{}").get("begin")
    if begin is None:
        return 1
    timer = threading.Timer(INIT_SECONDS, _too_late, (said, begin))
    timer.daemon = True
    timer.start()
    try:
        ray, address = _connected(begin)
    except BaseException as error:  # noqa: BLE001 - whatever Ray raises, the owner is to hear of it
        _say(said, lock, {"error": _why(error, begin)})
        return 1
    timer.cancel()
    placer = Placer(ray, begin["run_id"], begin["resources"], lambda message: _say(said, lock, message))
    _say(said, lock, {"ready": address})
    placer.run()
    ray.shutdown()
    return 0


def _too_late(said: TextIO, begin: Mapping[str, Any]) -> None:
    _say(
        said,
        threading.Lock(),
        {"error": f"Ray did not connect to {begin['address'] or 'a cluster'} in {INIT_SECONDS:g} s"},
    )
    os._exit(1)


def _say(said: TextIO, lock: threading.Lock, message: dict[str, Any]) -> None:
    with lock, suppress(OSError):
        said.write(json.dumps(message) + "\n")
        said.flush()


if __name__ == "__main__":
    sys.exit(main())
