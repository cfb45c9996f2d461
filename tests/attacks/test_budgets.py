"""Budgets against endpoints that take as much as they are allowed, fail after they were paid, or keep to nothing.

The books are the server's own: tokens and US dollars of every answer that it made, whether or not it arrived. It counts a token for each
byte, some for each message and image, and as many for an answer as ``max_tokens`` allows (100,000 where nothing is said).
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.jsonio import dumps
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.request import Endpoint, request_body
from manyhands.models.protocol import ChatRequest, ChatSettings
from manyhands.models.simulated.server import ServerOptions, SimulatedServer
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread
from tests.support.commands import Command, SimulatedProcess
from tests.support.eval_runs import perform_eval
from tests.support.job_folders import JobFolder
from tests.support.memory_benchmarks import opened, performed, write_configuration

COST, TOKENS = 1.0, 250_000
PRICES = "own/model: {input: 1, output: 5}\n"
BUDGETS: dict[str, dict[str, float]] = {
    "cost": {"max_cost": COST},
    "tokens": {"max_total_tokens": TOKENS},
    "both": {"max_cost": COST, "max_total_tokens": TOKENS},
}
FAULTS: dict[str, dict[str, float]] = {
    "none": {},
    "truncated": {"rate_truncated": 0.2},
    "500": {"rate_paid_500": 0.2},
    "unreadable": {"rate_unreadable": 0.2},
}
FILLING: dict[str, Any] = {"fill": True, "dense": True, "input_price": 1.0, "output_price": 5.0}
EXECUTORS = {"local": ["--executor=local"], "processes": ["--executor=processes", "--num_workers=2"]}
PIXELS = "data:image/png;base64," + base64.b64encode(bytes(3000)).decode()


@dataclass(frozen=True, slots=True)
class Attack:
    """One combination."""

    budget: str = "both"
    max_tokens: int | None = None
    executor: str = "local"
    content: str = "text"
    fault: str = "none"
    calls: int = 40
    times: float = 1.0
    """How large the budget is."""

    @property
    def server(self) -> dict[str, Any]:
        return {"latency": 0.05, **FILLING, **FAULTS[self.fault]}

    def limits(self, times: float) -> list[str]:
        return [f"--{name}={type(value)(times * value)}" for name, value in BUDGETS[self.budget].items()]

    def words(self, url: str) -> list[str]:
        """The options of the batch."""
        workers = 2 if self.executor == "processes" else 1
        words = [f"--base_url={url}", "--model=own/model", "--prices=prices.yaml", *EXECUTORS[self.executor]]
        words += [f"--concurrency={-(-self.calls // workers)}", "--max_turns=2"]
        words += self.limits(self.times)
        words += [] if self.max_tokens is None else [f"--max_tokens={self.max_tokens}"]
        words += ["--prefill_messages_file=images.json"] if self.content == "images" else []
        return words + (["--distribution=default"] if self.content == "tools" else [])


def made(path: Path, attack: Attack) -> BatchFolder:
    """A folder with prompts, prices and images."""
    text = "密密麻麻🀄" * (150 if attack.content == "text" else 1)
    folder = BatchFolder(path, [f"[simulate: tools=0] {number} {text}" for number in range(attack.calls)])
    (path / "prices.yaml").write_text(PRICES)
    images = [{"type": "image_url", "image_url": {"url": url}} for url in (PIXELS, "https://example.org/i.png")]
    (path / "images.json").write_text(json.dumps([{"role": "user", "content": images}]))
    return folder


def within(server: SimulatedProcess, attack: Attack, times: float) -> float:
    """The share of the budget that was used by the server's books, which pass no limit."""
    books: dict[str, Any] = server.stats()["used"]
    shares: list[float] = []
    if attack.budget != "tokens":
        shares.append(books["cost"] / (COST * times))
    if attack.budget != "cost":
        shares.append((books["input_tokens"] + books["output_tokens"]) / (TOKENS * times))
    assert max(shares) <= 1 + 1e-9, books
    return max(shares)


def attacked(path: Path, attack: Attack) -> None:
    """A run stops at its limit, stops there again when it is resumed, and then at a higher one."""
    folder = made(path, attack)
    with SimulatedProcess(path, **attack.server) as server:
        ran = folder.batch(*attack.words(server.base_url))
        assert within(server, attack, attack.times) > 0.4 or ran.code == 0, ran
        assert "internal error" not in ran.err
        assert folder.json("summary.json")["ledger"]["failed"] == 0
        again = folder.batch(*attack.words(server.base_url), "--resume")
        within(server, attack, attack.times)
        assert again.code == ran.code
        folder.batch(*attack.words(server.base_url), "--resume", *attack.limits(2 * attack.times))
        within(server, attack, 2 * attack.times)


