"""Rows whose prompts have pictures: shown to the model, kept once, and the same after a SIGKILL."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from manyhands.engine.journal.reader import JournalReader
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from manyhands.tools.services.artifacts import name_of
from manyhands.view.pages.item import item_page
from manyhands.workloads.trajectories.dataset.rows import Row, read_rows
from manyhands.workloads.trajectories.prepared import Prepared
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, run_command
from tests.support.commands import Command, run
from tests.support.made_journals import Pages
from tests.support.picture_files import data_address, picture

PNG, JPEG = picture(), picture("JPEG", (5, 7))
ROWS = 3
WEB = "https://pictures.test/a.png"


def part(place: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": place}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def noise() -> bytes:
    """A picture of 30 kB that can't be made smaller."""
    written = io.BytesIO()
    Image.frombytes("RGB", (100, 100), random.Random(1).randbytes(30_000)).save(written, "PNG")
    return written.getvalue()


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> BatchFolder:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(PNG)
    return BatchFolder(tmp_path)


def batch(folder: BatchFolder, *words: str) -> tuple[Ran, list[Any]]:
    """Run a batch; the contents that were asked last, in the order of the dataset."""
    with ServerThread() as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--model=m", "--concurrency=1", "--num_workers=1", *words)
        return ran, [body["messages"][-1]["content"] for body in server.bodies]


def test_pictures_of_all_kinds_reach_the_model_and_are_kept_once(folder: BatchFolder) -> None:
    given = [
        {"type": "image", "image": "pictures/a.png"},
        {"type": "input_image", "image_url": data_address(JPEG, "image/png"), "detail": "low"},
        part(data_address(PNG)),
        {"type": "image", "source": {"type": "url", "url": WEB}},
    ]
    folder.write_rows([{"prompt": [text("What?"), *given], "note": "n"}])
    ran, asked = batch(folder)
    assert ran.code == 0, ran
    closer = part(data_address(JPEG, "image/jpeg"))
    closer["image_url"]["detail"] = "low"
    assert asked == [[text("What?"), part(data_address(PNG)), closer, part(data_address(PNG)), part(WEB)]]
    names = [name_of(PNG, "image/png"), name_of(JPEG, "image/jpeg")]
    assert sorted(path.name for path in (folder.run() / "artifacts").iterdir()) == sorted(names)
    assert (folder.run() / "artifacts" / names[1]).read_bytes() == JPEG
    (line,) = folder.lines()
    assert line["conversations"][1]["value"] == "What?" + "\n<image>" * 4
    places = [f"artifacts/{names[place]}" for place in (0, 1, 0)]
    assert json.loads(line["metadata"]["given"]) == {"images": [*places, WEB]}


def test_messages_have_pictures_too(folder: BatchFolder) -> None:
    messages = [
        {"role": "user", "content": [part("pictures/a.png"), text("What?")]},
        {"role": "assistant", "content": "Red."},
        {"role": "user", "content": [text("And this?"), part(WEB)]},
    ]
    folder.write_rows([{"messages": messages}])
    with ServerThread() as server:
        assert folder.batch(f"--base_url={server.base_url}").code == 0
        (body,) = server.bodies
    assert [message["content"] for message in body["messages"][1:]] == [
        [part(data_address(PNG)), text("What?")],
        "Red.",
        [text("And this?"), part(WEB)],
    ]
    (line,) = folder.lines()
    assert json.loads(line["metadata"]["given"])["images"] == [f"artifacts/{name_of(PNG, 'image/png')}", WEB]


def test_bad_pictures_are_named_with_file_line_and_field_and_never_asked_about(folder: BatchFolder) -> None:
    bad: list[tuple[Any, str]] = [
        ([part("none.png")], 'part 1 of "prompt": image_url.url: none.png: there is no such file'),
        ([text("a"), part("d.jsonl")], 'part 2 of "prompt": image_url.url: d.jsonl: this is no picture'),
        ([{"type": "image", "image": "../x.png"}], 'part 1 of "prompt": image: ../x.png: '),
        ([part("data:image/png;base64,!")], 'part 1 of "prompt": image_url.url: this is no base64'),
        ([{"type": "imagge", "image": "a"}], "the type 'imagge' is not known; did you mean image?"),
    ]
    folder.write_rows([{"prompt": prompt} for prompt, _ in bad] + [{"prompt": "good"}])
    ran, asked = batch(folder)
    assert (ran.code, asked) == (0, ["good"])
    assert not (folder.run() / "artifacts").exists()
    for number, ((_, said), failure) in enumerate(zip(bad, folder.lines("failures.jsonl"), strict=True), 1):
        assert (failure["line"], failure["state"]) == (number, "skipped")
        assert said in failure["message"]
        assert f"d.jsonl, line {number}: {failure['message']}; the row is skipped" in ran.err


def test_a_system_prompt_is_text(folder: BatchFolder) -> None:
    folder.write_rows([{"messages": [{"role": "system", "content": [part(WEB)]}, {"role": "user", "content": "a"}]}])
    ran, asked = batch(folder)
    assert (ran.code, asked) == (2, [])
    assert 'message 1 of "messages" has "content" with other parts than text' in ran.err


