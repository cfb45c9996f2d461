"""Attacks from inside a sandbox: nothing gets out, and nothing outside is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.processes.children import ExecResult
from tests.attacks.attack_table import ATTACKS, Attack
from tests.attacks.held_sandbox import PROCESSES, HeldSandbox
from tests.attacks.outside import CANARY, Outside, digests, key_in_the_environment, own_folder, own_programs

PRELUDE = (Path(__file__).parent / "prelude.py").read_text()
CASES = [
    pytest.param(kind, attack, id=f"{kind}-{attack.name}", marks=[pytest.mark.slow] if attack.slow else [])
    for kind in ("bubblewrap", "local")
    for attack in ATTACKS
    if kind != "local" or not attack.isolated
]


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    with own_programs() as folder:
        yield folder


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Iterator[Outside]:
    with key_in_the_environment(), Outside(tmp_path_factory.mktemp("outside")) as outside:
        yield outside


@pytest.fixture(scope="module")
def sandboxes(outside: Outside) -> Iterator[dict[str, HeldSandbox]]:
    with own_folder() as folder:
        isolated, local = HeldSandbox("bubblewrap", folder / "isolated"), HeldSandbox("local", folder / "local")
        with isolated, local:
            yield {"bubblewrap": isolated, "local": local}


@pytest.mark.parametrize(("kind", "attack"), CASES)
def test_an_attack_gets_nowhere(
    kind: str, attack: Attack, sandboxes: dict[str, HeldSandbox], outside: Outside, programs: Path
) -> None:
    sandbox = sandboxes[kind]
    before = outside.state(), digests(programs)
    result = attempt(sandbox, attack, outside)
    said = "" if result is None else result.output.decode(errors="replace")
    assert CANARY not in said
    assert (outside.state(), digests(programs)) == before
    assert "ESCAPED" not in said, said
    if not attack.ends:
        assert result is not None
        assert (result.exit_code, said.splitlines()[-1:]) == (0, ["held"]), said
    assert comes_back(sandbox)


def comes_back(sandbox: HeldSandbox) -> bool:
    """Whether the sandbox runs commands, in the end: some attacks stop its shell, or use up its processes for some seconds."""
    eight = "for i in 1 2 3 4 5 6 7 8; do /bin/true & done 2>&1; wait; echo still here"
    for _ in range(12):
        with suppress(ItemError):
            if sandbox.shell(eight, seconds=1.5).output == b"still here\n":
                return True
        time.sleep(0.2)
    return False


def attempt(sandbox: HeldSandbox, attack: Attack, outside: Outside) -> ExecResult | None:
    """Perform an attack; None if it cost the sandbox, which the next command must find again."""
    source = f"{PRELUDE}\n{attack.source}\nprint('held', flush=True)\n"
    try:
        return sandbox.python(source, outside.places(processes=PROCESSES), seconds=attack.seconds)
    except ItemError:
        assert attack.ends
        return None
