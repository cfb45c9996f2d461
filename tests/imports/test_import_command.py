"""``manyhands import`` as it is typed: what it makes, what it refuses, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import Ran, read_lines, run_command

USER = {"role": "user", "content": "How many?"}
ANSWER = {"role": "assistant", "content": "Three."}
GOOD = {"id": "a", "messages": [USER, ANSWER]}
BAD = {"messages": [{"role": "human", "content": ""}]}


def write(folder: Path, *rows: Any, name: str = "m.jsonl") -> None:
    (folder / name).write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def imported(folder: Path, *words: str, code: int = 0) -> Ran:
    ran = run_command(folder, "import", "--from=messages", *words)
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    return ran


def items(folder: Path, run: str = "m") -> list[dict[str, Any]]:
    ran = run_command(folder, "show", f"data/{run}", "--json")
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_run_is_made_that_all_commands_know(tmp_path: Path) -> None:
    write(tmp_path, GOOD, {"messages": [USER, ANSWER], "score": 0.5})
    out = imported(tmp_path, "m.jsonl").out
    assert "Conversations: 2" in out
    assert "Scores: mean 0.500 of 1\n" in out
    assert "show data/m" in out
    found = items(tmp_path)
    first = [found[0][name] for name in ("key", "state", "score", "input", "outcome")]
    assert first == ["a", "completed", None, "How many?", "Three."]
    assert len(found[1]["key"]) == 32
    shown = run_command(tmp_path, "show", "m", "a").out
    assert "m.jsonl, line 1" in shown
    assert "user:\n  How many?\nassistant:\n  Three.\n" in shown
    assert "no recorded steps" not in shown
    assert " imported  finished " in run_command(tmp_path, "runs").out
    assert "mean score 0.500" in run_command(tmp_path, "status", "m").out
    resumed = run_command(tmp_path, "resume", "m")
    assert (resumed.code, "Conversations: 2" in resumed.out) == (0, True)
    assert "2 have no recorded steps" in run_command(tmp_path, "check", "m").out
    exported = run_command(tmp_path, "export", "m", "--to=openai", "--output=-")
    assert json.loads(exported.out.splitlines()[0])["messages"] == [USER, {**ANSWER, "weight": 1}]


def test_what_conversations_cost_stands_in_their_records_and_not_in_the_ledger(tmp_path: Path) -> None:
    step = {
        "source": "agent",
        "message": "Three.",
        "metrics": {"prompt_tokens": 9, "completion_tokens": 1, "cost_usd": 0.25},
    }
    trajectory = {"schema_version": "ATIF-v1.4", "agent": {"name": "x", "version": "1"}, "steps": [step]}
    (tmp_path / "t.json").write_text(json.dumps({**trajectory, "session_id": "s"}, indent=1))
    assert run_command(tmp_path, "import", "--from=atif", "t.json").code == 0
    (run,) = json.loads(run_command(tmp_path, "runs", "--json").out)
    assert (run["run"], run["cost"], run["completed"]) == ("t", 0.0, 1)
    row = json.loads(run_command(tmp_path, "export", "t", "--to=jsonl", "--output=-").out)
    assert (row["key"], row["usage"]["calls"], row["usage"]["cost"]) == ("s", 1, 0.25)
    assert row["turns"][0]["call"]["usage"]["input_tokens"] == 9


def test_a_bad_row_is_refused_by_file_line_and_field_and_nothing_is_made(tmp_path: Path) -> None:
    write(tmp_path, GOOD, BAD)
    ran = imported(tmp_path, "m.jsonl", code=2)
    assert ran.err.count("\n") == 1
    assert "m.jsonl, line 2: messages[0].role: must be system, " in ran.err
    assert "--skip_bad_rows" in ran.err
    assert not (tmp_path / "data/m").exists()


def test_bad_rows_are_left_out_on_request_and_the_first_are_named(tmp_path: Path) -> None:
    write(tmp_path, GOOD, *[BAD] * 11, "{")
    ran = imported(tmp_path, "m.jsonl", "--skip-bad-rows")
    assert ran.err.count("the row is left out") == 10
    assert "and 2 more rows left out" in ran.err
    assert "Conversations: 1, 12 rows left out" in ran.out
    summary = json.loads((tmp_path / "data/m/import_summary.json").read_text())
    assert (summary["conversations"], summary["left_out"], len(summary["first_left_out"])) == (1, 12, 10)
    assert "12 rows left out" in run_command(tmp_path, "resume", "m").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.jsonl"], "none.jsonl"),
        ([], "--input_files is required"),
        (["bad.jsonl", "--skip_bad_rows"], "there is no conversation ("),
        (["empty.jsonl"], "the dataset file is empty"),
        (["m.jsonl", "--id_field=uuid"], "m.jsonl, line 1: uuid: is missing"),
        (["m.jsonl", "--grade=none.yaml"], "none.yaml"),
        (["m.jsonl", "--from=mesages"], "did you mean messages"),
        (["m.jsonl", "--form=messages"], "unknown option --form"),
        (["m.jsonl", "--run_name=a/b"], "--run_name must be a plain folder name"),
        (["."], "has no files with rows"),
    ],
)
def test_what_can_not_be_imported_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    write(folder, GOOD)
    write(folder, BAD, name="bad.jsonl")
    write(folder, name="empty.jsonl")
    if words == ["."]:
        for path in folder.glob("*.jsonl"):
            path.unlink()
    ran = imported(folder, *words, code=2)
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert not list((folder / "data").glob("*"))


def test_ids_name_items_and_are_kept_apart(tmp_path: Path) -> None:
    same = {"messages": [USER, ANSWER]}
    write(tmp_path, GOOD, GOOD, {**GOOD, "id": "a#2"}, same, same, GOOD)
    imported(tmp_path, "m.jsonl")
    keys = [each["key"] for each in items(tmp_path)]
    assert keys[:3] == ["a", "a#2", "a#2#2"]
    assert keys[4] == f"{keys[3]}#2"
    assert keys[5] == "a#3"
    assert len(set(keys)) == 6


def test_several_files_and_folders_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path, GOOD)
    write(tmp_path / "more", {**GOOD, "id": "c"}, name="2.jsonl")
    write(tmp_path / "more", {**GOOD, "id": "b"}, name="1.jsonl")
    imported(tmp_path, "m.jsonl", "more", "--run_name=all")
    assert [each["key"] for each in items(tmp_path, "all")] == ["a", "b", "c"]
    imported(tmp_path, "m.jsonl")
    imported(tmp_path, "m.jsonl")
    assert sorted(each.name for each in (tmp_path / "data").iterdir()) == ["all", "m", "m-2"]
    assert "exists already" in imported(tmp_path, "m.jsonl", "--run_name=all", code=2).err


def test_what_was_imported_stays_when_its_files_change(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    imported(tmp_path, "m.jsonl")
    (tmp_path / "m.jsonl").unlink()
    resumed = run_command(tmp_path, "resume", "m")
    assert (resumed.code, "note" in resumed.err) == (0, False)
    assert len(items(tmp_path)) == 1


def test_formats_are_listed_and_help_names_the_options(tmp_path: Path) -> None:
    listed = run_command(tmp_path, "import", "--from=list").out
    assert [line.split()[0] for line in listed.splitlines()] == ["messages", "sharegpt", "atif", "jsonl"]
    text = run_command(tmp_path, "import", "--help").out
    for said in ("--from FORMAT", "--skip_bad_rows", "--grade FILE", "--id_field NAME", "--run_name NAME", "FILE…"):
        assert said in text
    assert "--tool_choice" not in text


def test_imports_are_compared_by_their_scores(tmp_path: Path) -> None:
    for name, scores in (("one", (0.0, 0.5, 1.0)), ("two", (1.0, 0.5, None))):
        rows = [{"id": f"r{number}", "messages": [USER, ANSWER], "score": score} for number, score in enumerate(scores)]
        write(tmp_path, *rows, name=f"{name}.jsonl")
        imported(tmp_path, f"{name}.jsonl")
    ran = run_command(tmp_path, "eval", "compare", "one", "two", "--json")
    found = json.loads(ran.out)
    assert [(each["test_id"], each["delta"]) for each in found["matched"]] == [("r0", 1.0), ("r1", 0.0)]
    assert found["unscored"] == ["r2"]
    assert ran.code == 0
    assert run_command(tmp_path, "eval", "compare", "two", "one").code == 1
    assert [line["test_id"] for line in read_lines(tmp_path / "data/one/results.jsonl")] == ["r0", "r1", "r2"]


def test_secrets_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-or-v1-0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("OPENROUTER_API_KEY", secret)
    write(tmp_path, {"messages": [USER, {"role": "assistant", "content": f"It is {secret}."}]})
    imported(tmp_path, "m.jsonl")
    assert secret.encode() not in b"".join(path.read_bytes() for path in (tmp_path / "data/m").iterdir())
    assert "It is [redacted]." in run_command(tmp_path, "show", "m", "1").out


def test_no_key_stands_in_what_is_written_of_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "Zq81-known-secret-Zq81"
    monkeypatch.setenv("OWN_API_KEY", secret)
    good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    bad = {"messages": [{"role": f"role {secret}", "content": "q"}]}
    (tmp_path / "m.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    ran = run_command(tmp_path, "import", "--from=messages", "m.jsonl", "--run_name=r", "--skip_bad_rows", "--quiet")
    assert ran.code == 0, ran
    for path in (tmp_path / "data/r").iterdir():
        assert secret.encode() not in path.read_bytes(), path.name
