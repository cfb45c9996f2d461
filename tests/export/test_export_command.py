"""``manyhands export``: which conversations, where to, and what is said of the rest."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from manyhands.export.files import SUMMARY
from manyhands.export.secrets import find_secret, without_secrets
from manyhands.export.tokens import nearest_rank
from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.docs.test_schemas import problems
from tests.support.batches import BatchFolder, Ran, ServerThread, prompt_of, read_lines, run_command
from tests.support.commands import Command

LONG = "word " * 40
CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "echo hello"}'}}


def answering(request: RecordedRequest) -> Reply:
    """``call …`` calls a tool first, ``silent …`` gives no reasoning, ``cut …`` calls tools for ever, ``broken …`` is refused."""
    prompt = prompt_of(request)
    if prompt.startswith("broken"):
        return ScriptedResponse({"error": {"message": "no"}}, status=400)
    if prompt.startswith("cut") or (prompt.startswith("call") and request.body["messages"][-1]["role"] == "user"):
        return chat_response("I look.", reasoning="Let me see.", tool_calls=[CALL])
    reasoning = None if prompt.startswith("silent") else "I think so."
    return chat_response(f"About {prompt}: done.", reasoning=reasoning)


def made(path: Path, rows: list[Any], *words: str, handler: Handler = answering, code: int = 0) -> BatchFolder:
    folder = BatchFolder(path, rows)
    with ServerThread(handler) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--max_turns=2", "--max_attempts=1", *words)
    assert ran.code == code, ran
    return folder


def exported(folder: BatchFolder, *words: str, code: int = 0) -> Ran:
    ran = run_command(folder.path, "export", "r", *words)
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    return ran


def records(folder: BatchFolder, *words: str) -> list[dict[str, Any]]:
    exported(folder, "--to=jsonl", "--output=o.jsonl", "--overwrite", *words)
    return read_lines(folder.path / "o.jsonl")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    """A conversation with a tool, one without, one cut off, one discarded, one failed."""
    path = tmp_path_factory.mktemp("mixed")
    rows = [{"prompt": "call it", "topic": "tools"}, "plainly", "cut off", "silent night", "broken"]
    return made(path, rows, code=1)


def test_every_item_is_accounted_for(mixed: BatchFolder) -> None:
    ran = exported(mixed, "--to=openai")
    assert "Exported 2 of 5 items as openai: 2 rows" in ran.out
    assert "Left out, items: 1 discarded: no_reasoning, 1 failed: model_refused" in ran.out
    assert "Left out, conversations: 1 truncated: max_turns" in ran.out
    assert "Not held by the format: 3 messages' reasoning" in ran.out
    assert "Written: data/r/exports/openai.jsonl" in ran.out
    summary = json.loads((mixed.run() / "exports/.openai.jsonl.export_summary.json").read_text())
    assert summary["items"] == summary["exported_items"] + sum(summary["left_out_items"].values()) + sum(
        summary["left_out_conversations"].values()
    )


def test_the_conversation_is_what_the_endpoint_got_and_gave(tmp_path: Path) -> None:
    bodies: list[Any] = []

    def reply(request: RecordedRequest) -> Reply:
        bodies.append(request.body)
        return answering(request)

    folder = made(tmp_path, ["call it"], handler=reply)
    exported(folder, "--to=openai", "--output=o.jsonl")
    (row,) = read_lines(folder.path / "o.jsonl")
    for message in row["messages"]:
        message.pop("weight", None)
        message.pop("name", None)
    sent = bodies[-1]["messages"]
    for message in sent:
        message.pop("reasoning_content", None)
        message.pop("reasoning", None)
        message.pop("name", None)
    assert row["messages"] == [*sent, {"role": "assistant", "content": "About call it: done."}]
    assert row["tools"] == bodies[-1]["tools"]


def test_what_is_left_out_can_be_kept(mixed: BatchFolder) -> None:
    found = records(mixed, "--states=completed,discarded", "--keep=truncated")
    assert [(each["item"], each["state"], each["stop_reason"]) for each in found] == [
        (1, "completed", "answered"),
        (2, "completed", "answered"),
        (3, "completed", "max_turns"),
        (4, "discarded", "answered"),
    ]
    assert found[0]["source"] == {"topic": "tools"}
    assert [turn["message"]["role"] for turn in found[0]["turns"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [turn["train"] for turn in found[0]["turns"]] == [False, False, True, False, True]


def test_the_figures_are_the_ledgers(mixed: BatchFolder) -> None:
    found = records(mixed, "--states=completed,discarded,failed", "--keep=truncated")
    usage = mixed.json("summary.json")["usage"]
    for name in ("calls", "input_tokens", "output_tokens"):
        assert sum(each["usage"][name] for each in found) == usage[name]
    for each in found:
        own = [turn["call"]["usage"]["input_tokens"] for turn in each["turns"] if turn["call"]]
        assert sum(own) == each["usage"]["input_tokens"]


def test_records_and_summaries_fit_their_schemas(mixed: BatchFolder) -> None:
    for each in records(mixed, "--states=completed,discarded", "--keep=truncated"):
        assert problems("exports/conversation", each) == []
    summary = json.loads((mixed.path / f".o.jsonl.{SUMMARY}").read_text())
    assert problems("exports/summary", summary) == []


def test_items_are_selected_as_in_other_commands(mixed: BatchFolder) -> None:
    assert [each["item"] for each in records(mixed, "--select=item=2-5")] == [2]
    keys = mixed.path / "keys.txt"
    keys.write_text(records(mixed)[1]["key"] + "\n")
    assert [each["item"] for each in records(mixed, "--select", f"@{keys}")] == [2]
    ran = exported(mixed, "--to=jsonl", "--select=item=9", code=2)
    assert "no item 9; there are 5" in ran.err


def test_the_same_input_gives_the_same_bytes(mixed: BatchFolder) -> None:
    for name in ("jsonl", "openai", "messages", "sharegpt"):
        for number in (1, 2):
            exported(mixed, f"--to={name}", f"--output=same{number}-{name}.jsonl")
        one, two = (mixed.path / f"same{number}-{name}.jsonl" for number in (1, 2))
        assert one.read_bytes() == two.read_bytes()


def test_standard_output_has_nothing_but_rows(mixed: BatchFolder) -> None:
    with Command("export", "r", "--to", "jsonl", "-o", "-", folder=mixed.path) as running:
        ended = running.wait()
    assert ended.code == 0, ended
    assert [json.loads(line)["item"] for line in ended.out.splitlines()] == [1, 2]
    assert "Exported 2 of 5 items" in ended.err


def test_several_runs_are_one_export(tmp_path: Path) -> None:
    folder = made(tmp_path, ["one", "two"], "--run_name=a")
    made(tmp_path, ["two", "three"], "--run_name=b")
    ran = run_command(tmp_path, "export", "a", "b", "--to=jsonl", "--output=o.jsonl", "--dedup=exact")
    assert "Exported 3 of 4 items" in ran.out
    assert "1 repeating an earlier one" in ran.out
    assert [(each["run"], each["item"]) for each in read_lines(tmp_path / "o.jsonl")] == [("a", 1), ("a", 2), ("b", 2)]
    assert "a run is named twice" in run_command(tmp_path, "export", "a", "data/a", "--to=jsonl").err
    assert folder.run("a").is_dir()


def test_a_run_that_goes_on_gives_what_has_ended(tmp_path: Path) -> None:
    def slow(request: RecordedRequest) -> Reply:
        reply = chat_response("Done.", reasoning="Hm.")
        return ScriptedResponse(reply, delay=60.0) if "slow" in prompt_of(request) else reply

    folder = BatchFolder(tmp_path, ["quick", "slow"])
    with ServerThread(slow) as server:
        words = ("--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--distribution=terminal_only", "--quiet")
        more = (f"--base_url={server.base_url}", "--sandbox=local", "--num_workers=1", "--concurrency=2")
        with Command("batch", *words, *more, folder=tmp_path) as running:
            assert running.wait_until((folder.run() / "batch_0.jsonl").exists)
            ran = exported(folder, "--to=jsonl", "--output=o.jsonl")
            running.interrupt(signal.SIGKILL)
            running.wait()
    assert "Exported 1 of 2 items" in ran.out
    assert "Left out, items: 1 not ended" in ran.out


# --- Where to


def test_what_is_there_and_no_export_stays(mixed: BatchFolder) -> None:
    kept = mixed.path / "notes.jsonl"
    kept.write_text("mine")
    ran = exported(mixed, "--to=jsonl", "--output=notes.jsonl", code=2)
    assert "notes.jsonl: is there already, and no earlier export; give another --output, or --overwrite" in ran.err
    assert kept.read_text() == "mine"
    exported(mixed, "--to=jsonl", "--output=notes.jsonl", "--overwrite")
    exported(mixed, "--to=openai", "--output=notes.jsonl")
    assert "messages" in read_lines(kept)[0]


def test_a_file_of_any_name_beside_an_export_stays(mixed: BatchFolder) -> None:
    beside = mixed.path / "beside.jsonl.parts"
    beside.mkdir()
    (beside / "mine").write_text("mine")
    exported(mixed, "--to=jsonl", "--output=beside.jsonl")
    assert (beside / "mine").read_text() == "mine"


def test_splits_keep_the_samples_of_a_prompt_together(tmp_path: Path) -> None:
    folder = made(tmp_path, [f"prompt {number}" for number in range(40)], "--samples=2")
    ran = exported(folder, "--to=jsonl", "--split=train=0.75,valid=0.25", "--output=o")
    train, valid = (read_lines(tmp_path / "o" / f"{name}.jsonl") for name in ("train", "valid"))
    assert f"(train {len(train)}, valid {len(valid)})" in ran.out
    assert len(train) + len(valid) == 80
    assert 45 <= len(train) <= 75
    assert not {each["prompt_key"] for each in train} & {each["prompt_key"] for each in valid}
    exported(folder, "--to=jsonl", "--split=train=0.75,valid=0.25", "--output=o", "--select=item=1-20")
    assert {each["item"] for each in read_lines(tmp_path / "o/train.jsonl")} <= {each["item"] for each in train}
    assert not [*tmp_path.glob(".*")]


@pytest.mark.parametrize("name", ["messages", "parquet"])
@pytest.mark.parametrize("target", ["data/r", "data", ".", "data/r/run.db", "data/r/trajectories.jsonl"])
def test_no_export_replaces_its_run(mixed: BatchFolder, name: str, target: str) -> None:
    before = sorted(mixed.path.rglob("*"))
    ran = exported(mixed, f"--to={name}", f"--output={target}", "--overwrite", code=2)
    assert "an export does not replace the run that it is of" in ran.err
    assert sorted(mixed.path.rglob("*")) == before


def test_what_stands_beside_the_output_stays(mixed: BatchFolder) -> None:
    """Whatever it is called."""
    kept = mixed.path / "beside.jsonl.parts"
    kept.mkdir(exist_ok=True)
    (kept / "mine").write_text("precious")
    exported(mixed, "--to=messages", "--output=beside.jsonl")
    assert (kept / "mine").read_text() == "precious"


def test_an_output_without_a_name_of_its_own(mixed: BatchFolder) -> None:
    (mixed.path / "empty/x").mkdir(parents=True)
    exported(mixed, "--to=messages", "--split=a=1", "--output=empty/x/../x/.")
    exported(mixed, "--to=parquet", "--output=empty/x/..", code=2)
    assert (mixed.path / "empty/x/a.jsonl").is_file()


def test_an_export_that_was_killed_while_it_took_its_place_loses_nothing(mixed: BatchFolder) -> None:
    with Command("--version", folder=mixed.path) as ended:
        ended.wait()
    earlier = mixed.path / f".swap.0.{ended.process.pid}.old"
    earlier.mkdir()
    (earlier / "mine").write_text("precious")
    ran = exported(mixed, "--to=parquet", "--output=swap", code=2)
    assert "is there already, and no earlier export" in ran.err
    assert (mixed.path / "swap/mine").read_text() == "precious"


def test_files_of_bounded_size(mixed: BatchFolder) -> None:
    exported(mixed, "--to=jsonl", "--shard_rows=1", "--output=shards")
    names = sorted(path.name for path in (mixed.path / "shards").iterdir())
    assert names == ["README.md", SUMMARY, "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]


def test_a_killed_export_leaves_no_half_file(tmp_path: Path) -> None:
    folder = made(tmp_path, [f"prompt {number}" for number in range(300)], "--concurrency=20")
    exported(folder, "--to=jsonl", "--output=o.jsonl")
    before, left = (tmp_path / "o.jsonl").read_bytes(), list[Path]()
    for _ in range(4):
        with Command("export", "r", "--to=openai", "--output=o.jsonl", folder=tmp_path) as running:
            assert running.wait_until(lambda: [*tmp_path.glob(".o.jsonl.*.new")], pause=0.001)
            running.interrupt(signal.SIGKILL)
            running.wait()
        left += tmp_path.glob(".o.jsonl.*.new")
        found = (tmp_path / "o.jsonl").read_bytes()
        assert found == before or (found.count(b"\n") == 300 and b'"messages"' in found[:20])
    assert left, "no export was killed while it wrote"
    exported(folder, "--to=openai", "--output=o.jsonl")
    assert not [*tmp_path.glob(".*.new")]
    assert sorted(path.name for path in tmp_path.glob("o.jsonl*")) == ["o.jsonl"]
    assert (tmp_path / f".o.jsonl.{SUMMARY}").is_file()


def test_a_folder_that_takes_nothing_is_said(mixed: BatchFolder) -> None:
    if os.geteuid() == 0:
        target = "/proc/none/o.jsonl"
    else:
        (mixed.path / "locked").mkdir(mode=0o500)
        target = "locked/o.jsonl"
    ran = exported(mixed, "--to=jsonl", f"--output={target}", code=1)
    assert "can't be written" in ran.err


# --- Bad usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to=openia"], "there is no format 'openia'; did you mean openai?"),
        ([], "--to"),
        (["--to=jsonl", "--split=train=0.5"], "must be shares above 0 that add up to 1"),
        (["--to=jsonl", "--split=train=x,b=0.5"], "must have shares from 0 to 1"),
        (["--to=jsonl", "--split=../x=0.5,b=0.5"], "must have names of letters"),
        (["--to=jsonl", "--keep=everything"], "must be words of truncated, synthetic, ephemeral"),
        (["--to=jsonl", "--states=done"], "must be words of completed"),
        (["--to=jsonl", "--max_length=5"], "name a --tokenizer"),
        (["--to=jsonl", "--tokenizer=nothing.json"], "no such file"),
        (
            ["--to=jsonl", "--split=a=0.5,b=0.5", "--output=o.jsonl"],
            "this makes a folder of files; name it without .jsonl",
        ),
        (["--to=axolotl", "--output=o.jsonl"], "this makes a folder of files; name it without .jsonl"),
        (["--to=jsonl", "--output=-", "--shard_rows=2"], "is not one file of lines here"),
        (["--to=openai", "--tools=struct"], "--tools: means nothing to the format openai"),
        (["--to=messages", "--atif_version=1.8"], "--atif_version: means nothing to the format messages"),
        (["--to=preference", "--best_of=1"], "--best_of: means nothing to the format preference"),
        (["--to=jsonl", "--keep=errors"], "must be words of truncated, synthetic, ephemeral, not"),
    ],
)
def test_bad_usage_is_one_line(mixed: BatchFolder, words: list[str], message: str) -> None:
    ran = exported(mixed, *words, code=2)
    assert message in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_the_programs_own_system_prompt_is_no_part_of_sharegpt(mixed: BatchFolder) -> None:
    ran = exported(mixed, "--to=sharegpt", "--output=o.jsonl")
    assert "Not held by the format: 2 system prompts of this program" in ran.out


def test_a_loader_of_the_folder_finds_the_rows_alone(mixed: BatchFolder) -> None:
    exported(mixed, "--to=messages", "--output=out/train.jsonl")
    seen = [path.name for path in (mixed.path / "out").iterdir() if not path.name.startswith(".")]
    assert seen == ["train.jsonl"]


def test_the_lines_for_axolotl_name_the_folder_as_it_is_written(mixed: BatchFolder) -> None:
    ran = exported(mixed, "--to=axolotl")
    assert "Written: data/r/exports/axolotl\n" in ran.out
    lines = (mixed.run() / "exports/axolotl/axolotl.yaml").read_text()
    assert 'path: "data/r/exports/axolotl"' in lines


def test_the_help_says_each_word_once(mixed: BatchFolder) -> None:
    for command, word in (("export", "RUN…"), ("import", "FILE…")):
        help = run_command(mixed.path, command, "--help").out
        assert help.split(" [OPTIONS]")[0].count("FORMAT") == 1
        assert f"  {word}  (or --" in help


def test_the_formats_are_listed(mixed: BatchFolder) -> None:
    ran = exported(mixed, "--to=list")
    assert {line.split()[0] for line in ran.out.splitlines()} >= {"openai", "jsonl", "messages", "atif", "parquet"}


# --- Secrets

SECRET = "sk-proj-" + "Ab1" * 12
PLACES: dict[str, dict[str, Any]] = {
    "the prompt": {"prompt": f"use {SECRET}"},
    "the system prompt": {"prompt": "x", "system": f"key {SECRET}"},
    "a given message": {"messages": [{"role": "assistant", "content": SECRET}, {"role": "user", "content": "x"}]},
    "another field": {"prompt": "x", "note": {"deep": [1, {"er": SECRET}]}},
    "the name of a field": {"prompt": "x", SECRET: 1},
    "the id": {"prompt": "x", "id": f"id-{SECRET}"},
    "the answer": {"prompt": "answer"},
    "the reasoning": {"prompt": "reason"},
    "the arguments": {"prompt": "arguments"},
    "a tool's result": {"prompt": "result"},
}


def leaking(request: RecordedRequest) -> Reply:
    """The secret stands where the prompt says."""
    prompt, last = prompt_of(request), request.body["messages"][-1]["role"] == "tool"
    if prompt in ("arguments", "result") and not last:
        half = len(SECRET) // 2
        text = f"A={SECRET[:half]}; echo ${{A}}{SECRET[half:]}" if prompt == "result" else f"true {SECRET}"
        call = {**CALL, "function": {"name": "terminal", "arguments": json.dumps({"command": text})}}
        return chat_response(None, reasoning="Hm.", tool_calls=[call])
    return chat_response(
        SECRET if prompt == "answer" else "Done.", reasoning=SECRET if prompt == "reason" else "I think so."
    )


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    return made(tmp_path_factory.mktemp("leaks"), ["harmless", *PLACES.values()], handler=leaking)


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_stops_the_export_at_its_place(leaks: BatchFolder, place: str) -> None:
    number = 2 + list(PLACES).index(place)
    ran = exported(leaks, "--to=openai", f"--select=item={number}", "--output=stopped.jsonl", code=2)
    assert "holds what looks like an API key (sk-…)" in ran.err
    assert SECRET not in ran.err
    assert not [*leaks.path.glob("*stopped*")]


def test_a_secret_among_rows_of_standard_output_is_said_to_follow_them(leaks: BatchFolder) -> None:
    ran = exported(leaks, "--to=jsonl", "--output=-", code=2)
    assert "the rows before it were written" in ran.err
    assert "nothing was written" not in ran.err


@pytest.mark.parametrize("name", ["openai", "jsonl"])
def test_redacted_exports_hold_none(leaks: BatchFolder, name: str) -> None:
    ran = exported(leaks, f"--to={name}", "--redact", "--output=clean.jsonl")
    assert "Secrets were replaced in 10 conversations" in ran.out
    assert len(read_lines(leaks.path / "clean.jsonl")) == 11
    assert SECRET not in (leaks.path / "clean.jsonl").read_text()
    exported(leaks, "--to=openai", "--keep_secrets", "--output=all.jsonl")
    assert SECRET in (leaks.path / "all.jsonl").read_text()


BODY = "MIIEpAIBAAKCAQEAx1y2z3" + "Ab1/" * 10


@pytest.mark.parametrize(
    "text",
    [
        f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}",
        f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n{BODY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n{BODY}",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{BODY}\n-----END PGP PRIVATE KEY BLOCK-----",
        json.dumps({"key": f"-----BEGIN PRIVATE KEY-----\n{BODY}\n"}),
        f"KEY_ghp_{BODY[:22] * 2}",
    ],
)
def test_all_of_a_secret_is_replaced(text: str) -> None:
    assert find_secret({"text": text}) is not None
    assert BODY[:22] not in str(without_secrets({"text": text}))


def test_what_follows_the_mention_of_a_key_stays() -> None:
    text = "grep for -----BEGIN RSA PRIVATE KEY----- in all of the files"
    assert without_secrets(text) == "grep for [redacted]in all of the files"


def test_what_is_left_out_stops_no_export(leaks: BatchFolder, tokenizer: Path) -> None:
    words = (f"--tokenizer={tokenizer}", "--max_length=1")
    ran = exported(leaks, "--to=jsonl", "--output=none.jsonl", *words, code=1)
    assert "11 longer than 1 tokens" in ran.out
    ran = exported(leaks, "--to=jsonl", "--output=none.jsonl", "--redact", *words, code=1)
    assert "Secrets" not in ran.out


def test_keys_of_the_environment_are_known(mixed: BatchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_API_KEY", "About plainly")
    ran = exported(mixed, "--to=jsonl", "--output=env.jsonl", code=2)
    assert "turns[2].message.content holds what looks like a key that is known here" in ran.err


# --- Length and repetition


def test_a_tokenizer_that_is_a_pipe_is_refused(mixed: BatchFolder) -> None:
    (mixed.path / "pipe").mkdir()
    os.mkfifo(mixed.path / "pipe/tokenizer.json")
    assert "no regular file" in exported(mixed, "--to=jsonl", "--tokenizer=pipe", code=2).err


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> BatchFolder:
    path = tmp_path_factory.mktemp("lengths")
    words = " ".join(f"word{number}" for number in range(60))
    return made(path, ["short", f"{words} one", f"{words} two", "short again"])


def test_tokens_are_counted_and_bounded(lengths: BatchFolder, tokenizer: Path) -> None:
    found = records(lengths, f"--tokenizer={tokenizer}", "--select=item=1")
    texts = [turn["message"].get("content") or "" for turn in found[0]["turns"]]
    texts += [turn["message"].get("reasoning") or "" for turn in found[0]["turns"]]
    tools = [json.dumps(tool, ensure_ascii=False) for tool in found[0]["tools"]]
    assert found[0]["tokens"] == sum(len(text.split()) for text in (*texts, *tools))
    longest = found[0]["tokens"] + 10
    ran = exported(lengths, "--to=jsonl", f"--tokenizer={tokenizer}", f"--max_length={longest}", "--output=t.jsonl")
    assert f"2 longer than {longest:,} tokens" in ran.out
    assert "without a chat template" in ran.out
    assert len(read_lines(lengths.path / "t.jsonl")) == 2
    ran = exported(lengths, "--to=jsonl", f"--tokenizer={tokenizer}", "--max_length=1", "--output=t.jsonl", code=1)
    least = found[0]["tokens"]
    assert f"Left out for their length: conversations of {least:,} to " in ran.out
    most = int(ran.out.split(" tokens\nNothing")[0].split()[-1].replace(",", ""))
    assert most > longest


@pytest.mark.parametrize(("number", "expected"), [(1, 1), (2, 2), (19, 19), (20, 19), (100, 95), (101, 96)])
def test_nearest_rank(number: int, expected: int) -> None:
    assert nearest_rank(range(1, number + 1), 95) == expected


def test_a_chat_template_counts_too(lengths: BatchFolder, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{% for message in messages %}{% generation %}<s> {{ message.role }} {{ message.content }} </s>\n{% endgeneration %}{% endfor %}"
    )
    (found,) = records(lengths, f"--tokenizer={tmp_path}", "--select=item=1")
    said = [turn["message"]["content"] for turn in found["turns"]]
    assert found["tokens"] == sum(len(text.split()) + 3 for text in said)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    ran = exported(lengths, "--to=jsonl", f"--tokenizer={tmp_path}", "--output=x.jsonl", code=2)
    assert "its chat template can't write r item" in ran.err
    assert "no system role" in ran.err


def test_near_repetitions_are_left_out(lengths: BatchFolder) -> None:
    ran = exported(lengths, "--to=jsonl", "--dedup=near", "--output=n.jsonl")
    assert "1 nearly repeating an earlier one" in ran.out
    assert [each["item"] for each in read_lines(lengths.path / "n.jsonl")] == [1, 2, 4]


# --- What is ephemeral, and what this program wrote


def test_what_is_ephemeral_is_kept_only_if_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "prefill.json").write_text(
        '[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yo."}]'
    )
    words = ("--ephemeral_system_prompt=Be quick.", "--prefill_messages_file=prefill.json")
    folder = made(tmp_path, ["one"], *words)
    (plain,) = records(folder)
    (whole,) = records(folder, "--keep=ephemeral")
    assert [turn["message"]["role"] for turn in plain["turns"]] == ["system", "user", "assistant"]
    assert "Be quick." not in plain["turns"][0]["message"]["content"]
    assert whole["turns"][0]["message"]["content"].endswith("\n\nBe quick.")
    assert [turn["train"] for turn in whole["turns"]] == [False, False, False, False, True]


def test_a_cut_off_answer_is_one_answer(tmp_path: Path) -> None:
    def cut(request: RecordedRequest) -> Reply:
        last = request.body["messages"][-1]["content"]
        if "cut off" in str(last):
            return chat_response("two.", reasoning="Again.")
        reply = chat_response("One, ", reasoning="Hm.")
        reply["choices"][0]["finish_reason"] = "length"
        return reply

    folder = made(tmp_path, ["one"], handler=cut)
    (found,) = records(folder)
    (whole,) = records(folder, "--keep=synthetic")
    assert [turn["message"].get("content") for turn in found["turns"]][1:] == ["one", "One, two."]
    assert found["turns"][-1]["call"]["usage"]["calls"] == 2
    assert len(whole["turns"]) == 5


def test_the_last_answer_alone_is_trained_on(mixed: BatchFolder) -> None:
    found = records(mixed, "--train_on=last")
    assert [turn["train"] for turn in found[0]["turns"]] == [False, False, False, False, True]


def test_answers_with_failed_calls_are_not_trained_on(tmp_path: Path) -> None:
    def failing(request: RecordedRequest) -> Reply:
        if request.body["messages"][-1]["role"] == "tool":
            return chat_response("Done.", reasoning="Hm.")
        call = {**CALL, "function": {"name": "read_file", "arguments": '{"path": "none"}'}}
        return chat_response("I look.", reasoning="Let me see.", tool_calls=[call])

    folder = made(tmp_path, ["one"], handler=failing)
    (found,) = records(folder, "--train_on=succeeded")
    assert [turn["train"] for turn in found["turns"]] == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it takes more than 5 s"),
        pytest.param(
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
            "can't write",
            marks=pytest.mark.slow,
        ),
        ("{% if %}", "its chat template can't be read: Expected an expression"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "its chat template can't be read: RecursionError"),
    ],
    ids=["endless", "doubling", "broken", "deep"],
)
def test_a_hostile_chat_template_is_one_line(
    lengths: BatchFolder, tokenizer: Path, tmp_path: Path, template: str, problem: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)
    ran = exported(lengths, "--to=jsonl", f"--tokenizer={tmp_path}", "--output=h.jsonl", code=2)
    assert problem in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_escaped_secrets_are_found() -> None:
    arguments = json.dumps({"command": f"use {SECRET}"}).replace("sk-", "\\u0073k-")
    value = {"arguments": arguments}
    assert find_secret(value) == ("arguments", "an API key (sk-…)")
    assert json.loads(without_secrets(value)["arguments"]) == {"command": "use [redacted]"}
    assert find_secret({"text": "\\u00e9 is no secret"}) is None


def test_the_best_of_ungraded_conversations_are_none(mixed: BatchFolder) -> None:
    ran = exported(mixed, "--to=jsonl", "--best_of=1", "--output=b.jsonl", code=1)
    assert "2 without a score" in ran.out


def test_a_folder_that_somebody_works_in_stays(mixed: BatchFolder) -> None:
    exported(mixed, "--to=axolotl", "--output=training")
    exported(mixed, "--to=axolotl", "--output=training")
    (mixed.path / "training/checkpoint-1").mkdir()
    ran = exported(mixed, "--to=axolotl", "--output=training", code=2)
    assert "training: is there already, and no earlier export" in ran.err


def test_judges_are_called_by_their_graders_and_simulation_is_said(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["one"])
    rubrics = "- {name: terse, type: contains, value: a}\n- {name: fits, type: rubrics, criteria: [It fits.]}\n"
    (tmp_path / "checks.yaml").write_text(f"judge: {{model: simulated}}\nthreshold: 0\nassert:\n{rubrics}")
    assert folder.batch("--model=simulated", "--grade=checks.yaml").code == 0
    assert [each["name"] for each in records(folder, "--judges")] == ["", "judge fits"]
    exported(folder, "--to=messages", "--output=sft", "--shard_rows=9")
    assert "Made by simulation" in (tmp_path / "sft/README.md").read_text()
