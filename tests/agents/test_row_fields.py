"""What rows may say of their worlds: each field that a person can name, as it is read, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.row_fields import RowFields
from manyhands.core.jsonio import Json

FIELDS = RowFields("files", "setup", "env", "user", "cpus", "memory", "network")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, ItemWorld()),
        (
            dict(zip(sorted(FIELDS.names), (None, "", [], {}, None, "", []), strict=True)),
            ItemWorld(),
        ),
        ({"user": "nobody"}, ItemWorld(user="nobody")),
        ({"user": 1000}, ItemWorld(user="1000")),
        ({"user": "build-1:users"}, ItemWorld(user="build-1:users")),
        ({"memory": 0.5}, ItemWorld(memory=1 << 29)),
        ({"memory": "2"}, ItemWorld(memory=2 << 30)),
        ({"cpus": "1.5"}, ItemWorld(cpus=1.5)),
        ({"network": "no"}, ItemWorld(network=False)),
        ({"network": False}, ItemWorld(network=False)),
        ({"network": "yes"}, ItemWorld(network=True)),
        ({"network": "files.example, *.pages.example"}, ItemWorld(network=["files.example", "*.pages.example"])),
        ({"network": ["8.8.8.8"]}, ItemWorld(network=["8.8.8.8"])),
        ({"env": '{"A": "1"}', "files": {"a/./b": "x"}}, ItemWorld(environment={"A": "1"}, files={"a/b": "x"})),
    ],
)
def test_fields_are_read_as_they_are_meant(row: Mapping[str, Json], expected: ItemWorld) -> None:
    assert FIELDS.read(row) == expected
    assert RowFields().read(row) == ItemWorld()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"user": "a b"}, "\"user\" is 'a b', expected a user's name or number"),
        ({"user": True}, '"user" is'),
        ({"user": "--privileged"}, '"user" is'),
        ({"memory": "lots"}, '"memory" must be a number from 0.0625 on'),
        ({"memory": 0.01}, '"memory" must be a number from 0.0625 on'),
        ({"memory": float("nan")}, '"memory" must be a number'),
        ({"cpus": -1}, '"cpus" must be a number from 0.01 on'),
        ({"network": "perhaps"}, '"network" must be yes or no'),
        ({"network": ["*"]}, '"network" '),
        ({"setup": ["ls"]}, '"setup" is'),
        ({"env": {"MANYHANDS_X": "1"}}, '"env" can\'t set MANYHANDS_X'),
        ({"files": {"../x": "y"}}, "\"files\" '../x' leads out of the workspace"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_their_field(row: Mapping[str, Json], words: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        FIELDS.read(row)
