"""What an image's name means at its registry, asked there by ourselves, as Podman has no call for it.

One ``HEAD`` of the manifest: it transfers no layer, and registries that count pulls don't count it. Protocol: OCI Distribution 1.1, with
the token exchange that registries ask for by ``WWW-Authenticate: Bearer realm=…,service=…,scope=…``.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import orjson

from manyhands.network.addresses import read_host
from manyhands.network.connecting import Refused, Unreachable, connectable_addresses
from manyhands.network.rules import NetworkRules

Credentials = Callable[[str], tuple[str, str] | None]
"""User and password for a repository."""
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_SECONDS = 30.0
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_MAX_TOKEN_BYTES = 1_000_000


class RegistryError(Exception):
    """A registry did not answer, or not as one does; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of an image's name."""

    host: str
    """Empty for a short name."""
    path: str
    tag: str = "latest"
    digest: str | None = None

    @property
    def repository(self) -> str:
        return f"{self.host}/{self.path}" if self.host else self.path


def parsed(reference: str) -> Name:
    """``[HOST/]PATH[:TAG][@sha256:…]``; the first part is a host if it has a dot or a colon, or is ``localhost``."""
    rest, _, digest = reference.partition("@")
    host, slash, path = rest.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = "", rest
    path, _, tag = path.partition(":")
    return Name(host, path, tag or "latest", digest or None)


async def digest_of(
    name: Name, *, insecure: Iterable[str] = (), credentials: Credentials = lambda repository: None
) -> str | None:
    """The digest of the manifest (or list of manifests) that a name means; None if the registry has no such image, or does not give it to
    this person. ``insecure``: hosts that may be spoken to without TLS; those on this machine always may. ``credentials`` is called in a
    thread. Raises RegistryError."""
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        problem = ""
        for base in _bases(name.host, set(insecure)):
            try:
                return await _asked(session, base, name, await asyncio.to_thread(credentials, name.repository))
            except (aiohttp.ClientError, OSError, TimeoutError, RegistryError) as error:
                if not problem or isinstance(error, RegistryError):
                    problem = f"{base}: {error or type(error).__name__}"
    raise RegistryError(problem)


def _bases(host: str, insecure: set[str]) -> list[str]:
    """Where a host's registry may answer. Some have it under another name than images are called by."""
    loopback = host.partition(":")[0] in ("localhost", "127.0.0.1", "[::1]")
    bases = [f"https://{host}"]
    if host in insecure or loopback:
        bases.append(f"http://{host}")
    return bases if loopback or ":" in host else [*bases, f"https://registry-1.{host}"]


async def _asked(session: aiohttp.ClientSession, base: str, name: Name, known: tuple[str, str] | None) -> str | None:
    url = f"{base}/v2/{name.path}/manifests/{name.digest or name.tag}"
    headers = {"Accept": MANIFESTS}
    async with session.head(url, headers=headers) as response:
        challenge = response.headers.get("WWW-Authenticate", "")
        if response.status != 401:
            return _read(response)
    headers["Authorization"] = await _authorization(session, challenge, known, base)
    async with session.head(url, headers=headers) as response:
        return _read(response)


def _read(response: aiohttp.ClientResponse) -> str | None:
    if response.status in (401, 403, 404):
        if response.status == 404 and not _is_registry(response):
            raise RegistryError("its answer is not a registry's")
        return None
    digest = response.headers.get("Docker-Content-Digest", "")
    if response.status != 200 or not _DIGEST.match(digest):
        raise RegistryError(f"status {response.status}, {'no digest' if response.status == 200 else response.reason}")
    return digest


def _is_registry(response: aiohttp.ClientResponse) -> bool:
    said = response.headers
    return "Docker-Distribution-Api-Version" in said or "json" in response.content_type


async def _authorization(
    session: aiohttp.ClientSession, challenge: str, known: tuple[str, str] | None, base: str
) -> str:
    scheme, _, rest = challenge.partition(" ")
    basic = "" if known is None else f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"
    if scheme.lower() == "basic":
        return basic
    said = dict(_PARAMETER.findall(rest))
    realm = said.pop("realm", "")
    if scheme.lower() != "bearer" or not realm.startswith(("https://", "http://")):
        raise RegistryError(f"it asks for an authentication of an unknown kind ({scheme[:40] or 'none'})")
    check_realm(realm, secure=base.startswith("https:"))
    await check_reach(realm, base)
    asked = {key: value for key, value in said.items() if key in ("service", "scope")}
    headers = {"Authorization": basic} if basic else {}
    async with session.get(realm, params=asked, headers=headers, allow_redirects=False) as response:
        if response.status != 200:
            return ""
        content = bytearray()
        async for chunk in response.content.iter_chunked(_MAX_TOKEN_BYTES):
            content += chunk
            if len(content) > _MAX_TOKEN_BYTES:
                raise RegistryError(f"its token has more than {_MAX_TOKEN_BYTES:,} bytes")
    return f"Bearer {_token(bytes(content))}"


def check_realm(realm: str, *, secure: bool) -> None:
    """Raises RegistryError for a service of tokens without TLS that a registry names which was asked over TLS (``secure``):
    a password would be sent for everybody to read."""
    if secure and not realm.startswith("https://"):
        raise RegistryError("it wants credentials sent without TLS")


async def check_reach(realm: str, base: str) -> None:
    """Raises RegistryError for a service of tokens with a private address that a public registry names: whoever writes an image's name
    into a dataset would reach it by us, and get what it answers."""
    host, own = urlsplit(realm).hostname or "", urlsplit(base).hostname or ""
    if host != own and await _is_public(own) and not await _is_public(host):
        raise RegistryError(f"it names {host} for tokens, which is not public")


async def _is_public(host: str) -> bool:
    try:
        await connectable_addresses(read_host(host), NetworkRules.web(private=False))
    except (Refused, Unreachable, ValueError):
        return False
    return True


def _token(content: bytes) -> str:
    try:
        said = orjson.loads(content)
    except ValueError as error:
        raise RegistryError("its token can't be read") from error
    token = said.get("token") or said.get("access_token") if isinstance(said, Mapping) else None
    if not isinstance(token, str):
        raise RegistryError("it gave no token")
    return token
