"""How many tokens a request may be counted as, at most.

A token is at least one byte of text for every tokenizer that works on bytes or falls back to them (byte-level BPE, SentencePiece with byte
fallback), so that the bytes of the request, with all names and marks of its JSON, are more than the tokens of its texts. What a provider
adds of its own (marks around messages, its instructions for tools) has stated allowances; in practice text has three to four bytes to a
token, which is room for much more. Pictures, recordings and files are counted apart, because their bytes are no text.
"""

from __future__ import annotations

from typing import Any

from manyhands.core.jsonio import dumps
from manyhands.models.protocol import ChatRequest

CALL_TOKENS, MESSAGE_TOKENS, TOOL_TOKENS = 64, 16, 32
"""Allowed besides the bytes: for each call, for each of its messages, for each tool that is declared."""
IMAGE_TOKENS, LARGE_IMAGE_TOKENS = 4800, 50_000
"""What a picture counts as: the most that providers take for one (Claude's largest), and the most for models and for a ``detail`` that
are known to take more (gpt-4o-mini, ``original``)."""
FILE_TOKENS = 1_000_000
"""What any other attachment that is no text counts as, as its length is not known: a whole context."""
_DETAILS = (None, "auto", "low", "high")


def input_tokens(request: ChatRequest, body: bytes) -> int:
    """Tokens of a request at most. ``body``: as it is sent."""
    bound = len(body) + CALL_TOKENS + MESSAGE_TOKENS * len(request.messages) + TOOL_TOKENS * len(request.tools)
    for message in request.messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") != "text":
                bound += _attached(part, request.settings.model)
    return bound


def _attached(part: dict[str, Any], model: str) -> int:
    """What an attachment counts as, less the bytes of its part."""
    size = len(dumps(part))
    if part.get("type") == "input_audio":  # a second of sound has thousands of bytes, and a hundred tokens at most
        return 0
    if part.get("type") not in ("image_url", "image", "input_image"):
        return max(0, FILE_TOKENS - size)
    image = part.get("image_url")
    detail = image.get("detail") if isinstance(image, dict) else part.get("detail")
    large = "gpt-4o-mini" in model or detail not in _DETAILS
    return (LARGE_IMAGE_TOKENS if large else IMAGE_TOKENS) - size
