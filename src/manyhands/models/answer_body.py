"""The body of an HTTP answer, up to a bound."""

from __future__ import annotations

import aiohttp


class TooLarge(ValueError):
    """The body passes the bound."""


async def answer_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """All of an answer's body, unpacked. Raises TooLarge, and what aiohttp raises."""
    chunks: list[bytes] = []
    size = 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > max_bytes:
            response.close()
            raise TooLarge(f"the answer is larger than {max_bytes:,} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