def killed(path: Path, attack: Attack, kills: int) -> None:
    """A run is killed in the middle of its calls, as often as said, and resumed."""
    folder = made(path, attack)
    with SimulatedProcess(path, **{**attack.server, "latency": 0.2, "latency_jitter": 0.1}) as server:
        words = ["batch", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--sandbox=local", "--quiet"]
        words += ["--distribution=terminal_only", *attack.words(server.base_url)]
        for number in range(kills):
            before = server.count()
            with Command(*words, *(["--resume"] if number else []), folder=path) as command:
                command.wait_until(lambda: server.count() > before + 2 or not command.running)  # noqa: B023
                command.kill()
            within(server, attack, attack.times)
        ran = folder.batch(*attack.words(server.base_url), "--resume")
        within(server, attack, attack.times)
        assert "count as spent" in ran.err


QUICK = [
    Attack("cost"),
    Attack("tokens", max_tokens=300, content="tools", fault="500"),
    Attack("both", content="images", executor="processes"),
    Attack("both", max_tokens=2000, fault="truncated"),
    Attack("tokens", fault="unreadable"),
]


@pytest.mark.parametrize("attack", QUICK, ids=str)
def test_a_budget_is_never_passed(tmp_path: Path, attack: Attack) -> None:
    attacked(tmp_path, attack)


def test_a_budget_is_not_passed_over_kills(tmp_path: Path) -> None:
    killed(tmp_path, Attack("both", max_tokens=500, calls=12), kills=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        Attack(*each, calls=1000, times=20.0)
        for each in itertools.product(BUDGETS, (None, 700), EXECUTORS, ("text", "tools", "images"), FAULTS)
    ],
    ids=str,
)
def test_a_thousand_calls_at_once_never_pass_a_budget(tmp_path: Path, attack: Attack) -> None:
    attacked(tmp_path, attack)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("fault", FAULTS)
def test_many_kills_never_pass_a_budget(tmp_path: Path, budget: str, executor: str, fault: str) -> None:
    killed(tmp_path, Attack(budget, 500, executor, fault=fault, calls=100), kills=8)


# --- The other workloads


