"""A person's own headers: read, kept out of records, found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.models.headers import as_secrets, headers_among, read_headers, secrets_in, usable_headers
from manyhands.models.settings import ModelSettings
from tests.support.batches import BatchFolder, ServerThread, run_command

NAMES = st.from_regex(r"X-[A-Za-z0-9-]{1,20}", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40).filter(
    lambda text: "${" not in text
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_given_is_sent_and_its_values_are_not_kept(headers: dict[str, str]) -> None:
    kept = {name.lower(): name for name in headers}
    given_headers = read_headers([f"{name}: {value}" for name, value in headers.items()])
    assert given_headers == read_headers(headers)
    sent = usable_headers(given_headers, None, {})
    assert {name.lower() for name in sent} == kept.keys()
    assert all(headers[name] == value for name, value in sent.items())
    assert [header.recorded for header in given_headers or ()] == list(sent)
    assert headers_among(as_secrets(sent, "key"), "key") == sent
    settings = ModelSettings(header=headers)
    assert settings.recorded()["recorded_headers"] is None
    assert "value=" not in repr(settings.header)


def test_variables_are_recorded_and_looked_up() -> None:
    headers = read_headers(["Authorization: Bearer ${TOKEN}", "X-Plain: plain", "X-Mixed: secret-${TOKEN}"])
    recorded = [header.recorded for header in headers or ()]
    assert recorded == ["Authorization: Bearer ${TOKEN}", "X-Plain", "X-Mixed"]
    assert usable_headers(headers, None, {"TOKEN": "t"})["X-Mixed"] == "secret-t"
    assert usable_headers(None, recorded[:1], {"TOKEN": "u"}) == {"Authorization": "Bearer u"}
    with pytest.raises(UserError, match="the environment variable TOKEN is not set"):
        usable_headers(None, recorded[:1], {})
    with pytest.raises(UserError, match="give them again, --header='X-Plain: …' --header='X-Mixed: …'"):
        usable_headers(None, recorded, {"TOKEN": "t"})


@pytest.mark.parametrize(
    "wrong",
    ["no colon", ": value", "X Y: z", "X-A:", "X-A: a\nX-B: b", "Host: h", "content-length: 3", "X-A: ä", [3]],
)
def test_wrong_headers_are_refused_without_their_values(wrong: object) -> None:
    with pytest.raises(ValueError) as caught:
        read_headers(wrong)
    assert "z" not in str(caught.value)


def test_only_what_looks_like_a_secret_is_taken_out_of_texts() -> None:
    headers = {"X-Team": "production", "X-Api-Key": "short-key", "Authorization": "Bearer abcdef", "X-Id": "a1" * 12}
    assert set(secrets_in(headers)) == {"short-key", "Bearer abcdef", "abcdef", "a1" * 12}


@pytest.mark.parametrize("url", ["http://h/v1?api_key=x", "http://h/v1?sig=x", "http://h/v1?subscription-key=x"])
def test_a_key_in_a_base_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="give it with --api_key or --header"):
        ModelSettings.make({"base_url": url}, lambda name: f"--{name}")
    versioned = "http://h/v1?api-version=2024-10-21"
    assert ModelSettings(base_url=versioned).base_url == versioned


def test_a_resume_finds_a_header_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = BatchFolder(tmp_path)
    monkeypatch.setenv("GATEWAY_KEY", "first-0123456789")
    with ServerThread() as server:
        words = (f"--base_url={server.base_url}", "--header=X-Gateway-Key: ${GATEWAY_KEY}", "--max_samples=1")
        assert folder.batch(*words).code == 0
        monkeypatch.setenv("GATEWAY_KEY", "second-0123456789")
        ran = run_command(tmp_path, "resume", "r", "--max_samples=2", "--quiet")
        assert ran.code == 0, ran
        sent = [each.headers["X-Gateway-Key"] for each in server.requests]
    assert sent == ["first-0123456789", "second-0123456789"]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"0123456789" not in kept
    assert json.dumps("X-Gateway-Key: ${GATEWAY_KEY}").encode() in kept
