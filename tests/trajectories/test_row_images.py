"""Images of rows: looked up before anything is made, pinned, pulled once; what is missing is refused or skipped by its row."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.runs.progress import image_progress, image_text
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.pins import Pins
from manyhands.sandboxes.images.pulls import Pulls
from manyhands.sandboxes.images.templates import ImageTemplate
from manyhands.sandboxes.lifecycle.planning import planned_images
from manyhands.sandboxes.settings import SandboxSettings
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread
from tests.support.image_doubles import NAME, Boxes, BoxStore, boxes, pin_of


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Boxes]:
    with boxes(tmp_path / "double") as found:
        yield found


def _asks_box(request: RecordedRequest) -> Reply:
    """An agent that looks which image it is in, and says so."""
    if request.body["messages"][-1]["role"] == "tool":
        return chat_response(str(request.body["messages"][-1]["content"]), reasoning="so it is")
    function = {"name": "terminal", "arguments": json.dumps({"command": "echo box=$BOX"})}
    call = {"id": "call_0", "type": "function", "function": function}
    return chat_response(None, reasoning="Let me see.", tool_calls=[call])


class Work:
    def __init__(self, path: Path) -> None:
        self.folder = BatchFolder(path, [])
        self.server = ServerThread(_asks_box)

    def batch(self, *words: str, code: int = 0) -> Ran:
        ran = self.folder.batch(f"--base_url={self.server.base_url}", "--model=m", f"--sandbox={NAME}", *words)
        assert ran.code == code, ran
        return ran

    def resume(self, *words: str, code: int = 0) -> Ran:
        return self.batch("--resume", *words, code=code)

    def answers(self) -> list[str]:
        return [line["conversations"][-1]["value"] for line in self.folder.lines()]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    made = Work(tmp_path)
    with made.server:
        yield made


def _rows(*images: str | None, **more: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": f"p{number}", **({} if image is None else {"image": image}), **more}
        for number, image in enumerate(images, 1)
    ]


def test_rows_whose_image_does_not_exist_refuse_the_run(work: Work, registry: Boxes) -> None:
    registry.publish("base:1")
    images = ["base:1"] * 50
    for row, name in ((4, "gone:1"), (17, "gone:1"), (31, "other:2")):
        images[row - 1] = name
    work.folder.write_rows(_rows(*images))
    ran = work.batch(code=2)
    assert "3 rows whose image does not exist: gone:1 (rows 4, 17), other:2 (row 31)" in ran.err
    assert "--skip_missing_images" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not work.folder.run().exists()
    assert work.server.requests == []
    assert registry.counts("find") == {"base:1": 1, "gone:1": 1, "other:2": 1}


def test_rows_whose_image_does_not_exist_are_skipped_on_request(work: Work, registry: Boxes) -> None:
    registry.publish("base:1")
    work.folder.write_rows(_rows("base:1", "gone:1", "base:1", "base:1"))
    ran = work.batch("--skip_missing_images", "--max_samples=3")
    assert len(work.answers()) == 3
    ledger = work.folder.json("summary.json")["ledger"]
    assert (ledger["items"], ledger["skipped"]) == (3, 1)
    assert re.search(r"skipped +1 .*failures.jsonl", ran.out)
    assert re.search(r"in all +4 +. the sum of the states", ran.out)
    assert len(ran.err.splitlines()) == len(set(ran.err.splitlines()))
    (failure,) = work.folder.lines("failures.jsonl")
    assert "gone:1 does not exist" in json.dumps(failure)
    work.resume()
    assert len(work.answers()) == 3
    # Once the dataset is read again, what has appeared meanwhile is taken.
    registry.publish("gone:1")
    work.folder.write_rows(_rows("base:1", "gone:1", "base:1", "base:1", "base:1"))
    work.resume("--max_samples=5")
    assert len(work.answers()) == 5
    assert work.folder.lines("failures.jsonl") == []


def test_a_tag_that_moves_changes_nothing(work: Work, registry: Boxes) -> None:
    registry.publish("base:1")
    work.folder.write_rows(_rows("base:1"))
    work.batch()
    registry.publish("base:1", version=2)
    registry.publish("more:1")
    work.folder.write_rows(_rows("base:1", "base:1", "more:1"))
    work.resume()
    said = work.answers()
    assert [pin_of(name) in text for name, text in zip(("base:1", "base:1", "more:1"), said, strict=True)] == [True] * 3


def test_a_pinned_image_that_is_gone_is_refused_by_name(work: Work, registry: Boxes) -> None:
    registry.publish("base:1", "broken:1")
    work.folder.write_rows(_rows("base:1", "broken:1"))
    work.batch("--max_attempts=1", code=1)
    failed = json.dumps(work.folder.lines("failures.jsonl"))
    assert "manifest unknown" in failed
    assert "sandbox_lost" in failed
    registry.withdraw("broken:1", pin_of("broken:1"))
    before = len(work.server.requests)
    ran = work.resume(code=2)
    assert f"broken:1 ({pin_of('broken:1')})" in ran.err
    assert len(work.server.requests) == before
    # What only finished items needed may be gone.
    registry.publish("broken:1")
    registry.withdraw("base:1", pin_of("base:1"))
    registry.forget()
    registry.here(pin_of("broken:1")).touch()
    work.resume()
    assert len(work.answers()) == 2


def test_many_items_wait_for_one_pull_in_all_processes(work: Work, registry: Boxes) -> None:
    registry.publish("slow:1", size=2_000_000_000)
    work.folder.write_rows(_rows(*["slow:1"] * 8))
    work.batch("--executor=processes", "--num_workers=2", "--concurrency=4")
    assert registry.counts("pull") == {pin_of("slow:1"): 1}
    assert registry.counts("made") == {pin_of("slow:1"): 8}
    progress = image_progress(work.folder.run())
    assert progress is not None
    assert image_text(progress) == "images 1/1, 2.0 of 2.0 GB"


def test_images_that_are_here_are_not_among_what_is_to_be_pulled(work: Work, registry: Boxes) -> None:
    registry.publish("base:1", size=50_000_000)
    registry.here(pin_of("base:1")).touch()
    work.folder.write_rows(_rows("base:1"))
    work.batch()
    progress = image_progress(work.folder.run())
    assert progress is not None
    assert image_text(progress) == "images 1/1"


def test_the_images_column_the_template_and_the_default(work: Work, registry: Boxes) -> None:
    registry.publish("named:1", "sweb.a_1776_b:latest", "base:1")
    row = {"prompt": "p", "instance_id": "A__b", "image": "a picture.png", "container": ""}
    work.folder.write_rows([{**row, "container": "named:1"}, row])
    template = "--image_template=sweb.{instance_id|swebench}:latest"
    work.batch("--image_field=container", template, "--run_name=r")
    assert [pin_of("named:1") in work.answers()[0], pin_of("sweb.a_1776_b:latest") in work.answers()[1]] == [True, True]
    assert work.folder.lines()[0]["metadata"]["source"] == '{"instance_id": "A__b", "image": "a picture.png"}'
    work.folder.write_rows(_rows("named:1", None))
    for words, boxed in ((("--image=base:1", f"--sandbox={NAME}"), True), (("--ignore_images",), False)):
        ran = work.folder.batch(f"--base_url={work.server.base_url}", f"--run_name=boxed-{boxed}", *words)
        assert ran.code == 0, ran
        first, second = (line["conversations"][-1]["value"] for line in work.folder.lines(name=f"boxed-{boxed}"))
        given = [json.loads(line["metadata"]["given"]) for line in work.folder.lines(name=f"boxed-{boxed}")]
        pins = {"named:1": pin_of("named:1"), "base:1": pin_of("base:1")}
        named = [{"sandbox_image": name, "sandbox_image_pin": pin} for name, pin in pins.items()]
        assert given == (named if boxed else [{}, {}])
        assert (pin_of("named:1") in first) is boxed
        assert (pin_of("base:1") in second) is boxed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--sandbox=local"],
            "--sandbox local can't be made of images, and there are 1 row with a container image: base:1 (row 1)",
        ),
        (["--pull=never"], "1 row whose image is not here, and --pull is never: base:1 (row 1)"),
        (["--image_template=base"], "must have fields of rows in braces"),
        (["--image_template=base:{a|b}"], "unknown filter: b"),
        (["--image_cache=much"], "must be a size"),
        (["--image_field=prompt"], "is no name of a container image"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(words: list[str], says: str, work: Work, registry: Boxes) -> None:
    registry.publish("base:1")
    work.folder.write_rows([{"prompt": "p q", "image": "base:1"}])
    ran = work.batch(*words, code=2)
    assert says in ran.err
    assert not work.folder.run().exists()
    assert work.server.requests == []


def test_an_engine_that_is_not_there_is_refused(work: Work, registry: Boxes) -> None:
    (registry.folder / "unavailable").write_text("its daemon is not running")
    work.folder.write_rows(_rows("base:1"))
    assert work.batch(code=2).err.endswith(f"--sandbox {NAME}: its daemon is not running\n")
    (registry.folder / "unavailable").unlink()
    work.folder.write_rows(_rows("silent:1"))
    assert "the image silent:1 (row 1) can't be looked up: the registry does not answer" in work.batch(code=2).err
    assert not work.folder.run().exists()


def test_without_pulls_no_registry_is_asked_and_images_that_are_not_here_can_be_skipped(
    work: Work, registry: Boxes
) -> None:
    registry.publish("base:1")
    registry.here(pin_of("base:1")).touch()
    work.folder.write_rows(_rows("silent:1", "base:1"))
    refused = work.batch(code=2).err
    assert (
        "with --pull never, images that are not here are missing, and --skip_missing_images leaves such rows out"
        in refused
    )
    refused = work.batch("--pull=never", code=2).err
    assert (
        "1 row whose image is not here, and --pull is never: silent:1 (row 1); --skip_missing_images leaves" in refused
    )
    ran = work.batch("--pull=never", "--skip_missing_images")
    assert "1 row whose image is not here, and --pull is never is skipped: silent:1 (row 1)" in ran.err
    assert len(work.folder.lines()) == 1
    work.batch("--resume")


# --- The parts


async def test_a_hundred_thousand_rows_of_one_image_are_one_look_up(registry: Boxes) -> None:
    registry.publish("base:1", "other:1")
    demand = ImageDemand("line")
    for number in range(100_000):
        demand.add("base:1" if number % 1000 else "other:1", number)
    lines: list[str] = []
    pins = await planned_images(SandboxSettings(sandbox=NAME), demand, lines.append)
    assert registry.counts("find") == {"base:1": 1, "other:1": 1}
    assert pins == Pins.from_json(pins.to_json())
    assert pins.image("base:1").pin == pin_of("base:1")
    assert lines == ["2 images (0.0 GB) will be pulled when first needed"]
    assert demand.listed(["other:1"]).endswith("9000, …)")


async def test_images_that_take_too_much_are_removed_the_longest_unused_first(tmp_path: Path, registry: Boxes) -> None:
    names = ("a:1", "b:1", "c:1")
    registry.publish(*names, size=100)
    store = BoxStore()
    pulls = Pulls(tmp_path / "images", store, cache=250)
    images = {name: await store.find(name) for name in names}
    for name in ("a:1", "b:1", "a:1", "c:1"):
        image = images[name]
        assert image is not None
        async with pulls.using(image):
            pass
        await asyncio.sleep(0.02)
    assert registry.counts("remove") == {pin_of("b:1"): 1}
    a, b = images["a:1"], images["b:1"]
    assert a is not None
    assert b is not None
    async with pulls.using(a), pulls.using(b):  # what is in use stays
        assert await store.present(a.pin)
    assert registry.counts("pull") == {pin_of("a:1"): 1, pin_of("b:1"): 2, pin_of("c:1"): 1}
    await pulls.close()


@pytest.mark.parametrize(
    ("template", "row", "name"),
    [
        ("r.example/{id|swebench}:latest", {"id": "Django__django-1"}, "r.example/django_1776_django-1:latest"),
        ("{a}:{b|lower}", {"a": "x", "b": 7}, "x:7"),
        ("{a}", {"a": ""}, None),
        ("{a}", {"b": "x"}, None),
        ("{a}", {"a": "-x"}, None),
        ("{a}", {"a": "two words"}, None),
    ],
)
def test_templates_of_images(template: str, row: Mapping[str, Any], name: str | None) -> None:
    found = ImageTemplate.parse(template)
    if name is not None:
        assert found.fill(row) == name
        return
    with pytest.raises(ValueError, match=r"image"):
        found.fill(row)


def test_runs_of_before_go_on_without_images(work: Work) -> None:
    work.folder.write_rows(_rows("base:1", None))
    ran = work.folder.batch(f"--base_url={work.server.base_url}", "--model=m", "--ignore_images")
    assert ran.code == 0, ran
    assert "1 row with a container image, which is ignored" in ran.err


def test_ignored_images_mean_nothing_in_bubblewrap(work: Work) -> None:
    work.folder.write_rows(_rows("base:1", None))
    work.batch("--sandbox=bubblewrap", "--ignore_images")
    assert ["box=" in each for each in work.answers()] == [True, True]


def test_an_image_of_the_run_is_used_in_place_of_ignored_ones(work: Work, registry: Boxes) -> None:
    registry.publish("mine:1")
    work.folder.write_rows(_rows("gone:1", None))
    ran = work.batch("--ignore_images", "--image=mine:1")
    assert "1 row with a container image, which is ignored" in ran.err
    assert [pin_of("mine:1") in each for each in work.answers()] == [True, True]


@pytest.mark.parametrize("sandbox", ["auto", "docker"])
async def test_images_that_are_files_are_for_bubblewrap(sandbox: str, tmp_path: Path) -> None:
    image = f"tar:{tmp_path}/box.tar"
    options = SandboxSettings(sandbox=sandbox, image=image)
    with pytest.raises(
        UserError, match=f"the image {image} is a file, which --sandbox bubblewrap takes, and {sandbox} does"
    ):
        await planned_images(options, ImageDemand(), print)


async def test_no_engine_for_auto_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        monkeypatch.setenv(name, f"unix://{tmp_path}/nobody.sock")
    demand = ImageDemand()
    demand.add("base:1", 1)
    with pytest.raises(UserError, match="1 row with a container image: no container engine can be used"):
        await planned_images(SandboxSettings(), demand, print)
