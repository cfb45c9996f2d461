"""What an image's name means at a registry, asked by ourselves, with the credentials of a person's configuration."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from manyhands.core.redaction import KNOWN
from manyhands.sandboxes.containers.credentials import credentials
from manyhands.sandboxes.containers.registry import (
    Name,
    RegistryError,
    check_reach,
    check_realm,
    digest_of,
    parsed,
)

DIGEST = "sha256:" + "ab" * 32
Answer = Callable[[web.Request], Awaitable[web.Response]]


class Registry:
    """A registry that asks for a token, and its token service."""

    def __init__(self) -> None:
        self.user = base64.b64encode(b"me:secret-word").decode()
        self.asked: list[str] = []
        self.host = ""
        self.tokens = "token"
        """The path of the token service."""

    async def manifest(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        if request.headers.get("Authorization") != "Bearer the-token":
            challenge = (
                f'Bearer realm="http://{self.host}/{self.tokens}",service="it",scope="repository:private/app:pull"'
            )
            return web.json_response({"errors": []}, status=401, headers={"WWW-Authenticate": challenge})
        if request.match_info["tag"] == "missing":
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        return web.Response(
            headers={"Docker-Content-Digest": DIGEST, "Content-Type": "application/vnd.oci.image.index.v1+json"}
        )

    async def token(self, request: web.Request) -> web.StreamResponse:
        assert request.query == {"service": "it", "scope": "repository:private/app:pull"}
        if request.headers.get("Authorization") != f"Basic {self.user}":
            return web.json_response({"details": "no"}, status=401)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in (b'{"access_token": "the-', b'token"}'):  # as it comes in two segments
            await answer.write(piece)
            await asyncio.sleep(0.02)
        return answer

    async def moved(self, request: web.Request) -> web.Response:
        self.asked.append("moved")
        return web.Response(status=302, headers={"Location": f"http://{self.host}/internal"})

    async def internal(self, request: web.Request) -> web.Response:
        self.asked.append("internal")
        return web.json_response({"token": "not for a registry"})

    async def other(self, request: web.Request) -> web.Response:
        return web.Response(text="<html>a shop</html>", content_type="text/html", status=404)


@pytest_asyncio.fixture
async def registry() -> AsyncIterator[Registry]:
    made, app = Registry(), web.Application()
    app.router.add_route("*", "/v2/private/app/manifests/{tag}", made.manifest)
    app.router.add_get("/token", made.token)
    app.router.add_get("/moved", made.moved)
    app.router.add_get("/internal", made.internal)
    app.router.add_route("*", "/{rest:.*}", made.other)
    async with TestServer(app) as server:
        made.host = f"127.0.0.1:{server.port}"
        yield made


async def test_a_token_is_fetched_with_the_persons_credentials(registry: Registry) -> None:
    name = Name(registry.host, "private/app", "1")
    assert await digest_of(name, credentials=lambda repository: ("me", "secret-word")) == DIGEST
    assert registry.asked == ["HEAD", "HEAD"]
    assert (
        await digest_of(
            Name(registry.host, "private/app", "missing"), credentials=lambda repository: ("me", "secret-word")
        )
        is None
    )


async def test_a_service_of_tokens_sends_us_nowhere(registry: Registry) -> None:
    registry.tokens = "moved"
    assert await digest_of(Name(registry.host, "private/app", "1")) is None
    assert registry.asked == ["HEAD", "moved", "HEAD"]
    await check_reach("https://9.9.9.9/token", "https://8.8.8.8")
    for private in ("https://10.0.0.1/token", "https://127.0.0.1/token", "https://169.254.169.254/", "https://[::1]/"):
        with pytest.raises(RegistryError, match="not public"):
            await check_reach(private, "https://8.8.8.8")
        await check_reach(private, "https://10.0.0.2")  # a private registry has private services


async def test_an_image_that_is_not_given_is_not_there(registry: Registry) -> None:
    assert await digest_of(Name(registry.host, "private/app", "1")) is None
    assert (
        await digest_of(Name(registry.host, "private/app", "1"), credentials=lambda repository: ("me", "wrong")) is None
    )


async def test_what_is_no_registry_is_no_answer(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="not a registry"):
        await digest_of(Name(registry.host, "else/where", "1"))


def test_a_registry_asked_over_tls_gets_no_password_sent_in_the_clear() -> None:
    with pytest.raises(RegistryError, match="without TLS"):
        check_realm("http://tokens.example/token", secure=True)
    check_realm("https://tokens.example/token", secure=True)
    check_realm("http://127.0.0.1/token", secure=False)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("python", Name("", "python", "latest")),
        ("library/python:3.12", Name("", "library/python", "3.12")),
        ("registry.example:5000/a/b", Name("registry.example:5000", "a/b", "latest")),
        ("localhost/a:1", Name("localhost", "a", "1")),
        (f"registry.example/a:1@{DIGEST}", Name("registry.example", "a", "1", DIGEST)),
    ],
)
def test_names_are_taken_apart(reference: str, name: Name) -> None:
    assert parsed(reference) == name


def _auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def test_credentials_are_the_engines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-kept"
    helper.write_text(
        '#!/bin/sh\nread key\n[ "$key" = helped.example ] && printf \'{"Username": "h", "Secret": "helper-secret"}\'\n'
    )
    helper.chmod(0o755)
    auths = {"https://index.registry.example/v1/": _auth("hub:hub-secret"), "registry.example": _auth("a:of-the-host")}
    auths["registry.example/team"] = _auth("b:of-the-team")
    content = {"auths": auths, "credHelpers": {"helped.example": "kept", "bad.example": "../../bin/sh"}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert credentials("docker", "python") == ("hub", "hub-secret")
    assert credentials("docker", "registry.example/other/app") == ("a", "of-the-host")
    assert credentials("docker", "registry.example/team/app") == ("b", "of-the-team")
    assert credentials("docker", "helped.example/app") == ("h", "helper-secret")
    assert credentials("docker", "bad.example/app") is None
    assert credentials("docker", "unknown.example/app") is None
    assert "of-the-team" not in KNOWN.text("of-the-team")


def test_podmans_own_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"registry.example": _auth("p:podman-secret")}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    assert credentials("podman", "registry.example/app") == ("p", "podman-secret")
