"""Rows as SWE-bench has them, and the predictions that its harness grades."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.batches import REASONED, BatchFolder, ServerThread, run_command

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")


def row(number: int) -> dict[str, object]:
    return {
        "instance_id": f"org__repo-{number}",
        "repo": "org/repo",
        "base_commit": "HEAD",
        "problem_statement": f"Fix bug {number}.",
        "FAIL_TO_PASS": "[]",
    }


def test_rows_of_swe_bench_become_predictions(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [row(1), row(2), row(3)])
    template = tmp_path / "repository"
    template.mkdir()
    (template / "a.txt").write_text("before\n")
    collect = 'sed -i "s/before/after/" a.txt; [ {instance_id} != org__repo-3 ] && echo {instance_id} && cat a.txt'
    with ServerThread([REASONED] * 3) as server:
        ran = folder.batch(
            "--model=m",
            f"--base_url={server.base_url}",
            "--api_key=k",
            "--prompt_field=problem_statement",
            "--id_field=instance_id",
            f"--workspace={template}",
            f"--collect={collect}",
            "--sandbox=bubblewrap",
        )
    assert ran.code == 0, ran.err
    assert folder.lines()[0]["metadata"]["item"] == "id:org__repo-1#0"
    exported = run_command(tmp_path, "export", "data/r", "--to=swebench", "-o", "preds.json")
    assert exported.code == 0, exported.err
    found = json.loads((tmp_path / "preds.json").read_text())
    assert found == {
        name: {"model_name_or_path": "m", "instance_id": name, "model_patch": f"{name}\nafter\n"}
        for name in ("org__repo-1", "org__repo-2")
    }
    run_command(tmp_path, "export", "data/r", "--to=swebench", "-o", "preds.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "preds.jsonl").read_text().splitlines()]
    assert {line["instance_id"]: line for line in lines} == found
    assert "whose patch is not to be relied on (exit code 1)" in exported.out + exported.err


def test_the_id_of_rows_whose_id_field_nobody_named_and_empty_patches(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [row(1), {**row(2), "instance_id": None}])
    with ServerThread([REASONED] * 2) as server:
        made = ("--model=m", f"--base_url={server.base_url}", "--api_key=k", "--prompt_field=problem_statement")
        ran = folder.batch(*made, "--collect=true", "--sandbox=bubblewrap")
    assert ran.code == 0, ran.err
    exported = run_command(tmp_path, "export", "data/r", "--to=swebench", "-o", "preds.json")
    assert exported.code == 0, exported.err
    assert list(json.loads((tmp_path / "preds.json").read_text())) == ["org__repo-1"]
    assert "1 without an id (rows have none by --id_field, and no field instance_id)" in exported.out
    assert "Empty patches: 1" in exported.out


def test_rows_without_their_id_are_skipped(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [row(1), {"problem_statement": "x"}])
    with ServerThread([REASONED]) as server:
        ran = folder.batch(
            "--model=m",
            f"--base_url={server.base_url}",
            "--api_key=k",
            "--prompt-field=problem_statement",
            "--id_field=instance_id",
        )
    assert ran.code == 0, ran.err
    assert 'no "instance_id" field' in ran.err
