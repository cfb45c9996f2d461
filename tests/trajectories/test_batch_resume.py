"""Going on with a run: nothing is paid for twice, nothing wanted is left out, and every file is right afterwards."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, prompt_of, read_lines, run_command

REFUSED = ScriptedResponse({"error": {"message": "no"}}, status=400)


class Work:
    """A batch in a folder with a server that stays, counting."""

    def __init__(self, folder: BatchFolder, server: ServerThread) -> None:
        self.folder = folder
        self.server = server
        self._seen = 0

    def batch(self, *words: str, code: int = 0) -> Ran:
        ran = self.folder.batch(f"--base_url={self.server.base_url}", *words)
        assert ran.code == code, ran
        return ran

    def resume(self, *words: str, code: int = 0) -> Ran:
        return self.batch("--resume", *words, code=code)

    def asked(self) -> list[str]:
        """The prompts that were asked since the last call."""
        new = self.server.requests[self._seen :]
        self._seen += len(new)
        return sorted(map(prompt_of, new))

    def indices(self) -> list[tuple[int, str]]:
        """Prompt index and prompt of all lines of the combined file, which must agree with the batch files."""
        lines = self.folder.lines()
        for line in lines:
            number = line["prompt_index"] // 2
            assert line["metadata"]["batch_num"] == number
            assert line in self.folder.lines(f"batch_{number}.jsonl")
        return [(line["prompt_index"], line["conversations"][1]["value"]) for line in lines]

    def ledger(self) -> dict[str, Any]:
        ledger: dict[str, Any] = self.folder.json("summary.json")["ledger"]
        return ledger


def stamps(run: Path) -> dict[str, int]:
    """When each file was written (but for what SQLite makes for its readers)."""
    return {path.name: path.stat().st_mtime_ns for path in run.iterdir() if path.suffix not in (".db-shm", ".db-wal")}


@pytest.fixture
def work(tmp_path: Path) -> Iterable[Work]:
    def reply(request: RecordedRequest) -> Reply:
        prompt = prompt_of(request)
        if prompt.startswith("unreasoned"):
            return chat_response("Quick.")
        if prompt.startswith("refused"):
            return REFUSED
        return REASONED

    with ServerThread(reply) as server:
        yield Work(BatchFolder(tmp_path), server)


# --- Datasets that changed


def test_copies_of_a_prompt_are_samples_of_their_own(work: Work) -> None:
    work.folder.write_rows(["same", "other", "same"])
    work.batch()
    assert work.asked() == ["other", "same", "same"]
    keys = [line["metadata"]["item"] for line in work.folder.lines()]
    assert (keys[0][:-1], keys[0][-1], keys[2][-1]) == (keys[2][:-1], "0", "1")
    work.folder.write_rows(["same", "other", "same", "same"])
    work.resume()
    assert work.asked() == ["same"]
    assert work.indices() == [(0, "same"), (1, "other"), (2, "same"), (3, "same")]


def test_rows_that_differ_by_image_or_cwd_only_are_different_work(work: Work) -> None:
    rows = [{"prompt": "p"}, {"prompt": "p", "image": "a"}, {"prompt": "p", "image": "b"}, {"prompt": "p", "cwd": "c"}]
    work.folder.write_rows(rows)
    work.batch("--ignore_images")
    assert len(work.asked()) == 4
    work.folder.write_rows(reversed(rows))
    work.resume()
    assert work.asked() == []


def test_a_reordered_dataset_costs_nothing_and_renumbers_every_line(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c", "d", "e"])
    work.batch()
    work.asked()
    work.folder.write_rows(["e", "d", "c", "b", "a"])
    work.resume()
    assert work.asked() == []
    assert work.indices() == list(enumerate("edcba"))


def test_rows_put_in_front_are_done_and_shift_the_others(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c"])
    work.batch()
    work.asked()
    work.folder.write_rows(["z", "a", "b", "g", "c", "h"])
    work.resume()
    assert work.asked() == ["g", "h", "z"]
    assert work.indices() == list(enumerate("zabgch"))
    statistics = work.folder.json("statistics.json")
    assert (statistics["total_prompts"], statistics["usage"]["calls"]) == (6, 6)
    assert work.folder.json("checkpoint.json")["completed_prompts"] == [0, 1, 2, 3, 4, 5]


def test_a_changed_prompt_is_new_work_and_the_old_one_is_named(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c", "d"])
    work.batch()
    work.asked()
    work.folder.write_rows(["a", "B", "c", "d"])
    ran = work.resume()
    assert work.asked() == ["B"]
    assert "1 item no longer in the input (number 2)" in ran.err
    assert [text for _, text in work.indices()] == ["a", "B", "c", "d"]
    assert work.folder.json("statistics.json")["total_prompts"] == 4


def test_a_prompt_that_comes_back_is_not_paid_for_again(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c"])
    work.batch()
    work.asked()
    work.folder.write_rows(["a", "c"])
    work.resume()
    assert work.indices() == [(0, "a"), (1, "c")]
    work.folder.write_rows(["c", "b", "a"])
    work.resume()
    assert work.asked() == []
    assert work.indices() == [(0, "c"), (1, "b"), (2, "a")]


def test_more_and_fewer_samples(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c", "d"])
    work.batch("--max_samples=2")
    assert work.asked() == ["a", "b"]
    work.resume("--max_samples=3")
    assert work.asked() == ["c"]
    work.resume("--max_samples=1")
    assert work.asked() == []
    assert work.indices() == [(0, "a")]
    work.resume("--max_samples=None")
    assert work.asked() == ["d"]
    assert work.indices() == list(enumerate("abcd"))


def test_another_field_of_a_row_is_no_new_work_but_is_written(work: Work) -> None:
    work.folder.write_rows([{"prompt": "a", "label": 1}, {"prompt": "b", "label": 2}])
    work.batch()
    work.asked()
    work.folder.write_rows([{"prompt": "a", "label": "x", "more": 1}, {"prompt": "b", "label": "y", "more": 2}])
    work.resume()
    assert work.asked() == []
    assert [json.loads(line["metadata"]["source"]) for line in work.folder.lines()] == [
        {"label": "x", "more": 1},
        {"label": "y", "more": 2},
    ]


def test_another_prompt_under_the_same_id_is_new_work(work: Work) -> None:
    work.folder.write_rows([{"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"}])
    work.batch()
    assert work.asked() == ["a", "b"]
    work.folder.write_rows([{"id": 2, "prompt": "b", "label": "moved"}, {"id": 1, "prompt": "A"}])
    work.resume()
    assert work.asked() == ["A"]
    assert work.indices() == [(0, "b"), (1, "A")]
    first, second = (line["metadata"]["item"] for line in work.folder.lines())
    assert first == "id:2#0"
    assert re.fullmatch("id:1@[0-9a-f]{12}#0", second)
    work.folder.write_rows([{"id": 1, "prompt": "A"}, {"id": 2, "prompt": "B"}])
    work.resume()
    assert work.asked() == ["B"]
    work.folder.write_rows([{"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b", "cwd": "else"}])
    work.resume()
    assert work.asked() == ["b"]
    assert work.indices() == [(0, "a"), (1, "b")]


def test_a_trial_with_a_few_prompts_is_followed_by_the_whole_dataset(work: Work) -> None:
    work.batch("--max_samples=1")
    assert work.asked() == ["one"]
    ran = work.resume()
    assert work.asked() == ["three", "two"]
    assert "max_samples was 1 and is now all" in ran.err


def test_a_fixed_bad_line_is_new_work_and_no_failure_any_more(work: Work) -> None:
    (work.folder.path / "d.jsonl").write_text('{"prompt": "a"}\n{"prompt" "b"}\n{"prompt": "c"}\n')
    work.batch()
    assert work.asked() == ["a", "c"]
    assert [line["line"] for line in work.folder.lines("failures.jsonl")] == [2]
    work.folder.write_rows(["a", "b", "c"])
    work.resume()
    assert work.asked() == ["b"]
    assert work.folder.lines("failures.jsonl") == []
    assert work.indices() == list(enumerate("abc"))


# --- Outcomes


def test_discarded_prompts_are_never_paid_for_again_and_failed_ones_are_tried_again(work: Work) -> None:
    work.folder.write_rows(["a", "unreasoned 1", "refused 1", "unreasoned 2", "b"])
    work.batch(code=1)
    assert len(work.asked()) == 5
    for _ in range(2):
        ran = work.resume(code=1)
        assert work.asked() == ["refused 1"]
        assert re.search(r"1 item failed and can be retried. To continue:  \S*manyhands resume data/r$", ran.out, re.M)
    assert work.ledger()["by_cause"] == {"discarded": {"no_reasoning": 2}, "failed": {"model_refused": 1}}
    assert len(work.folder.lines("failures.jsonl")) == 3
    statistics = work.folder.json("statistics.json")
    assert (statistics["usage"]["calls"], statistics["discarded_no_reasoning"]) == (4, 2)


def test_a_failure_that_is_mended_becomes_a_trajectory_in_its_place(tmp_path: Path) -> None:
    broken = True

    def reply(request: RecordedRequest) -> Reply:
        return REFUSED if broken and prompt_of(request) == "two" else REASONED

    with ServerThread(reply) as server:
        work = Work(BatchFolder(tmp_path), server)
        work.batch(code=1)
        assert work.indices() == [(0, "one"), (2, "three")]
        broken = False
        work.resume()
        assert work.indices() == [(0, "one"), (1, "two"), (2, "three")]
    assert work.folder.lines("failures.jsonl") == []


# --- Files


def test_every_file_comes_back_also_when_nothing_is_left_to_do(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c", "unreasoned"])
    work.batch()
    work.asked()
    run = work.folder.run()
    names = [path.name for path in run.iterdir() if path.suffix in (".jsonl", ".json")]
    before = {name: (run / name).read_bytes() for name in names}
    for name in names:
        (run / name).unlink()
    ran = work.resume()
    assert work.asked() == []
    assert "3 output lines were written again from the journal" in ran.err
    for name in names:
        if name.startswith("batch_"):  # whose lines come as prompts end
            assert sorted((run / name).read_bytes().splitlines()) == sorted(before[name].splitlines())
        elif name.endswith(".jsonl"):
            assert (run / name).read_bytes() == before[name]
        else:
            assert work.folder.json(name).keys()
    assert work.folder.json("statistics.json")["items"]["completed"] == 3


@pytest.mark.parametrize("damage", ["torn", "cut", "appended", "emptied"])
def test_a_damaged_batch_file_is_repaired(work: Work, damage: str) -> None:
    work.batch()
    work.asked()
    path = work.folder.run() / "batch_0.jsonl"
    good = path.read_bytes()
    bad = {
        "torn": good[:-20],
        "cut": good[: good.index(b"\n") + 1],
        "appended": good + b'{"prompt_index": 9',
        "emptied": b"",
    }
    path.write_bytes(bad[damage])
    work.resume()
    assert work.asked() == []
    assert sorted(path.read_bytes().splitlines()) == sorted(good.splitlines())
    assert work.indices() == list(enumerate(["one", "two", "three"]))


def test_statistics_cover_the_whole_run_and_not_the_last_session(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c", "d"])
    for samples in (1, 2, 4):
        work.batch("--resume" if samples > 1 else "--no-resume", f"--max_samples={samples}")
    statistics = work.folder.json("statistics.json")
    assert statistics["total_prompts"] == 4
    assert statistics["reasoning_statistics"]["total_assistant_turns"] == 4
    assert statistics["usage"]["calls"] == 4
    assert work.folder.json("checkpoint.json")["completed_prompts"] == [0, 1, 2, 3]


# --- Settings


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("--model=a", "--model=b", "model"),
        ("--max_turns=3", "--max_turns=4", "max_turns"),
        ("--distribution=terminal_only", "--distribution=safe", "distribution"),
        ("--batch_size=2", "--batch_size=3", "batch_size"),
        ("--seed=1", "--seed=2", "seed"),
        ("--samples=1", "--samples=2", "samples"),
        ("--reasoning_effort=low", "--reasoning_effort=high", "reasoning_effort"),
        ("--ephemeral_system_prompt=x", "--ephemeral_system_prompt=y", "ephemeral_system_prompt"),
        ("--providers_order=a,b", "--providers_order=b,a", "providers_order"),
        ("--no-keep_unreasoned", "--keep_unreasoned", "keep_unreasoned"),
    ],
)
def test_a_changed_setting_is_refused_by_name_and_accepted_by_override(
    work: Work, before: str, after: str, name: str
) -> None:
    work.batch(before)
    work.asked()
    work.folder.write_rows(["one", "two", "three", "four"])
    ran = work.resume(after, code=2)
    assert work.asked() == []
    assert f" {name} was " in ran.err
    assert f"--override={name}" in ran.err
    assert ran.err.count("\n") == 1
    work.resume(after, "--override=max_tokens", code=2)
    work.resume(after, f"--override={name}")
    assert "four" in work.asked()
    assert {line["prompt_index"] for line in work.folder.lines()} == {0, 1, 2, 3}
    work.resume(before, code=2)


def test_lines_from_before_a_change_say_what_they_were_made_with_and_go_with_the_others(work: Work) -> None:
    work.folder.write_rows(["a", "b", "c", "d"])
    work.batch("--model=old", "--max_samples=2", "--batch_size=2")
    work.folder.write_rows(["new", "a", "b", "c", "d"])
    work.resume("--model=new", "--max_samples=None", "--batch_size=3", "--override=model,batch_size")
    assert sorted(work.asked()) == ["a", "b", "c", "d", "new"]
    lines = work.folder.lines()
    assert [line["metadata"]["model"] for line in lines] == ["new", "old", "old", "new", "new"]
    assert [line["metadata"]["batch_num"] for line in lines] == [0, 0, 0, 1, 1]
    assert [len(work.folder.lines(f"batch_{number}.jsonl")) for number in range(2)] == [3, 2]
    assert not list(work.folder.run().glob("batch_2*"))


def test_discarded_trajectories_are_kept_after_all_without_paying_again(tmp_path: Path) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "terminal", "arguments": '{"command": "echo x >> log"}'},
    }
    invented = {**call, "function": {"name": "summon_demon", "arguments": "{}"}}

    def reply(request: RecordedRequest) -> Reply:
        if any(message["role"] == "tool" for message in request.body["messages"]):
            return chat_response("Done.", reasoning="Hm." if prompt_of(request) == "invents" else None)
        return chat_response(None, tool_calls=[invented if prompt_of(request) == "invents" else call])

    with ServerThread(reply) as server:
        work = Work(BatchFolder(tmp_path, ["unreasoned 1", "invents", "unreasoned 2"]), server)
        ran = work.batch(code=1)
        assert work.ledger()["by_cause"] == {"discarded": {"no_reasoning": 2, "unknown_tool": 1}}
        assert "--resume --keep_unreasoned --override=keep_unreasoned" in ran.out
        assert len(work.asked()) == 6
        work.resume("--keep_unreasoned", code=2)
        work.resume("--keep_unreasoned", "--override=keep_unreasoned")
        assert work.indices() == [(0, "unreasoned 1"), (2, "unreasoned 2")]
        work.resume("--keep_unknown_tools", "--override=all")
        assert work.asked() == []
        assert work.indices() == [(0, "unreasoned 1"), (1, "invents"), (2, "unreasoned 2")]
    assert work.folder.lines("failures.jsonl") == []
    assert {line["metadata"]["attempt"] for line in work.folder.lines()} == {1}
    assert work.folder.json("statistics.json")["usage"]["calls"] == 6


def test_the_contents_of_named_files_count_and_not_their_names(work: Work) -> None:
    path = work.folder.path
    (path / "prefill.json").write_text('[{"role": "user", "content": "x"}]')
    (path / "same.json").write_text('[ {"role": "user",  "content": "x"} ]')
    (path / "template.txt").write_text("{tools} A")
    work.batch("--prefill_messages_file=prefill.json", "--system_template=template.txt")
    work.resume("--prefill_messages_file=same.json")
    (path / "prefill.json").write_text('[{"role": "user", "content": "y"}]')
    ran = work.resume("--prefill_messages_file=prefill.json", code=2)
    assert "prefill_messages_file was " in ran.err
    assert "--override=prefill_messages_file" in ran.err
    (path / "template.txt").write_text("{tools} B")
    assert "--override=system_template" in work.resume("--system_template=template.txt", code=2).err
    work.resume("--system_template=template.txt", "--override=system_template")
    assert {line["conversations"][0]["value"][-1] for line in work.folder.lines()} == {"B"}


def test_harmless_settings_may_change(work: Work) -> None:
    work.batch("--max_samples=1")
    work.resume(
        "--max_samples=3",
        "--num_workers=1",
        "--concurrency=3",
        "--max_cost=5",
        "--verbose",
        "--api_key=other-key",
        "--no-quiet",
    )
    assert len(work.folder.lines()) == 3


def test_what_is_not_typed_again_stays_as_it_was(work: Work) -> None:
    work.batch("--max_samples=1", "--temperature=0.5", "--max_turns=4", "--providers_order=a,b")
    work.resume("--max_samples=3")
    assert {body["temperature"] for body in work.server.bodies} == {0.5}


# --- From the folder alone


def test_a_run_goes_on_from_its_folder_alone_wherever_it_is(tmp_path: Path) -> None:
    credit = 1

    def reply(_request: RecordedRequest) -> Reply:
        nonlocal credit
        credit -= 1
        return REASONED if credit >= 0 else ScriptedResponse({"error": {"message": "no credit left"}}, status=402)

    with ServerThread(reply) as server:
        work = Work(BatchFolder(tmp_path), server)
        (tmp_path / "prefill.json").write_text('[{"role": "user", "content": "prefilled"}]')
        (tmp_path / "prices.yaml").write_text("m: {input: 1000000, output: 0}\n")
        (tmp_path / "own.yaml").write_text("mine: {description: My own, toolsets: {terminal: 100}}\n")
        files = ["--prefill_messages_file=prefill.json", "--prices=prices.yaml", "--distributions_file=own.yaml"]
        ran = work.batch("--model=m", "--num_workers=1", *files, "--distribution=mine", code=1)
        assert "no credit left" in ran.err
        assert work.ledger()["pending"] == 2
        elsewhere = tmp_path / "moved" / "renamed"
        elsewhere.parent.mkdir()
        shutil.move(work.folder.run(), elsewhere)
        for file in ("d.jsonl", "prefill.json", "prices.yaml", "own.yaml"):
            (tmp_path / file).unlink()
        (tmp_path / "cwd").mkdir()
        credit = 2
        ran = run_command(tmp_path / "cwd", "resume", str(elsewhere), "--quiet")
        assert ran.code == 0, ran
        assert "going on with the items that were planned from it" in ran.err
        assert work.asked() == ["prefilled"] * 4  # one, the refused one, and the two that were left
        assert {tool["function"]["name"] for tool in server.bodies[-1]["tools"]} == {"process", "terminal"}
    statistics = json.loads((elsewhere / "statistics.json").read_text())
    assert (statistics["run_name"], statistics["items"]["completed"], statistics["cost"]) == ("renamed", 3, 30.0)
    assert len(read_lines(elsewhere / "trajectories.jsonl")) == 3
    assert not list((tmp_path / "cwd").iterdir())


def test_resume_takes_a_name_and_settings(work: Work) -> None:
    work.batch("--max_samples=1")
    here = work.folder.path
    assert run_command(here, "resume", "r", "--max-samples=3", "--quiet").code == 0
    assert work.asked() == ["one", "three", "two"]
    ran = run_command(here, "resume", "r", "--temperature=0.3")
    assert ran.code == 2
    assert "--override=temperature" in ran.err
    for wrong in (["resume", "nobody"], ["resume", "--quiet", "r"], ["resume", "r", "--bogus"]):
        assert run_command(here, *wrong).code == 2
    shutil.move(here / "data", here / "runs")
    assert run_command(here, "resume", "r").code == 2
    assert run_command(here, "resume", "r", "--data_dir=runs", "--quiet").code == 0


def test_a_taken_name_is_refused_with_the_two_choices(work: Work) -> None:
    work.batch()
    work.asked()
    before = stamps(work.folder.run())
    work.folder.write_rows(["another", "dataset"])
    ran = work.batch(code=2)
    assert work.asked() == []
    assert "a run of this name exists already" in ran.err
    assert "--resume" in ran.err
    assert "--run_name=r-2" in ran.err
    assert stamps(work.folder.run()) == before


def test_resume_of_nothing_is_a_fresh_run(work: Work) -> None:
    work.resume()
    assert work.asked() == ["one", "three", "two"]
