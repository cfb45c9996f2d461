"""The rewards that a verifier leaves in files."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

REWARD = "reward"
"""What a reward without a name is called."""
REWARD_JSON, REWARD_TEXT = "reward.json", "reward.txt"
MAX_REWARD_FILE = 1 << 20
"""Bytes."""

_MAX_SHOWN = 80
Rewards = dict[str, float | int]


class NoReward(ValueError):
    """A verifier that gave no reward that can be read, and why. It says nothing about the agent's work."""


def read_rewards(as_json: bytes | None, as_text: bytes | None) -> Rewards:
    """The rewards of a verifier that left these files (None: not there). ``reward.json``, an object of numbers or a number, comes before
    ``reward.txt``, a number. A single number is called ``reward``.

    Raises NoReward where neither is there, or the one that counts is empty or holds anything but finite numbers.
    """
    if as_json is not None:
        return _of_json(as_json)
    if as_text is not None:
        return {REWARD: _of_text(as_text)}
    raise NoReward(f"the verifier left neither {REWARD_JSON} nor {REWARD_TEXT}")


def _of_json(data: bytes) -> Rewards:
    _check_size(data, REWARD_JSON)
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise NoReward(f"{REWARD_JSON} is not JSON: {error}") from error
    rewards = value if isinstance(value, dict) else {REWARD: value}
    for name, each in rewards.items():
        _check_number(name, each)
    if not rewards:
        raise NoReward(f"{REWARD_JSON} holds no reward")
    return {name: int(each) if isinstance(each, bool) else each for name, each in rewards.items()}


def _check_number(name: str, value: Any) -> None:
    if not isinstance(value, (int, float)):
        raise NoReward(f"{REWARD_JSON}: {_shown(name)} is {_shown(value)}, not a number")
    if isinstance(value, float) and not isfinite(value):
        raise NoReward(f"{REWARD_JSON}: {_shown(name)} is {_shown(value)}, not a finite number")


def _of_text(data: bytes) -> float:
    _check_size(data, REWARD_TEXT)
    try:
        value = float(data.decode())
    except ValueError:
        raise NoReward(
            f"{REWARD_TEXT} holds {_shown(data[:1000].decode(errors='replace').strip())}, not a number"
        ) from None
    if not isfinite(value):
        raise NoReward(f"{REWARD_TEXT} holds {value}, not a finite number")
    return value


def _shown(value: Any) -> str:
    """A value as JSON has it, cut."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _check_size(data: bytes, name: str) -> None:
    if not data:
        raise NoReward(f"{name} is empty")
    if len(data) > MAX_REWARD_FILE:
        raise NoReward(f"{name} has more than {MAX_REWARD_FILE:,} bytes")
