"""Fakes of the services that make pictures, which count what they would bill."""

from __future__ import annotations

import base64
from typing import Any

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.picture_files import picture


class PictureService:
    """All three kinds behind one server, and chat completions that see. ``price``: US dollars for a picture."""

    def __init__(self, price: float = 0.04, data: bytes | None = None) -> None:
        self.price = price
        self.data = data or picture(size=(48, 32))
        self.made = 0
        """Pictures that would be billed."""
        self.polls = 0
        self.base_url = ""

    @property
    def bill(self) -> float:
        return self.made * self.price

    def __call__(self, request: RecordedRequest) -> Reply:
        path = request.path
        if path.endswith("/images/generations"):
            return self._openai()
        if path.endswith("/chat/completions") and "modalities" in request.body:
            return self._chat()
        if path.endswith("/status"):
            self.polls += 1
            return ScriptedResponse({"status": "IN_PROGRESS"}, 202) if self.polls % 2 else {"status": "COMPLETED"}
        if "/requests/" in path:
            return {"images": [{"url": f"{self.base_url}/files/1.png", "width": 48, "height": 32}]}
        if "/files/" in path:
            return ScriptedResponse(self.data)
        self.made += 1
        name = f"r{self.made}"
        own = f"{self.base_url}{path.removeprefix('/v1')}/requests/{name}"
        return {"request_id": name, "status_url": f"{own}/status", "response_url": own}

    def _openai(self) -> dict[str, Any]:
        self.made += 1
        coded = base64.b64encode(self.data).decode()
        return {"data": [{"b64_json": coded}], "usage": {"input_tokens": 10, "output_tokens": 1000}}

    def _chat(self) -> dict[str, Any]:
        self.made += 1
        url = "data:image/png;base64," + base64.b64encode(self.data).decode()
        answer = chat_response("Here it is.", images=[{"type": "image_url", "image_url": {"url": url}}])
        answer["usage"] = {"prompt_tokens": 10, "completion_tokens": 1000, "cost": self.price}
        return answer