def test_a_jobs_budget_is_never_passed(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    job.write_rows([f"text {number}" for number in range(30)])
    (tmp_path / "prices.yaml").write_text(PRICES)
    with SimulatedProcess(tmp_path, **FILLING) as server:
        words = [f"--base_url={server.base_url}", "--model=own/model", "--prices=prices.yaml", "--toolsets=none"]
        ended = job.spawn(*words, "--max_concurrency=20", "--max_cost=0.5", "--executor=local")
        books = server.stats()["used"]
    assert ended.code == 1, ended
    assert 0.2 < books["cost"] <= 0.5


async def test_an_evals_budget_is_never_passed_with_its_judge(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    async with SimulatedServer(ServerOptions(**FILLING)) as server:
        model = {"provider": "model", "model": "own/model", "base_url": server.base_url}
        tests = [{"id": f"t{number}", "input": f"say {number}", "criteria": "good"} for number in range(40)]
        suite = {
            "targets": [{**model, "name": "asked", "judge_target": "judging"}, {**model, "name": "judging"}],
            "execution": {"target": "asked"},
            "tests": tests,
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        budget: dict[str, Any] = {"max_cost": 0.6, "workers": 20, "prices": str(tmp_path / "prices.yaml")}
        run = await perform_eval(tmp_path, **budget)
        assert run.summary["tests"]["pending"] > 0
        assert 0.3 < server.stats()["used"]["cost"] <= 0.6
        await perform_eval(tmp_path, resume=True, **budget)
        assert server.stats()["used"]["cost"] <= 0.6


async def test_a_memory_sessions_budget_is_never_passed_with_its_judge(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours", "restaurant"))
    (tmp_path / "prices.yaml").write_text(PRICES)
    async with SimulatedServer(ServerOptions(**FILLING)) as server:
        asked: dict[str, Any] = {
            "base_url": server.base_url,
            "judge_base_url": server.base_url,
            "judge_model": "own/model",
        }
        result = await performed(
            opened(tmp_path, "own/model", max_cost=0.3, prices=str(tmp_path / "prices.yaml"), **asked)
        )
        assert result.exit_code == 1
        assert 0.1 < server.stats()["used"]["cost"] <= 0.3


# --- Where no bound can be had


AGENT = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    print(json.dumps({"text": "I see.", "cost_usd": 0.4} if said["type"] == "message" else {}), flush=True)
"""


async def test_a_memory_agent_that_tells_its_cost_afterwards_passes_a_budget_by_one_message(tmp_path: Path) -> None:
    write_configuration(tmp_path, ("colours",))
    (tmp_path / "agent.py").write_text(AGENT)
    notices: list[str] = []
    asked: dict[str, Any] = {"max_cost": 0.5, "notices": notices}
    run = opened(tmp_path, f"command:{sys.executable} {tmp_path / 'agent.py'}", **asked)
    assert any("one message may pass --max_cost" in each for each in notices)
    result = await performed(run)
    assert result.summary["usage"]["cost"] == pytest.approx(0.8)
    assert (await performed(run)).summary["usage"]["cost"] == pytest.approx(0.8)


async def test_an_eval_says_which_costs_it_cannot_bound(tmp_path: Path) -> None:
    suite = {
        "targets": [{"name": "free", "provider": "cli", "command": "echo yes"}],
        "execution": {"target": "free", "budget_usd": 1},
        "tests": [{"id": "a", "input": "x", "assert": [{"type": "contains", "value": "yes"}]}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    run = await perform_eval(tmp_path)
    assert any("known only when they have ended" in each for each in run.said)


@contextmanager
def asked(folder: BatchFolder, reply: Callable[[RecordedRequest], Reply], *words: str) -> Iterator[tuple[Ran, int]]:
    """A batch of 20 prompts, all at once; and how many calls the server got."""
    folder.write_rows([f"prompt {number}" for number in range(20)])
    with ServerThread(reply) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--concurrency=20", "--keep_unreasoned", *words)
        yield ran, len(server.requests)


def used(prompt: int, answer: int, **more: Any) -> dict[str, Any]:
    """A reply that says what it used."""
    return {**chat_response("ok"), "usage": {"prompt_tokens": prompt, "completion_tokens": answer, **more}}


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path)


@pytest.mark.parametrize("limit", ["--max_cost=1000", "--max_total_tokens=1000000"])
def test_an_endpoint_that_ignores_max_tokens_ends_the_run_at_its_first_answer(folder: BatchFolder, limit: str) -> None:
    words = (limit, "--model=gpt-4o", "--max_tokens=100")
    with asked(folder, lambda request: used(50, 100_000), *words) as (ran, calls):
        assert (ran.code, calls) == (1, 1)
        assert "100,000 tokens, where max_tokens was 100" in ran.err
        assert "of $1000" in ran.err or "of 1,000,000" in ran.err
        assert folder.json("summary.json")["ledger"]["pending"] == 19


def test_a_context_window_below_the_default_bound_says_what_to_do(folder: BatchFolder) -> None:
    def reply(request: RecordedRequest) -> Reply:
        if request.body.get("max_tokens", 0) <= 1000:
            return used(50, 5)
        message = f"'max_tokens' is too large: {request.body['max_tokens']}. This model's maximum context length is 4096 tokens"
        return ScriptedResponse({"object": "error", "message": message, "code": 400}, status=400)

    words = ("--max_total_tokens=2000000", "--model=own/model")
    with asked(folder, reply, *words) as (ran, _):
        assert ran.code == 1
        assert "--max_tokens sets another bound, as a small context window needs" in ran.err
        failure = json.loads((folder.run() / "failures.jsonl").read_text().splitlines()[0])
        assert (
            "max_tokens is 8,192; --max_tokens sets another, on resume with --override=max_tokens" in failure["message"]
        )


def test_reasoning_that_is_counted_in_the_total_alone_counts(folder: BatchFolder) -> None:
    with asked(
        folder, lambda request: used(50, 5, total_tokens=9000), "--max_cost=1", "--model=gpt-4o", "--max_tokens=100"
    ) as (ran, calls):
        assert (ran.code, calls) == (1, 1)
        assert "8,950 tokens" in ran.err


def test_a_price_that_only_the_server_knows_is_learnt_from_one_call(folder: BatchFolder) -> None:
    with asked(folder, lambda request: used(7000, 500, cost=0.3), "--max_cost=1", "--model=own/model") as (ran, calls):
        assert "no price is known for own/model" in ran.err
        assert (ran.code, calls) == (1, 3)  # a fourth one would make it $1.20


def test_a_server_dearer_than_its_list_price_is_found_out_by_one_call(folder: BatchFolder) -> None:
    with asked(folder, lambda request: used(7000, 500, cost=0.3), "--max_cost=1", "--model=gpt-4o") as (ran, calls):
        assert (ran.code, calls) == (1, 3)
        assert "costs more than the price table says" in ran.err


def test_a_call_without_price_or_cost_ends_the_run(folder: BatchFolder) -> None:
    with asked(folder, lambda request: used(7000, 500), "--max_cost=1", "--model=own/model") as (ran, calls):
        assert (ran.code, calls) == (1, 1)
        assert "did not say what a call cost" in ran.err
        assert "--prices" in ran.err


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 5}, {"prompt_tokens": -5, "completion_tokens": 1e300}])
def test_an_answer_that_does_not_say_what_it_used_counts_as_its_worst_case(
    folder: BatchFolder, usage: dict[str, Any] | None
) -> None:
    reply = {**chat_response("ok"), "usage": usage}
    words = ("--max_total_tokens=40000", "--model=gpt-4o", "--max_tokens=3000")
    with asked(folder, lambda request: reply, *words) as (ran, calls):
        assert ran.code == 1
        assert 2 <= calls <= 40_000 // 9000
        assert "the most that calls without a readable answer used" in ran.err


def test_a_budget_below_one_call_says_so_at_once(folder: BatchFolder) -> None:
    with asked(folder, lambda request: used(1, 1), "--max_cost=0.01", "--model=gpt-4o") as (ran, calls):
        assert (ran.code, calls) == (1, 0)
        assert "an answer of gpt-4o has at most 8,192 tokens" in ran.err
        assert "a higher max_cost goes on from here, and another run with a lower max_tokens needs less" in ran.err


def test_max_tokens_is_sent_under_a_budget_alone_and_diverges_from_nothing(folder: BatchFolder) -> None:
    bodies: list[dict[str, Any]] = []

    def reply(request: RecordedRequest) -> Reply:
        bodies.append(request.body)
        if len(bodies) == 2:
            return ScriptedResponse({"error": {"message": "no credit left"}}, status=402)
        return used(10, 10)

    folder.write_rows(["one", "two"])
    with ServerThread(reply) as server:
        words = (f"--base_url={server.base_url}", "--model=gpt-4o", "--keep_unreasoned", "--num_workers=1")
        assert folder.batch(*words, "--concurrency=1").code == 1
        assert folder.batch(*words, "--resume", "--max_cost=5").code == 0
    assert [body.get("max_tokens") for body in bodies] == [None, None, 8192]


# --- The worst case of a request

CONTENT = st.text(max_size=200)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, CONTENT),
        st.just({"type": "image_url", "image_url": {"url": PIXELS}}),
    ),
    min_size=1,
    max_size=3,
)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(("system", "user")), "content": CONTENT | PARTS}),
        st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.text(max_size=9), "content": CONTENT}),
    ),
    min_size=1,
    max_size=5,
)
TOOLS = st.lists(
    st.builds(
        lambda name, text: {"type": "function", "function": {"name": name, "description": text, "parameters": {}}},
        CONTENT,
        CONTENT,
    ),
    max_size=3,
)


def tokens_of(value: Any) -> int:
    """A token for each byte of each text, and eight around each object; 1,500 for an image."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict):
        if value.get("type") == "image_url":
            return 1500
        return 8 + sum(tokens_of(each) for each in value.values())
    return sum(map(tokens_of, value)) if isinstance(value, list) else 0


@given(MESSAGES, TOOLS)
def test_no_request_has_more_tokens_than_are_reserved(messages: Any, tools: Any) -> None:
    model = OpenAIChatModel("http://h/v1")
    request = ChatRequest(ChatSettings("m", max_tokens=100), messages, tools)
    reserve = model.worst_case(request)
    assert reserve.output_tokens == 100
    assert reserve.tokens - 100 >= tokens_of(messages) + tokens_of(tools)
    if not any(isinstance(message["content"], list) for message in messages):
        assert reserve.tokens - 100 > len(dumps(request_body(request, Endpoint.of("http://h/v1"))))
