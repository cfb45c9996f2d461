"""Embeddings from an endpoint: what is tried again, and what is not."""

from __future__ import annotations

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.models.openai.embeddings import OpenAIEmbeddings
from manyhands.testing.context import NoLimits
from tests.support.embedding_server import EmbeddingServer


class Pauses(SystemClock):
    """A clock that only notes how long it is to sleep."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize(
    ("status", "cause"),
    [(307, Cause.MODEL_REFUSED), (401, Cause.AUTHENTICATION), (402, Cause.PAYMENT), (404, Cause.MODEL_REFUSED)],
)
async def test_an_endpoint_that_refuses_is_not_asked_again(status: int, cause: Cause) -> None:
    async with EmbeddingServer([status]).serving() as server:
        embeddings = OpenAIEmbeddings(server.url, "small")
        with pytest.raises(ItemError, match=rf"the embeddings endpoint answered {status}: not now$") as caught:
            await embeddings.embed("text", NoLimits(), SystemClock())
        assert (caught.value.cause, len(server.asked)) == (cause, 1)
        await embeddings.close()


async def test_what_passes_is_tried_again_after_longer_and_longer_pauses() -> None:
    clock = Pauses()
    async with EmbeddingServer([503, 429, 500, 529, 429, 503, 408]).serving() as server:
        embeddings = OpenAIEmbeddings(server.url, "small")
        with pytest.raises(ItemError, match=r"answered 529 4 times: not now$") as caught:
            await embeddings.embed("text", NoLimits(), clock)
        assert (caught.value.cause, clock.seconds) == (Cause.RATE_LIMIT, [2.0, 4.0, 8.0])
        vector, usage = await embeddings.embed("The cat.", NoLimits(), clock)
        assert (vector, usage.input_tokens, len(server.asked)) == ([1.0, 0.0, 0.0, 0.1], 7, 8)
        await embeddings.close()


async def test_an_endpoint_that_is_not_there_costs_nothing() -> None:
    embeddings = OpenAIEmbeddings("http://127.0.0.1:9", "small")
    with pytest.raises(ItemError, match=r"answered 502 4 times: ClientConnectorError") as caught:
        await embeddings.embed("text", NoLimits(), Pauses())
    assert caught.value.cause is Cause.MODEL_ERROR
    await embeddings.close()
