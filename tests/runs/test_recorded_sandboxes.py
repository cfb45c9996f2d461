"""Which sandbox and image an item ran in, as the journal has it."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.runs.progress import item_sandbox, run_sandboxes, sandbox_text, sandboxes_text

DIGEST = "sha256:" + "ab" * 32
PINS: dict[str, Any] = {"kind": "podman", "images": [{"reference": "a:1", "pin": f"a@{DIGEST}", "size": 5}]}


@pytest.mark.parametrize(
    ("options", "image", "text"),
    [
        ({"sandbox": "auto"}, "a:1", f"podman, image a:1 ({DIGEST})"),
        ({"sandbox": "auto", "image": "a:1"}, None, f"podman, image a:1 ({DIGEST})"),
        ({"sandbox": "auto"}, None, "bubblewrap"),
        ({}, None, "bubblewrap"),
        ({"sandbox": "local", "ignore_images": True}, "a:1", "local"),
        ({"sandbox": "docker"}, "gone:2", "podman, image gone:2"),
    ],
)
def test_an_items_sandbox_is_what_was_pinned(options: dict[str, Any], image: str | None, text: str) -> None:
    assert sandbox_text(item_sandbox(options, PINS, image)) == text


def test_a_run_names_three_images_and_counts_the_others() -> None:
    images = [{"reference": f"i{number}", "pin": f"sha256:{number}"} for number in range(30)]
    (found,) = run_sandboxes({"pins": {"kind": "docker", "images": images}})
    assert (found["image_count"], len(found["images"])) == (30, 20)
    (text,) = sandboxes_text([found])
    assert text == "sandbox docker, made of i0 (sha256:0), i1 (sha256:1), i2 (sha256:2) and 27 more images"
    of_targets = run_sandboxes({"pins": {"x": PINS, "y": {}}})
    assert [each["kind"] for each in of_targets] == ["podman"]
    for damaged in (None, {}, {"pins": 3}, {"pins": {"kind": "docker", "images": 1}}, {"pins": {"x": 1}}):
        assert all(each["images"] == [] for each in run_sandboxes(damaged))