def test_the_same_picture_in_another_form_is_the_same_row(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": [part("pictures/a.png")]}])
    batch(folder)
    folder.write_rows([{"prompt": [{"type": "image", "image": data_address(PNG)}]}, {"prompt": "more"}])
    _, asked = batch(folder, "--resume")
    assert asked == ["more"]


def test_runs_of_earlier_versions_go_on_with_parts_as_they_are(folder: BatchFolder) -> None:
    parts = [part("data:…"), {"type": "own"}]
    folder.write_rows([{"prompt": parts}, {"prompt": "good"}])
    assert batch(folder)[0].code == 0
    with closing(JournalReader(folder.run())) as journal:
        spec = journal.meta("spec")
    assert spec.pop("with_pictures")
    earlier = Prepared.from_json(spec, folder.path)
    first, _ = read_rows(folder.path / "d.jsonl", **earlier.how_read())
    assert isinstance(first, Row)
    assert first.prompt == parts


def test_a_simulated_model_says_what_it_was_shown_and_people_see_it(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": [text("Name the colour. [simulate: tools=0]"), part("pictures/a.png"), part(WEB)]}])
    assert folder.batch("--model=simulated").code == 0
    name = name_of(PNG, "image/png")
    answer = folder.lines()[0]["conversations"][-1]["value"]
    assert f"of [picture {name[:12]}: image/png, 30 × 20 pixels] and [picture " in answer
    shown = run_command(folder.path, "show", "r", "1")
    assert f"<image artifacts/{name}>" in shown.out
    assert f"<image {WEB}>" in shown.out


def test_the_viewer_shows_them(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": [text("What?"), part("pictures/a.png")]}])
    assert batch(folder)[0].code == 0
    with closing(Pages(folder.run())) as pages:
        html = pages.html(asyncio.run(item_page(pages.site, pages.id, 1, {})))
    assert f'src="{data_address(PNG)}"' in html


def test_exports_have_the_pictures_themselves(folder: BatchFolder) -> None:
    folder.write_rows([{"prompt": [text("What?"), part("pictures/a.png")]}])
    assert batch(folder)[0].code == 0
    for form in ("openai", "jsonl", "verifiers", "atif"):
        ran = run_command(folder.path, "export", "r", "--to", form, "--output", form)
        assert ran.code == 0, ran
        written = folder.path / form
        files = [written] if written.is_file() else [path for path in written.rglob("*") if path.is_file()]
        coded = base64.b64encode(PNG).decode()
        assert any(coded in path.read_text(encoding="utf-8") for path in files), form
    ran = run_command(folder.path, "export", "r", "--to", "sharegpt", "--output", "sharegpt.jsonl")
    assert (ran.code, "What?\\n<image>" in (folder.path / "sharegpt.jsonl").read_text()) == (0, True), ran
    (folder.run() / "artifacts" / name_of(PNG, "image/png")).unlink()
    ran = run_command(folder.path, "export", "r", "--to", "openai", "--output", "again.jsonl")
    assert "with a picture that is not in the run's folder any more" in ran.out + ran.err


class Interrupted:
    """A server of conversations that call a tool; what follows it does not answer before ``go_on`` is set. ``middle`` is set when all
    have come so far."""

    def __init__(self) -> None:
        self.middle, self.go_on = threading.Event(), threading.Event()
        self._begun = 0

    def reply(self, request: RecordedRequest) -> Reply:
        if all(message["role"] != "tool" for message in request.body["messages"]):
            function = {"name": "terminal", "arguments": '{"command": "echo found"}'}
            calls = [{"id": "c", "type": "function", "function": function}]
            return chat_response("I look.", reasoning="So.", tool_calls=calls)
        if self.go_on.is_set():
            return REASONED
        self._begun += 1
        if self._begun == ROWS:
            self.middle.set()
        return ScriptedResponse(REASONED, delay=120)


def test_after_a_sigkill_the_journal_has_each_picture_once_and_the_model_is_shown_it_again(folder: BatchFolder) -> None:
    content = noise()
    (folder.path / "pictures" / "noise.png").write_bytes(content)
    folder.write_rows([{"prompt": [text(f"look {number}"), part("pictures/noise.png")]} for number in range(ROWS)])
    script = Interrupted()
    with ServerThread(script.reply) as server:
        words = ("batch", "--dataset_file=d.jsonl", "--run_name=r", "--batch_size=4", "--model=m")
        with Command(
            *words,
            f"--base_url={server.base_url}",
            "--sandbox=local",
            "--distribution=terminal_only",
            folder=folder.path,
        ) as command:
            assert command.wait_until(script.middle.is_set), command.said
            command.kill()
        for gone in ((folder.path / "pictures" / "noise.png"), folder.path / "d.jsonl"):
            gone.unlink()
        script.go_on.set()
        ended = run("resume", "r", folder=folder.path)
        assert ended.code == 0, ended
        bodies = server.bodies
    for body in bodies:
        assert body["messages"][1]["content"][1] == part(data_address(content))
    begun = [body["messages"][1]["content"][0]["text"] for body in bodies if len(body["messages"]) == 2]
    assert sorted(begun) == [f"look {number}" for number in range(ROWS)]
    assert [path.name for path in (folder.run() / "artifacts").iterdir()] == [name_of(content, "image/png")]
    kept = [path for path in folder.run().rglob("*") if path.is_file() and path.parent.name != "artifacts"]
    coded = base64.b64encode(content)[:2000]
    assert not [path for path in kept if content[:2000] in path.read_bytes() or coded in path.read_bytes()]
    assert folder.lines()[0]["conversations"][1]["value"] == "look 0\n<image>"
