"""What each option of agents' worlds does, seen from outside: the same for every workload that has these options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tests.support.image_doubles import NAME as BOXES
from tests.support.image_doubles import boxes

Row = Mapping[str, object]


class Runs(Protocol):
    """Runs of one row each by the built-in agent, with ``--sandbox=local`` if nothing else is said, and a terminal."""

    @property
    def path(self) -> Path:
        """Where commands begin, and what paths are relative to."""
        ...

    def collected(self, *words: str, row: Row | None = None) -> str | None:
        """What ``--collect`` gave in a new run; None if its item failed. The row has a ``name``, which is ``a``, and what is given."""
        ...

    def refused(self, *words: str) -> str:
        """What is said of a command line that is refused before anything is made."""
        ...


WORLD_CHECKS: dict[str, Callable[[Runs], None]] = {}


def _option(check: Callable[[Runs], None]) -> None:
    WORLD_CHECKS[check.__name__.removeprefix("_")] = check


def _folder(runs: Runs) -> None:
    (runs.path / "given").mkdir()
    (runs.path / "given" / "known").write_text("known\n")


def _asked(runs: Runs, what: str, *words: str, row: Row | None = None) -> list[str]:
    """What a kind of sandboxes that are containers was asked for."""
    with boxes(runs.path / f"double{len(list(runs.path.iterdir()))}") as registry:
        registry.publish("own:1")
        images = (f"--sandbox={BOXES}", "--image=own:1", "--collect=true")
        assert runs.collected(*images, *words, row=row) is not None
        return list(registry.counts(what))


@_option
def _workspace(runs: Runs) -> None:
    _folder(runs)
    assert runs.collected("--workspace=given", "--collect=echo more >>known; cat known") == "known\nmore\n"
    assert (runs.path / "given" / "known").read_text() == "known\n"
    assert "there is no folder" in runs.refused("--workspace=nowhere")


@_option
def _project(runs: Runs) -> None:
    _folder(runs)
    words = ("--project=given", "--sandbox=bubblewrap", "--collect=cat known; touch $PROJECT/x || echo no")
    found = runs.collected(*words)
    assert found is not None
    assert found.startswith("known\n")
    assert found.endswith("no\n")
    assert "there is no folder" in runs.refused("--project=nowhere")


@_option
def _setup(runs: Runs) -> None:
    assert runs.collected("--setup=echo set up {name} >log", "--collect=cat log") == "set up a\n"
    assert runs.collected("--setup=exit 3", "--collect=true") is None


@_option
def _collect(runs: Runs) -> None:
    assert runs.collected("--collect=echo of {name}") == "of a\n"
    assert "can't be put into" in runs.refused("--collect=cat `echo {name}`")


@_option
def _setup_timeout(runs: Runs) -> None:
    assert runs.collected("--setup=sleep 30", "--setup_timeout=0.3", "--collect=true") is None
    assert "--setup_timeout" in runs.refused("--setup_timeout=0")


@_option
def _container_env(runs: Runs) -> None:
    assert runs.collected("--container_env=A=1", "--container_env=B=2", "--collect=echo $A$B") == "12\n"
    assert "is not set" in runs.refused("--container_env=NOT_SET_ANYWHERE")


@_option
def _user(runs: Runs) -> None:
    assert _asked(runs, "user") == ["None"]
    assert _asked(runs, "user", "--user=worker") == ["worker"]
    assert "--user: only containers can do that" in runs.refused("--user=worker")


@_option
def _cwd(runs: Runs) -> None:
    assert runs.collected("--cwd=sub", "--collect=pwd") != runs.collected("--collect=pwd")
    assert (runs.collected("--cwd=sub", "--collect=basename $PWD")) == "sub\n"


@_option
def _cpus(runs: Runs) -> None:
    assert _asked(runs, "cpus", "--cpus=1.5") == ["1.5"]
    assert "--cpus: only containers can do that" in runs.refused("--cpus=1.5")
    assert "--cpus" in runs.refused("--cpus=0")


@_option
def _memory(runs: Runs) -> None:
    assert _asked(runs, "memory", "--memory=0.5") == [f"{512 << 20}"]
    assert "--memory" in runs.refused("--memory=0.01")


@_option
def _files_field(runs: Runs) -> None:
    row = {"given": {"sub/one": "1\n"}}
    assert runs.collected("--files_field=given", "--collect=cat sub/one", row=row) == "1\n"


@_option
def _setup_field(runs: Runs) -> None:
    words = ("--setup=echo run >log", "--setup_field=given", "--collect=cat log")
    assert runs.collected(*words, row={"given": "echo row >>log"}) == "run\nrow\n"


@_option
def _env_field(runs: Runs) -> None:
    words = ("--container_env=B=run", "--env_field=given", "--collect=echo $A $B")
    assert runs.collected(*words, row={"given": {"A": "row", "B": "row"}}) == "row run\n"


@_option
def _user_field(runs: Runs) -> None:
    assert _asked(runs, "user", "--user=worker", "--user_field=given", row={"given": "another"}) == ["another"]
    assert "--user_field: only containers can do that" in runs.refused("--user_field=name")


@_option
def _cpus_field(runs: Runs) -> None:
    assert _asked(runs, "cpus", "--cpus=2", "--cpus_field=given", row={"given": 1}) == ["1.0"]
    assert _asked(runs, "cpus", "--cpus=2", "--cpus_field=given", row={"given": 8}) == ["2.0"]


@_option
def _memory_field(runs: Runs) -> None:
    assert _asked(runs, "memory", "--memory=0.5", "--memory_field=given", row={"given": 0.25}) == [f"{256 << 20}"]
    assert _asked(runs, "memory", "--memory=0.5", "--memory_field=given", row={"given": 64}) == [f"{512 << 20}"]


@_option
def _network_field(runs: Runs) -> None:
    words = ("--sandbox=bubblewrap", "--network", "--collect=readlink /proc/self/ns/net", "--network_field=given")
    ours = os.readlink("/proc/self/ns/net")
    assert runs.collected(*words, row={"given": "yes"}) == f"{ours}\n"
    without = runs.collected(*words, row={"given": "no"})
    assert without is not None
    assert without.startswith("net:[")
    assert without != f"{ours}\n"
