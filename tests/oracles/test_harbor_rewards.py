"""The rewards that Harbor's own code reads from what verifiers leave, and those that ours does."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

from manyhands.task_folders.rewards import NoReward, read_rewards
from tests.support.oracles import check

Files = tuple[bytes | None, bytes | None]
"""``reward.json`` and ``reward.txt``."""
WRITTEN: list[Files] = [
    (None, None),
    (None, b"1"),
    (None, b"0\n"),
    (None, b"  0.5  \n"),
    (None, b"-2.5e-1"),
    (None, b""),
    (None, b"\n"),
    (None, b"one"),
    (None, b"nan"),
    (None, b"Infinity"),
    (None, b"1_0"),
    (None, b"\xff\xfe"),
    (None, b"1 2"),
    (None, b"true"),
    (b'{"reward": 1}', None),
    (b'{"reward": 1}', b"0"),
    (b'{"a": 0.5, "b": -3}', None),
    (b'{"passed": true, "failed": false}', None),
    (b"", b"1"),
    (b"{", b"1"),
    (b"null", b"1"),
    (b"[]", None),
    (b'"1"', None),
    (b'{"reward": "1"}', None),
    (b'{"reward": null}', None),
    (b'{"reward": NaN}', None),
    (b'{"reward": 1e400}', None),
    (b'{"reward": [1]}', None),
    (b'{"reward": 1, "reward": 2}', None),
    (b'\xef\xbb\xbf{"reward": 1}', None),
]
NUMBERS = (
    "0",
    "1",
    "-1",
    "0.5",
    "1e3",
    "1e-300",
    "12345678901234567890",
    "-0.0",
    "1E400",
    "NaN",
    "-Infinity",
    "007",
    ".5",
)
OTHERS = ("true", "false", "null", '"1"', "[1]", "{}", "[]", "yes")


def generated(number: int) -> list[Files]:
    random = Random(7)

    def value() -> str:
        return random.choice(NUMBERS if random.random() < 0.8 else OTHERS)

    def text() -> bytes | None:
        if random.random() < 0.3:
            return None
        blanks = ("", " ", "\n", "\t")
        return f"{random.choice(blanks)}{value()}{random.choice(blanks)}".encode()

    def as_json() -> bytes | None:
        if random.random() < 0.3:
            return None
        names = random.choices(("reward", "a", "b", "", "é"), k=random.randint(1, 4))
        found = "{" + ", ".join(f'"{name}": {value()}' for name in names) + "}"
        if random.random() < 0.15:
            at = random.randrange(len(found))
            found = found[:at] + random.choice(("", "x", '"', "}")) + found[at + 1 :]
        return found.encode()

    return [(as_json(), text()) for _ in range(number)]


def ours(files: Files) -> dict[str, Any]:
    try:
        return {"rewards": read_rewards(*files)}
    except NoReward:
        return {"error": True}


def test_the_same_files_give_the_same_rewards_and_the_same_errors(tmp_path: Path) -> None:
    assert len(WRITTEN) == 30
    cases = [*WRITTEN, *generated(2000)]
    lines = [
        json.dumps(
            {
                name: None if data is None else base64.b64encode(data).decode()
                for name, data in zip(("json", "text"), each, strict=True)
            }
        )
        for each in cases
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    theirs = check("harbor", "harbor_rewards", tmp_path / "cases.jsonl", home=tmp_path)
    assert len(theirs) == len(cases)
    scored = 0
    for files, found in zip(cases, theirs, strict=True):
        if "error" in found or not found["rewards"]:  # an object without rewards is no valid result to Harbor either
            assert ours(files) == {"error": True}, (files, found)
        else:
            assert ours(files) == found, files
            scored += 1
    assert scored > 500


def test_a_bare_number_is_a_reward_here_and_none_to_harbor(tmp_path: Path) -> None:
    case = {"json": base64.b64encode(b"0.75").decode(), "text": None}
    (tmp_path / "cases.jsonl").write_text(json.dumps(case) + "\n")
    (found,) = check("harbor", "harbor_rewards", tmp_path / "cases.jsonl", home=tmp_path)
    assert found == {"error": "ValidationError"}
    assert ours((b"0.75", None)) == {"rewards": {"reward": 0.75}}
