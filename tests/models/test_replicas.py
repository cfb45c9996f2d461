"""Several servers of one model, and several keys: real servers on the loopback, of which some are slow, refuse or die."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.clock import SystemClock
from manyhands.core.errors import Interrupted, ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.usage import Reserve
from manyhands.engine.attempt import ConversationLimits
from manyhands.engine.contract import CallReport, OneOf
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.addresses import AddressFile, addresses_of, paired, read_addresses
from manyhands.models.factory import key_variable, require_keys, resolve_api_keys
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.embeddings import OpenAIEmbeddings
from manyhands.models.openai.errors import Retries
from manyhands.models.pricing import Price, PriceTable
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, ScriptedServer, chat_response
from tests.support.ports import held_port

CLOCK = SystemClock()
QUICK = Retries(delay=0.01)
HELLO: list[Message] = [{"role": "user", "content": "hello"}]


async def ask(model: OpenAIChatModel, limits: Any) -> Completion:
    return await model.complete(ChatRequest(ChatSettings("m", call_timeout=5), HELLO), limits, CLOCK)


# --- Which replica


async def test_conversations_stay_and_new_ones_spread() -> None:
    async with ScriptedServer([chat_response()]) as one, ScriptedServer([chat_response()]) as two:
        model, limits = OpenAIChatModel((one.base_url, two.base_url)), SharedLimits()
        conversations = [ConversationLimits(limits) for _ in range(10)]
        for _ in range(3):
            answers = await asyncio.gather(*(ask(model, conversation) for conversation in conversations))
            places = [answer.extra["address"] for answer in answers]
            assert Counter(places) == {one.base_url: 5, two.base_url: 5}
        assert len(one.requests) == len(two.requests) == 15
        again = [(await ask(model, conversation)).extra["address"] for conversation in conversations]
        assert again == places
        await model.close()


async def test_a_slow_replica_gets_fewer_new_conversations() -> None:
    slow = ScriptedResponse(chat_response(), delay=0.2)
    async with ScriptedServer([slow]) as one, ScriptedServer([chat_response()]) as two:
        model, limits = OpenAIChatModel((one.base_url, two.base_url)), SharedLimits()

        async def conversations() -> None:
            for _ in range(20):
                await ask(model, ConversationLimits(limits))

        await asyncio.gather(conversations(), conversations())
        assert len(one.requests) < len(two.requests) / 3
        await model.close()


async def test_a_window_that_is_widened_is_shared_and_a_pause_gives_calls_back() -> None:
    limits = SharedLimits(initial=1)
    wanted, reserve = OneOf(("http://one#k", "http://two#k")), Reserve(1, 0.0, "m")
    held = [await limits.acquire_one_of(wanted, reserve) for _ in range(2)]
    waiting = asyncio.ensure_future(limits.acquire_one_of(wanted, reserve))
    await asyncio.sleep(0)
    limits.pause.begin()
    limits.want(4)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    limits.pause.end()
    held.append(await waiting)
    assert [(each["window"]) for each in limits.replicas()] == [2, 2]
    assert sum(each["in_flight"] for each in limits.replicas()) == 3
    for permit, _ in held:
        limits.release(permit, CallReport())


async def test_the_window_that_a_person_asks_for_is_shared() -> None:
    limits = SharedLimits(wanted=300)
    keys = ("http://a/v1#0", "http://b/v1#0", "http://c/v1#0")
    await asyncio.gather(*(limits.acquire_one_of(OneOf(keys), reserve) for reserve in [Reserve()] * 300))
    found = limits.replicas()
    assert [each["window"] for each in found] == [100, 100, 100]
    assert [each["in_flight"] for each in found] == [100, 100, 100]
    waiting = asyncio.create_task(limits.acquire_one_of(OneOf(keys), Reserve()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    limits.stop()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_dead_replica_is_left_out_and_used_once_it_is_back() -> None:
    notices: list[str] = []
    with held_port() as port:
        await _dies_and_returns(port, notices)


async def _dies_and_returns(port: int, notices: list[str]) -> None:
    async with ScriptedServer([chat_response()]) as alive:
        dead = f"http://127.0.0.1:{port}/v1"
        model, limits = OpenAIChatModel((dead, alive.base_url), retries=QUICK), SharedLimits(notice=notices.append)
        for _ in range(5):
            answer = await ask(model, ConversationLimits(limits))
            assert answer.extra["address"] == alive.base_url
        out = limits.replicas()[0]
        assert (out["replica"], out["failed"]) == (dead, 1), "it was asked once, and then left out"
        assert out["out_since"] is not None
        assert notices == [f"{dead} is left out, and tried again from time to time: can't connect: Connection refused"]
        async with ScriptedServer([chat_response()], port=port) as back:
            latest = time.monotonic() + 10
            while not back.requests and time.monotonic() < latest:
                await ask(model, ConversationLimits(limits))
                await asyncio.sleep(0.05)
            assert back.requests
            assert limits.replicas()[0]["out_since"] is None
        assert len(notices) == 2
        assert notices[1].startswith(f"{dead} answers again after")
        await model.close()


async def test_errors_by_chance_leave_no_replica_out() -> None:
    replies: list[Reply] = [ScriptedResponse(b"", 500), chat_response()] * 20
    async with ScriptedServer(replies) as one, ScriptedServer([chat_response()]) as two:
        model, limits = OpenAIChatModel((one.base_url, two.base_url), retries=QUICK), SharedLimits()
        for _ in range(20):
            await ask(model, ConversationLimits(limits))
        assert all(each["out_since"] is None for each in limits.replicas())
        await model.close()


async def test_a_server_error_is_asked_again_elsewhere_at_once() -> None:
    async with ScriptedServer([ScriptedResponse(b"", 500)]) as one, ScriptedServer([chat_response()]) as two:
        model, limits = OpenAIChatModel((one.base_url, two.base_url), retries=Retries(delay=60)), SharedLimits()
        conversation = ConversationLimits(limits)
        answer = await asyncio.wait_for(ask(model, conversation), 10)
        assert answer.extra["address"] == two.base_url
        assert (await ask(model, conversation)).extra["address"] == two.base_url, "its prefix is in that cache now"
        assert [len(one.requests), len(two.requests)] == [1, 2]
        await model.close()


async def test_if_all_are_down_a_call_fails_as_at_a_single_one() -> None:
    with held_port() as one, held_port() as two:
        model = OpenAIChatModel(tuple(f"http://127.0.0.1:{port}/v1" for port in (one, two)), retries=QUICK)
        with pytest.raises(ItemError) as caught:
            await ask(model, SharedLimits())
        await model.close()
    assert caught.value.cause is Cause.MODEL_ERROR
    assert "can't connect: Connection refused (4 tries)" in caught.value.message


async def test_a_hung_replica_costs_no_second_try_where_none_is_allowed() -> None:
    hung = ScriptedResponse(chat_response(), delay=30)
    async with ScriptedServer([hung]) as one, ScriptedServer([chat_response()]) as two:
        model = OpenAIChatModel((one.base_url, two.base_url), retries=Retries(tries=1))
        request = ChatRequest(ChatSettings("m", call_timeout=0.2), HELLO)
        with pytest.raises(ItemError, match="no answer within"):
            await model.complete(request, SharedLimits(), CLOCK)
        assert two.requests == []
        await model.close()


# --- Rate limits and keys


def by_key(refused: dict[str, ScriptedResponse]) -> Any:
    def reply(request: RecordedRequest) -> Any:
        return refused.get(request.headers.get("Authorization", ""), chat_response())

    return reply


async def test_keys_are_used_in_turn_and_a_refused_one_is_left_out() -> None:
    keys = ("first-key-1234", "second-key-1234", "third-key-1234")
    refuses = ScriptedResponse({"error": {"message": "bad key third-key-1234"}}, 401)
    notices: list[str] = []
    async with ScriptedServer(by_key({"Bearer third-key-1234": refuses})) as server:
        model, limits = OpenAIChatModel(server.base_url, keys, retries=QUICK), SharedLimits(notice=notices.append)
        for _ in range(12):
            await ask(model, ConversationLimits(limits))
        used = Counter(request.headers["Authorization"].split()[1] for request in server.requests)
        assert used["third-key-1234"] == 1
        assert abs(used["first-key-1234"] - used["second-key-1234"]) <= 4
        names = [each["replica"] for each in limits.replicas()]
        assert names == [f"{server.base_url} (key {number})" for number in (1, 2, 3)]
        assert not any(key in text for key in keys for text in (*notices, json.dumps(limits.snapshot())))
        assert notices[0].startswith(f"{server.base_url} (key 3) is left out")
        assert limits.refusals.news() == []
        await model.close()


async def test_if_all_keys_are_refused_it_is_as_with_one() -> None:
    refuses = ScriptedResponse({"error": {"message": "bad key"}}, 401)
    async with ScriptedServer([refuses]) as server:
        model = OpenAIChatModel(server.base_url, ("key-one-1234", "key-two-1234"), retries=QUICK)
        with pytest.raises(ItemError) as caught:
            await ask(model, SharedLimits())
        assert caught.value.cause is Cause.AUTHENTICATION
        assert len(server.requests) == 2
        await model.close()


async def test_a_rate_limit_holds_one_key_and_the_call_goes_on_with_another() -> None:
    limited = ScriptedResponse(b"{}", 429, {"Retry-After": "30"})
    async with ScriptedServer(by_key({"Bearer key-one-1234": limited})) as server:
        model, limits = OpenAIChatModel(server.base_url, ("key-one-1234", "key-two-1234")), SharedLimits()
        for _ in range(4):
            await asyncio.wait_for(ask(model, ConversationLimits(limits)), 10)
        assert Counter(request.headers["Authorization"] for request in server.requests)["Bearer key-one-1234"] == 1
        await model.close()


async def test_where_all_are_limited_a_call_waits_for_the_first_that_is_free() -> None:
    long, short = ({"Retry-After": seconds} for seconds in ("60", "0.3"))
    replies: list[Reply] = [ScriptedResponse(b"{}", 429, short), chat_response()]
    async with ScriptedServer([ScriptedResponse(b"{}", 429, long)]) as one, ScriptedServer(replies) as two:
        model, limits = OpenAIChatModel((one.base_url, two.base_url)), SharedLimits()
        waiting = [asyncio.create_task(ask(model, ConversationLimits(limits))) for _ in range(3)]
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert {answer.extra["address"] for answer in answers} == {two.base_url}
        await model.close()


UNAVAILABLE = ScriptedResponse(b"", 500)
BAD_KEY = ScriptedResponse({"error": {"message": "bad key"}}, 401)
LIMITED = ScriptedResponse({"error": {"message": "slow down"}}, 429)
FOR_A_DAY = ScriptedResponse({"error": {"message": "slow down"}}, 429, {"Retry-After": "86400"})


@pytest.mark.parametrize("limited", [LIMITED, FOR_A_DAY], ids=["again and again", "for a day"])
@pytest.mark.parametrize("first", [True, False])
async def test_a_rate_limit_is_not_waited_out_for_ever_if_the_other_key_is_refused(
    limited: ScriptedResponse, first: bool
) -> None:
    replies = [limited, BAD_KEY] if first else [BAD_KEY, limited]
    keyed = {f"Bearer key-{number}-1234": reply for number, reply in enumerate(replies)}
    async with ScriptedServer(by_key(keyed)) as server:
        model = OpenAIChatModel(server.base_url, ("key-0-1234", "key-1-1234"), retries=QUICK, max_rate_limit_wait=0.3)
        with pytest.raises(ItemError) as caught:
            await asyncio.wait_for(ask(model, ConversationLimits(SharedLimits(first_pause=0.01))), 10)
        await model.close()
    assert caught.value.cause is Cause.RATE_LIMIT
    assert "slow down" in caught.value.message


@pytest.mark.parametrize("first", [True, False])
async def test_what_may_pass_is_tried_again_where_the_others_are_limited_for_too_long(first: bool) -> None:
    replies: list[Reply] = [UNAVAILABLE, UNAVAILABLE, chat_response()]
    async with ScriptedServer([FOR_A_DAY]) as one, ScriptedServer(replies) as two:
        urls = (one.base_url, two.base_url) if first else (two.base_url, one.base_url)
        model, limits = OpenAIChatModel(urls, retries=QUICK), SharedLimits()
        answer = await asyncio.wait_for(ask(model, ConversationLimits(limits)), 10)
        await model.close()
    assert answer.extra["address"] == two.base_url
    assert (len(one.requests), len(two.requests)) == (1, 3)


async def test_a_dead_one_that_is_back_is_used_while_the_other_one_is_limited() -> None:
    async with ScriptedServer([FOR_A_DAY]) as one:
        with held_port() as port:
            model = OpenAIChatModel(
                (one.base_url, f"http://127.0.0.1:{port}/v1"), retries=Retries(delay=0.5, factor=1.0)
            )
            calling = asyncio.create_task(ask(model, ConversationLimits(SharedLimits())))
            latest = time.monotonic() + 10
            while not one.requests and time.monotonic() < latest:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        async with ScriptedServer([chat_response()], port=port) as back:
            assert (await asyncio.wait_for(calling, 10)).extra["address"] == back.base_url
        await model.close()


async def test_a_wait_for_all_of_them_is_reported() -> None:
    limited = ScriptedResponse({"error": {"message": "slow down"}}, 429, {"Retry-After": "60"})
    async with ScriptedServer([limited]) as one, ScriptedServer([limited]) as two:
        model, limits = OpenAIChatModel((one.base_url, two.base_url)), SharedLimits()
        waiting = [asyncio.create_task(ask(model, ConversationLimits(limits))) for _ in range(3)]
        latest = time.monotonic() + 10
        while sum(wait.waiting for wait in limits.waits()) < 3 and time.monotonic() < latest:
            await asyncio.sleep(0.01)
        (wait,) = limits.waits()
        assert (wait.waiting, "slow down" in wait.why) == (3, True)
        limits.stop()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in ended} == {Interrupted}
        await model.close()


@given(st.integers(0, 10_000))
@settings(max_examples=5)  # replicas that are left out are tried again after whole seconds
async def test_no_permit_is_lost_whatever_happens(seed: int) -> None:
    draw = Random(seed)
    limits = SharedLimits(initial=2, ceiling=3, first_pause=0.002)
    keys = ("http://a/v1#0", "http://b/v1#0", "http://c/v1#0")

    async def call() -> None:
        conversation = ConversationLimits(limits)
        for _ in range(3):
            report = draw.choice(
                [
                    CallReport(),
                    CallReport(failed=True, rate_limited=True, retry_after=0.002),
                    CallReport(failed=True, unhealthy=True),
                    CallReport(failed=True, unhealthy=True, unknown=True),
                    CallReport(failed=True, unknown=True),
                ]
            )
            avoid = tuple(key for key in keys if draw.random() < 0.2)
            permit, key = await conversation.acquire_one_of(OneOf(keys, avoid), Reserve())
            assert key in keys
            try:
                await asyncio.sleep(draw.random() * 0.002)
            finally:
                limits.release(permit, report)

    calls = [asyncio.create_task(call()) for _ in range(8)]
    for task in draw.sample(calls, 2):
        await asyncio.sleep(0.001)
        task.cancel()
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
    assert {type(error) for error in ended} <= {type(None), asyncio.CancelledError}
    assert all(key["in_flight"] == 0 for key in limits.snapshot()["keys"].values())


async def test_embeddings_have_replicas_too() -> None:
    vector = {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 3}}
    refuses = ScriptedResponse({"error": {"message": "bad key"}}, 401)
    async with ScriptedServer([refuses]) as one, ScriptedServer([vector]) as two:
        embeddings, limits = OpenAIEmbeddings((one.base_url, two.base_url), "small"), SharedLimits()
        for _ in range(3):
            assert (await embeddings.embed("text", limits, CLOCK))[0] == [1.0]
        assert [len(one.requests), len(two.requests)] == [1, 3]
        await embeddings.close()


async def test_refused_keys_are_none_of_the_tries_of_embeddings() -> None:
    vector = {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 3}}
    keys = tuple(f"key-{number}-1234" for number in range(5))
    refuses = {f"Bearer {key}": BAD_KEY for key in keys[:4]}
    async with ScriptedServer(
        lambda request: refuses.get(request.headers["Authorization"], ScriptedResponse(vector))
    ) as server:
        embeddings = OpenAIEmbeddings(server.base_url, "small", keys)
        assert (await embeddings.embed("text", SharedLimits(), CLOCK))[0] == [1.0]
        await embeddings.close()


async def test_addresses_that_differ_in_their_query_are_different_ones() -> None:
    async with ScriptedServer([chat_response()]) as server:
        urls = tuple(f"{server.base_url}?backend={name}" for name in "ab")
        model, limits = OpenAIChatModel(urls), SharedLimits()
        for _ in range(4):
            await ask(model, ConversationLimits(limits))
        await model.close()
    assert Counter(request.query["backend"] for request in server.requests) == {"a": 2, "b": 2}


async def test_an_address_that_is_written_twice_is_one() -> None:
    async with ScriptedServer([chat_response()]) as one, ScriptedServer([chat_response()]) as two:
        model, limits = OpenAIChatModel((one.base_url, f"{one.base_url}/", two.base_url)), SharedLimits(wanted=300)
        await ask(model, limits)
        await model.close()
    assert [each["window"] for each in limits.replicas()] == [150, 150]


def test_the_reserve_covers_the_request_as_each_replica_takes_it() -> None:
    thought: Message = {"role": "assistant", "content": "a", "reasoning": "r" * 5000}
    request = ChatRequest(ChatSettings("claude", max_tokens=10), [*HELLO, thought, *HELLO])
    urls = ("https://api.openai.com/v1", "http://h:8000/v1", "https://openrouter.ai/api/v1")
    prices = PriceTable({"claude": Price(1.0, 10.0)})
    alone = [OpenAIChatModel(url, prices=prices).worst_case(request) for url in urls]
    together = OpenAIChatModel(urls, prices=prices).worst_case(request)
    assert together.tokens == max(each.tokens for each in alone) > alone[0].tokens
    assert together.cost == max(each.cost for each in alone) > alone[0].cost


# --- Settings


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("http://a/v1", "http://a/v1"),
        (["http://a/v1"], "http://a/v1"),
        ("http://a/v1, http://b/v1", ("http://a/v1", "http://b/v1")),
        (["http://a/v1", "http://b/v1,http://c/v1"], ("http://a/v1", "http://b/v1", "http://c/v1")),
        ("@servers.txt", "@servers.txt"),
        (["@servers.txt"], "@servers.txt"),
    ],
)
def test_addresses(given: Any, read: Any) -> None:
    assert read_addresses(given) == read
    assert read_addresses(json.loads(json.dumps(read))) == read


@pytest.mark.parametrize("given", ["", "a:80", [], ["http://a", "@f"], "@", "http://a,b:80", "http://u:p@h/", 3, [3]])
def test_no_addresses(given: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        read_addresses(given)


def test_keys_go_with_addresses() -> None:
    assert paired(["a", "b"], []) == (("a", None), ("b", None))
    assert paired(["a", "b"], ["k"]) == (("a", "k"), ("b", "k"))
    assert paired(["a"], ["k", "l", "k"]) == (("a", "k"), ("a", "l"))
    assert paired(["a", "b"], ["k", ""]) == (("a", "k"), ("b", None))
    with pytest.raises(UserError, match="--api_key: 3 keys for 2 addresses"):
        require_keys(("http://a", "http://b"), ["k", "l", "m"])


def test_keys_from_the_environment() -> None:
    own = ("http://a/v1", "http://b/v1")
    assert resolve_api_keys([], own, {"MANYHANDS_API_KEY": "k,l"}) == ("k,l",)
    assert resolve_api_keys([], own, {"MANYHANDS_API_KEY": "k", "MANYHANDS_API_KEYS": "l, m"}) == ("l", "m")
    assert resolve_api_keys(["x"], own, {"MANYHANDS_API_KEYS": "l, m"}) == ("x",)
    mixed = ("https://api.openai.com/v1", "http://b/v1")
    assert resolve_api_keys([], mixed, {"OPENAI_API_KEY": "o"}) == ("o", "")
    assert resolve_api_keys([], own, {}) == ()


def test_a_file_of_addresses(tmp_path: Path) -> None:
    path = tmp_path / "servers.txt"
    with pytest.raises(UserError, match=r"can't read .*servers\.txt: No such file"):
        addresses_of(f"@{path}")
    path.write_text("\ufeff# mine\nhttp://a/v1  # the first\n\nhttp://b/v1\n", encoding="utf-8")
    assert addresses_of(f"@{path}") == ("http://a/v1", "http://b/v1")
    path.write_text("http://a/v1\nb/v1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"servers\.txt:2: must be an address"):
        addresses_of(f"@{path}")
    path.write_text("# none\n", encoding="utf-8")
    with pytest.raises(UserError, match="must list 1 to"):
        AddressFile(f"@{path}").read()


def rewrite(path: Path, text: str) -> None:
    """Change a file so that it counts as changed some time ago."""
    path.write_text(text, encoding="utf-8")
    old = time.time() - 10 + len(text) / 1000
    os.utime(path, (old, old))


async def test_a_file_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, notices = tmp_path / "servers.txt", list[str]()
    async with ScriptedServer([chat_response()]) as one, ScriptedServer([chat_response()]) as two:
        rewrite(path, one.base_url)
        limits = SharedLimits(notice=notices.append)
        model = OpenAIChatModel(f"@{path}", "a-key-of-mine", provider_of=key_variable)

        async def places() -> set[str]:
            found = set()
            for _ in range(4):
                found.add((await ask(model, ConversationLimits(limits))).extra["address"])
            await asyncio.sleep(1.1)
            return found

        assert await places() == {one.base_url}
        rewrite(path, f"{one.base_url}\n{two.base_url}\n")
        assert await places() == {one.base_url, two.base_url}
        rewrite(path, "nonsense\n")
        assert await places() == {one.base_url, two.base_url}
        rewrite(path, f"{two.base_url}\nhttps://api.openai.com/v1\n")
        assert await places() == {one.base_url, two.base_url}, "a key goes to its own provider"
        rewrite(path, two.base_url)
        assert await places() == {two.base_url}
        assert [text.partition("servers.txt")[2].split(", not")[0] for text in notices] == [
            ":1: must be an address that starts with http:// or https://",
            ": https://api.openai.com/v1 is another provider's, and gets no key of this run; the addresses before it are kept",
        ]
        await model.close()


async def test_a_call_that_waits_goes_to_an_address_that_is_added(tmp_path: Path) -> None:
    path = tmp_path / "servers.txt"
    limited = ScriptedResponse(b"{}", 429, {"Retry-After": "60"})
    async with ScriptedServer([limited]) as one, ScriptedServer([chat_response()]) as two:
        rewrite(path, one.base_url)
        model, limits = OpenAIChatModel(f"@{path}"), SharedLimits()
        waiting = asyncio.create_task(ask(model, ConversationLimits(limits)))
        await asyncio.sleep(0.3)
        rewrite(path, f"{one.base_url}\n{two.base_url}\n")
        assert (await asyncio.wait_for(waiting, 10)).extra["address"] == two.base_url
        assert all(key["in_flight"] == 0 for key in limits.snapshot()["keys"].values())
        await model.close()
