"""Messages that name options name parameters for callers from Python."""

from __future__ import annotations

import pytest

from manyhands.core.errors import RunError
from manyhands.runs.parameters import PythonWords
from manyhands.workloads.trajectories.spec import BatchSpec

WORDS = PythonWords(BatchSpec, {"resume": "run(resume=True)"})


@pytest.mark.parametrize(
    ("typed", "python"),
    [
        ("or give --sandbox local to run commands", 'or give sandbox="local" to run commands'),
        ("--sandbox bubblewrap: bwrap is missing", 'sandbox="bubblewrap": bwrap is missing'),
        ("try --model simulated, which needs none", 'try model="simulated", which needs none'),
        ("or give --api_key, or", "or give api_key, or"),
        ("continue it with --resume, or start", "continue it with run(resume=True), or start"),
        ("with --run_name=r-2", 'with run_name="r-2"'),
        ("with --run_name='my run-2'", 'with run_name="my run-2"'),
        ("needs scores: give graders with --grade=FILE", "needs scores: give graders with grade=FILE"),
        ("give --samples=N", "give samples=N"),
        ("give --max_tokens=5.", "give max_tokens=5."),
        ("so --max_cost counts only what", "so max_cost counts only what"),
        ("give --prices FILE, or --max_total_tokens", "give prices=FILE, or max_total_tokens"),
        ("--max_tokens sets another bound", "max_tokens sets another bound"),
        ("accept with --override=model,max_tokens", 'accept with override="model,max_tokens"'),
        ("(--keep-unreasoned keeps them)", "(keep_unreasoned=True keeps them)"),
        ("--no-network or --quiet=false", "network=False or quiet=False"),
        ("git --no-pager log --format=%H", "git --no-pager log --format=%H"),
        ("a--model b", "a--model b"),
    ],
)
def test_options_become_parameters(typed: str, python: str) -> None:
    assert WORDS.text(typed) == python
    assert WORDS.text(python) == python


def test_errors_keep_their_class() -> None:
    with pytest.raises(RunError, match=r'^x: start another with run_name="y"$'), WORDS.errors():
        raise RunError("x: start another with --run_name=y")
