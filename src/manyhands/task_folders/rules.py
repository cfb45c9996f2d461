"""What a run says of all its tasks, together with what each of them says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

from manyhands.core.settings import Settings
from manyhands.network.rules import public_alone, tightened
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.task_folders.contents import Task
from manyhands.task_folders.reading import agent_policy, verifier_policy
from manyhands.task_folders.schema import ALLOWLIST, NO_NETWORK, PUBLIC

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class TaskRules:
    """What a run says of all its tasks. It can only tighten what they say, unless ``override``. None: it says nothing."""

    multiplier: float = 1.0
    """For agents' time limits."""
    override: bool = False
    time_limit: float | None = None
    """Seconds of a conversation."""
    network: bool | None = None
    network_allow: tuple[str, ...] | None = None
    memory: int | None = None
    """Bytes."""
    cpus: float | None = None
    disk: int | None = None
    """Bytes."""

    @classmethod
    def of(
        cls,
        options: Settings,
        limits: SandboxLimits,
        *,
        multiplier: float = 1.0,
        override: bool = False,
        time_limit: float | None = None,
    ) -> Self:
        """What the settings of sandboxes that a person gave say. ``limits``: what all of them come to."""

        def given(name: str, value: Any) -> Any:
            return value if name in options.given else None

        return cls(
            multiplier=multiplier,
            override=override,
            time_limit=time_limit,
            network=given("network", limits.network),
            network_allow=given("network_allow", limits.network_allow),
            memory=given("memory", limits.memory),
            cpus=given("cpus", limits.cpus),
            disk=given("sandbox_disk", limits.disk),
        )

    def to_json(self) -> dict[str, Any]:
        """What is said; ``from_json`` takes it back."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        found = dict(value or {})
        if found.get("network_allow") is not None:
            found["network_allow"] = tuple(found["network_allow"])
        return cls(**found)

    def agent_seconds(self, task: Task) -> float | None:
        """The time limit of a conversation."""
        own = task.config.agent.timeout_sec
        scaled = None if own is None else own * self.multiplier
        return _tightest(scaled, self.time_limit, override=self.override)

    def limits(self, task: Task, around: SandboxLimits, *, verifier: bool = False) -> SandboxLimits:
        """The bounds of a task's sandbox. ``around``: those that the run's settings come to; ``verifier``: of the one that the verifier has
        for itself."""
        environment = task.config.environment
        if verifier and task.config.verifier.environment is not None:
            environment = task.config.verifier.environment
        policy = verifier_policy(task.config) if verifier else agent_policy(task.config)
        image = task.verifier_image if verifier else task.image
        network, allowed = self._network(policy, has_image=image is not None)
        return replace(
            around,
            memory=_tightest(_bytes(environment.memory_mb), self.memory, override=self.override) or around.memory,
            disk=_tightest(_bytes(environment.storage_mb), self.disk, override=self.override) or around.disk,
            cpus=_tightest(environment.cpus, self.cpus, override=self.override),
            network=network,
            network_allow=allowed,
        )

    def _network(self, policy: tuple[str, tuple[str, ...]], *, has_image: bool) -> tuple[bool, tuple[str, ...]]:
        """Whether there is a network, and the hosts that can be reached without one. Without an image it would be this machine's own, so it
        needs the person's word."""
        mode, hosts = policy
        if self.override and (self.network is not None or self.network_allow is not None):
            return bool(self.network), () if self.network else self.network_allow or ()
        if (self.network is False and not self.network_allow) or mode == NO_NETWORK:
            return False, ()
        if not has_image and not self.network:
            allowed = self.network_allow or ()
            return False, allowed if mode == PUBLIC else tightened(hosts, allowed)
        if mode == ALLOWLIST:
            if (
                self.network_allow is None or self.network
            ):  # a task's author knows nothing of addresses around this machine
                return False, public_alone(hosts)
            return False, tightened(hosts, self.network_allow)
        if self.network_allow is not None and not self.network:
            return False, self.network_allow
        return True, ()


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes << 20


def _tightest(own: _Number | None, given: _Number | None, *, override: bool) -> _Number | None:
    """What counts of a task's own bound and the run's."""
    if own is None or given is None:
        return own if given is None else given
    return given if override else min(own, given)
