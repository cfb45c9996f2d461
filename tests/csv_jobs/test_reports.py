"""Where external workers' reports arrive: each is answered with why it was taken or not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.workers import reports
from manyhands.workloads.csv_jobs.workers.reports import (
    SECRET,
    Acceptance,
    Corrections,
    PendingReport,
    Report,
    ReportInbox,
)
from tests.support.job_rows import JOB_ID, SCORE_SCHEMA

SCHEMA = OutputSchema.of(SCORE_SCHEMA)


@pytest.fixture
async def inbox() -> ReportInbox:
    return ReportInbox(JOB_ID)


def opened(inbox: ReportInbox, item_id: str = "row-1", corrections: int = 1) -> PendingReport:
    return inbox.open(JOB_ID, item_id, SCHEMA, Corrections(corrections))


async def deliver(inbox: ReportInbox, report: PendingReport, result: Any, **more: Any) -> Acceptance:
    given = {"job_id": JOB_ID, "item_id": report.item_id, "stop": False, "secret": report.secret, **more}
    return await asyncio.wait_for(inbox.deliver(result=result, **given), 5)


async def test_a_report_is_answered_only_when_it_is_settled(inbox: ReportInbox) -> None:
    report = opened(inbox)
    delivery = asyncio.ensure_future(deliver(inbox, report, {"score": 3}, stop=True))
    assert await report.arrived() == Report({"score": 3}, True)
    await asyncio.sleep(0.02)
    assert not delivery.done()
    report.settled(True)
    assert await delivery == Acceptance(True)


async def test_it_is_refused_if_it_could_not_be_recorded(inbox: ReportInbox) -> None:
    report = opened(inbox)
    delivery = asyncio.ensure_future(deliver(inbox, report, {"score": 3}))
    await report.arrived()
    report.close("the row was interrupted")
    assert await delivery == Acceptance(False, "the row was interrupted")


async def test_of_many_at_once_one_is_accepted(inbox: ReportInbox) -> None:
    report = opened(inbox)
    deliveries = [asyncio.ensure_future(deliver(inbox, report, {"score": number})) for number in (1, 2, 3)]
    assert (await report.arrived()).result == {"score": 1}
    report.settled(True)
    answers = await asyncio.gather(*deliveries)
    assert [answer.accepted for answer in answers] == [True, False, False]
    assert answers[1].reason == "a result was reported for this item already"
    report.close("a result was accepted for this item already")
    late = await deliver(inbox, report, {"score": 4})
    assert late == Acceptance(False, "a result was accepted for this item already")


async def test_misfits_are_explained_until_no_correction_is_left(inbox: ReportInbox) -> None:
    report = opened(inbox, corrections=2)
    first = await deliver(inbox, report, {"score": 11})
    assert first.violations == ("$.score: 11 is greater than the maximum of 10",)
    assert first.reason == "the result does not fit; correct it and report again. 2 corrections are left."
    second = await deliver(inbox, report, [1])
    assert second.violations == ("result must be a JSON object",)
    assert "One correction is left." in (second.reason or "")
    third = await deliver(inbox, report, {})
    assert third.reason == "the result does not fit, and no correction is left: the item has failed"
    with pytest.raises(ItemError) as caught:
        await report.arrived()
    assert caught.value.cause is Cause.INVALID_OUTPUT
    assert caught.value.record == {"last_report": {}, "violations": ["$: 'score' is a required property"]}
    assert (await deliver(inbox, report, {"score": 3})).reason == "the item has failed: no correction was left"


async def test_who_is_not_the_worker_is_refused_with_the_reason(inbox: ReportInbox) -> None:
    report = opened(inbox)
    for more, reason in (
        ({"job_id": "other"}, "job other is not executed here"),
        ({"item_id": "row-2"}, "item row-2 is not being worked on"),
        ({"secret": ""}, f"the worker's secret is missing; it is in the worker's environment as {SECRET}"),
        ({"secret": "é" * 43}, "the secret is not that of the attempt under way at this item"),
        ({"secret": report.secret[:-1]}, "the secret is not that of the attempt under way at this item"),
        ({"secret": opened(inbox, "row-3").secret}, "the secret is not that of the attempt under way at this item"),
    ):
        assert await deliver(inbox, report, {"score": 3}, **more) == Acceptance(False, reason)
    assert report.corrections.refused == 0
    assert len(report.secret) >= 32


async def test_the_secret_of_an_earlier_attempt_is_none_of_the_next(inbox: ReportInbox) -> None:
    first = opened(inbox)
    with pytest.raises(ValueError, match="row-1"):
        opened(inbox)
    first.close("timed out")
    assert (await deliver(inbox, first, {"score": 3})).reason == "timed out"
    second = opened(inbox)
    assert second.secret != first.secret
    refused = await deliver(inbox, second, {"score": 3}, secret=first.secret)
    assert refused.reason == "the secret is not that of the attempt under way at this item"
    first.close("timed out")  # again, which must not close the second
    delivery = asyncio.ensure_future(deliver(inbox, second, {"score": 3}))
    assert (await second.arrived()).result == {"score": 3}
    second.settled(True)
    assert (await delivery).accepted


async def test_ids_are_taken_as_a_prompt_shows_them(inbox: ReportInbox) -> None:
    report = opened(inbox, "a\nb ")
    delivery = asyncio.ensure_future(deliver(inbox, report, {"score": 3}, item_id='"a\\nb "'))
    await asyncio.wait_for(report.arrived(), 5)
    report.settled(True)
    assert (await delivery).accepted


async def test_a_result_beyond_all_bounds_is_refused(inbox: ReportInbox) -> None:
    report = inbox.open(JOB_ID, "row-1", OutputSchema.of(None), Corrections(1))
    answer = await deliver(inbox, report, {"text": "x" * reports.MAX_RESULT_BYTES})
    assert not answer.accepted
    assert "bytes of JSON" in answer.violations[0]


async def test_how_items_ended_is_not_remembered_for_ever(inbox: ReportInbox) -> None:
    first = opened(inbox, "first")
    first.close("gone")
    for number in range(reports.REMEMBERED):
        opened(inbox, str(number)).close("gone")
    assert (await deliver(inbox, first, {})).reason == "item first is not being worked on"
    assert (await inbox.deliver(JOB_ID, "5", {}, stop=False, secret="x")).reason == "gone"


async def test_a_client_that_leaves_does_not_take_its_report_along(inbox: ReportInbox) -> None:
    report = opened(inbox)
    delivery = asyncio.ensure_future(deliver(inbox, report, {"score": 3}))
    await report.arrived()
    delivery.cancel()
    await asyncio.sleep(0)
    assert (await report.arrived()).result == {"score": 3}
    report.settled(True)
    assert (await deliver(inbox, report, {"score": 3})).reason == "a result was reported for this item already"
