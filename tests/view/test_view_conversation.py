"""The conversation of an attempt on its page: which attempt a link means, where results stand, and what is said of what is not shown."""

from __future__ import annotations

import base64
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.view.conversation import MAX_PARTS, ConversationReader
from manyhands.view.pages.item import item_page
from tests.support.made_journals import MadeStep, Pages, answered_alone, answered_together, asked, made_journal, write
from tests.support.picture_files import picture
from tests.support.shown_runs import links_in


async def test_links_to_steps_of_an_earlier_attempt_show_that_attempt(tmp_path: Path) -> None:
    steps = [MadeStep("count", {}, number, attempt=attempt) for attempt in (1, 2) for number in range(3)]
    pages = Pages(made_journal(tmp_path / "run", steps))
    write(tmp_path / "run", "UPDATE items SET attempt = ?", (2,))
    timeline = pages.html(await item_page(pages.site, pages.id, 1, {"tab": "timeline", "attempt": "1"}))
    found = [link for link in links_in(timeline)[0] if "step=" in link]
    assert len(found) == 3
    for number, link in enumerate(found, 1):
        led_to = await item_page(pages.site, pages.id, 1, dict(parse_qsl(urlsplit(link).query)))
        assert led_to.data["attempt_shown"] == 1
        assert [step.id for step in led_to.values["page"].steps] == list(range(number, 4))
    assert (await item_page(pages.site, pages.id, 1, {"step": "9"})).data["attempt_shown"] == 2
    pages.close()


async def test_steps_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    pages = Pages(made_journal(tmp_path / "run", [MadeStep("count", {}, 0)] * 2003))
    for tab in ("raw", "timeline"):
        html = pages.html(await item_page(pages.site, pages.id, 1, {"tab": tab}))
        assert re.search(r"The first 2,000( steps)?; 3 more", html), tab
    pages.close()


async def test_an_exit_code_is_no_failure(tmp_path: Path) -> None:
    found = {"output": "", "exit_code": 1, "error": None}
    output = {
        "results": [{"content": found}, {"content": found, "failed": True}, {"content": {**found, "exit_code": 0}}]
    }
    tools = replace(answered_together("/0", None, None, None), output=output)
    pages = Pages(made_journal(tmp_path / "run", [asked("t", "t", "t"), tools]))
    html = pages.html(await item_page(pages.site, pages.id, 1, {}))
    states = re.findall(r'<span class="state (\w+)">((?:ok|failed|exit)[^<]*)', html)
    assert states == [("warn", "exit code 1"), ("bad", "failed, exit code 1"), ("good", "ok")]
    assert html.count('class="call failed"') == 1
    pages.close()


async def test_pictures_that_results_name_are_shown_and_nothing_else_of_the_folder(tmp_path: Path) -> None:
    names = [f"{number}{'0' * 63}.png" for number in range(4)]
    contents = [{"image": "images/1.png", "artifact": name} for name in (*names, "a" * 64 + ".svg")]
    tools = answered_together("/0", *contents)
    pages = Pages(made_journal(tmp_path / "run", [asked(*"t" * len(contents)), tools]))
    folder = tmp_path / "run" / "artifacts"
    folder.mkdir()
    (folder / names[0]).write_bytes(picture())
    (folder / names[1]).write_bytes(b"<html><script>alert(1)</script></html>")
    (tmp_path / "other.png").write_bytes(picture(colour="blue"))
    (folder / names[2]).symlink_to(tmp_path / "other.png")
    (folder / ("a" * 64 + ".svg")).write_bytes(b"<svg/>")
    html = pages.html(await item_page(pages.site, pages.id, 1, {}))
    shown = "data:image/png;base64," + base64.b64encode(picture()).decode()
    assert re.findall(r'<img class="image" src="([^"]*)"', html) == [shown]
    assert f"artifact:{names[3]}" in html
    pages.close()


async def test_a_command_that_found_nothing_is_not_marked_in_the_outline(tmp_path: Path) -> None:
    steps = [asked("grep"), answered_together("/0", {"output": "", "exit_code": 1, "error": None})]
    pages = Pages(made_journal(tmp_path / "run", steps))
    page = await item_page(pages.site, pages.id, 1, {})
    assert [step.has_failed for step in page.values["page"].steps] == [False]
    assert "✗" not in pages.html(page)
    pages.close()


def results_on(page: Any) -> list[str | None]:
    """What the calls of a page came to."""
    calls = [call for step in page.steps for message in step.messages for call in message.calls]
    return [call.result.text.text if call.result else None for call in calls]


@given(count=st.integers(1, 130), others=st.integers(0, 60))
@settings(max_examples=15, deadline=None)
def test_a_result_stands_beside_its_call_wherever_it_was_recorded(
    tmp_path_factory: pytest.TempPathFactory, count: int, others: int
) -> None:
    """Of calls in steps of their own, and of one whose scope waited while others went on."""
    steps = [*[asked(text="x", scope="B")] * others, asked("t", scope="A"), *[asked(text="x", scope="B")] * others]
    steps += [answered_together("A/0", "late"), asked(*["t"] * count), *(
        answered_alone("/0", place, f"found {place}") for place in range(count))]  # fmt: skip
    folder = made_journal(tmp_path_factory.mktemp("made") / "run", steps)
    with closing(JournalBrowser(folder)) as browser:
        talk = ConversationReader(browser, 1, 1, lambda step: ())
        page = talk.page()
        found = [page]
        while page.behind is not None:
            page = talk.page(page.behind)
            found.append(page)
            assert talk.left_out(page) <= page.count - page.first
        results = [text for each in found for text in results_on(each)]
    assert results == ["late", *(f"found {place}" for place in range(count))]


async def test_a_result_that_is_too_far_on_is_not_said_to_be_missing(tmp_path: Path) -> None:
    steps = [asked("t", scope="A"), *[asked(text="x", scope="B")] * 500, answered_together("A/0", "late")]
    pages = Pages(made_journal(tmp_path / "run", steps))
    html = pages.html(await item_page(pages.site, pages.id, 1, {}))
    assert (html.count("no result recorded"), html.count("its result is further on, if it is recorded")) == (0, 1)
    pages.close()
    pages = Pages(made_journal(tmp_path / "other", [*steps[:200], asked(scope="A"), *steps[200:-1]]))
    html = pages.html(await item_page(pages.site, pages.id, 1, {}))
    assert (html.count("no result recorded"), html.count("its result is further on, if it is recorded")) == (1, 0)
    pages.close()


async def test_of_very_many_small_parts_the_others_are_counted(tmp_path: Path) -> None:
    many: dict[str, Any] = {"added": [{}] * (MAX_PARTS + 500), "settings": {}}
    steps = [MadeStep("model", many, {"message": None}), asked(*["t"] * 10)]
    pages = Pages(made_journal(tmp_path / "run", steps))
    html = pages.html(await item_page(pages.site, pages.id, 1, {}))
    assert "500 more messages not shown" in html
    assert "10 more calls not shown" in html
    assert len(html) < 1_000_000
    pages.close()
