"""The rewards that verifiers leave, and the score that they come to."""

from __future__ import annotations

import pytest

from manyhands.core.errors import GraderError
from manyhands.graders.trajectory.verifier import clipped, raw_score
from manyhands.task_folders.rewards import NoReward, read_rewards


@pytest.mark.parametrize(
    ("as_json", "as_text", "rewards"),
    [
        (None, b"1", {"reward": 1.0}),
        (None, b" 0.25\n", {"reward": 0.25}),
        (None, b"-3e0", {"reward": -3.0}),
        (b'{"reward": 0.5, "speed": 2}', b"1", {"reward": 0.5, "speed": 2}),
        (b"0.75", None, {"reward": 0.75}),
        (b'{"passed": true}', None, {"passed": 1}),
    ],
)
def test_rewards_are_read(as_json: bytes | None, as_text: bytes | None, rewards: dict[str, float]) -> None:
    assert read_rewards(as_json, as_text) == rewards


@pytest.mark.parametrize(
    ("as_json", "as_text", "words"),
    [
        (None, None, "neither"),
        (None, b"", "reward.txt is empty"),
        (None, b"\n", "not a number"),
        (None, b"yes", 'reward.txt holds "yes", not a number'),
        (None, b"1\n0\n", r'reward.txt holds "1\\n0", not a number'),
        (None, b"nan", "not a finite number"),
        (None, b"-inf", "not a finite number"),
        (None, b"\xff", "not a number"),
        (b"", b"1", "reward.json is empty"),
        (b"{", b"1", "not JSON"),
        (b"[1]", None, "not a number"),
        (b"null", None, "not a number"),
        (b"{}", b"1", "no reward"),
        (b'{"reward": "1"}', None, '"reward" is "1", not a number'),
        (b'{"reward": NaN}', None, "not a finite number"),
        (b'{"reward": 1e999}', None, "not a finite number"),
        (b'{"a": {"b": 1}}', None, "not a number"),
        (b"\xef\xbb\xbf1", None, "not JSON"),
    ],
)
def test_what_is_no_reward_is_an_error_and_not_zero(as_json: bytes | None, as_text: bytes | None, words: str) -> None:
    with pytest.raises(NoReward, match=words):
        read_rewards(as_json, as_text)


def test_the_score_is_the_reward_or_the_only_one() -> None:
    assert raw_score({"reward": 0.5, "other": 1}) == 0.5
    assert raw_score({"accuracy": 0.25}) == 0.25
    assert raw_score({"a": 1, "b": 0}, "a") == 1
    with pytest.raises(GraderError, match="'a', 'b', and none is called"):
        raw_score({"a": 1, "b": 0})
    assert [clipped(value) for value in (-1.0, 0.3, 7.5)] == [0.0, 0.3, 1.0]
