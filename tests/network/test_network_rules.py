"""Which hosts and addresses the rules allow."""

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.network.addresses import Address, read_host, why_not_public
from manyhands.network.connecting import Refused, allowed_addresses
from manyhands.network.rules import NetworkRules, public_alone, read_rules, tightened

PUBLIC = ("1.1.1.1", "8.8.8.8", "172.32.0.1", "192.169.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1")
NOT_PUBLIC = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.251"),
    *("255.255.255.255", "240.0.0.1", "192.0.2.1", "192.88.99.1"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::1.1.1.1"),
    *("64:ff9b::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:101:101::", "2001:0:7f00:1::"),
    *("fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "4000::1"),
    *("2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:10.0.0.1", "3fff::1", "5f00::1", "::ffff:0:127.0.0.1"),
)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text: str) -> None:
    assert why_not_public(ip_address(text)) is None


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_other_addresses(text: str) -> None:
    assert why_not_public(ip_address(text)) is not None
    assert NetworkRules.all().address(ip_address(text), "name.example") is not None


def test_an_address_behind_a_translation_is_judged_by_what_it_leads_to() -> None:
    assert why_not_public(ip_address("64:ff9b::1.1.1.1")) is None
    assert why_not_public(ip_address("::ffff:1.1.1.1")) is None


@given(st.ip_addresses())
def test_nothing_is_public_that_python_knows_as_private(address: Address) -> None:
    if why_not_public(address) is None:
        plain = getattr(address, "ipv4_mapped", None) or address
        translated = plain in ipaddress.ip_network("64:ff9b::/96")
        assert translated or not (plain.is_private or plain.is_loopback or plain.is_link_local or plain.is_multicast)


@given(st.ip_addresses(v=4))
def test_forms_of_ipv6_never_open_an_ipv4_address(address: IPv4Address) -> None:
    number = int(address)
    forms = [
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1",
        f"::{address}",
    ]
    if why_not_public(address) is not None:
        assert all(why_not_public(ip_address(form)) is not None for form in forms)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "127.1",
            "127.0.1",
            "1.1.1.1.",
            "1.1.1.01",
            "256.1.1.1",
        ),
        *(
            "1.1.1",
            "1.1.1.1.1",
            "[::1",
            "::1%lo",
            "[fe80::1%25eth0]",
            "fe80::1%eth0",
            "[127.0.0.1]",
            "[::ffff:127.0.0.1.]",
        ),
        *("", ".", "..", "a..b", ".a", "a b", "a_b.example:80", "a/b", "user@a", "a%00b", "a\0b", "a\nb", "-a.example"),
        *("x" * 64, ".".join(["x" * 60] * 5), "①②⑦.0.0.1", "1。1。1。01", "a.0x1f", "example.1", "\u2024"),
    ],
)
def test_hosts_that_are_not_read(text: str) -> None:
    with pytest.raises(ValueError):
        read_host(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example.", "xn--bcher-kva.example"),
        ("ｅxample。com", "example.com"),
        ("under_score.example", "under_score.example"),
        ("localhost", "localhost"),
        ("127.0.0.1", ip_address("127.0.0.1")),
        ("[::1]", ip_address("::1")),
        ("::FFFF:10.0.0.1", ip_address("10.0.0.1")),
        ("①.①.①.①", None),
    ],
)
def test_hosts_in_their_one_form(text: str, host: Address | str | None) -> None:
    if host is None:
        with pytest.raises(ValueError):
            read_host(text)
    else:
        assert read_host(text) == host


@given(st.text(st.sampled_from("0123456789abcdefxX.:[]%@-"), max_size=24))
def test_what_is_read_as_a_name_is_no_address_to_the_system(text: str) -> None:
    """Whatever the system's own function takes for an IPv4 address is refused here, or is the same address."""
    try:
        host = read_host(text)
    except ValueError:
        return
    try:
        system = socket.inet_aton(text)
    except OSError:
        return
    assert isinstance(host, IPv4Address)
    assert host.packed == system


@pytest.mark.parametrize(
    ("rules", "host", "allowed"),
    [
        ((), "example.com", False),
        ((), "1.1.1.1", False),
        (("example.com",), "example.com", True),
        (("Example.COM.",), "example.com", True),
        (("example.com",), "www.example.com", False),
        (("example.com",), "example.com.evil.org", False),
        (("example.com",), "notexample.com", False),
        (("*.example.com",), "a.example.com", True),
        (("*.example.com",), "a.b.example.com", True),
        (("*.example.com",), "example.com", False),
        (("*.example.com",), "badexample.com", False),
        (("bücher.example",), "xn--bcher-kva.example", True),
        (("1.1.1.1",), "1.1.1.1", True),
        (("1.1.1.1",), "1.1.1.2", False),
        (("1.1.0.0/16",), "1.1.255.1", True),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("::ffff:10.0.0.0/104",), "10.1.2.3", True),
        (("10.1.2.3",), "10.1.2.4", False),
        (("8.0.0.0/5",), "10.1.2.3", False),
        (("0.0.0.0/1",), "127.0.0.1", False),
        (("0.0.0.0/1",), "8.8.8.8", True),
        (("::1",), "::1", True),
        (("[::1]",), "::1", True),
        (("127.0.0.1",), "::1", False),
        (("::/1",), "::1", False),
        (("fd00::/8",), "fd00:ec2::254", True),
    ],
)
def test_rules(rules: tuple[str, ...], host: str, allowed: bool) -> None:
    found = read_host(host)
    assert (NetworkRules.read(rules).host(found) is None) == allowed
    if not isinstance(found, str):
        assert (NetworkRules.read(rules).address(found) is None) == allowed


def test_a_name_says_nothing_of_its_addresses() -> None:
    rules = NetworkRules.read(["example.com"])
    assert rules.address(ip_address("93.184.216.34"), "example.com") is None
    assert rules.address(ip_address("10.0.0.1"), "example.com") is not None
    assert NetworkRules.read(["example.com", "10.0.0.1"]).address(ip_address("10.0.0.1"), "example.com") is None


@pytest.mark.parametrize(
    "word",
    [
        *(
            "*",
            "0.0.0.0/0",
            "::/0",
            "http://example.com",
            "example.com/path",
            "example.com:443",
            "[::1]:80",
            "a b",
            "*.*.b",
        ),
        *(
            "127.1",
            "0x7f000001",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "fe80::1%eth0",
            "fe80::%eth0/10",
            "*.",
            "ex*mple.com",
            "user@a.b",
        ),
    ],
)
def test_bad_rules_are_named(word: str) -> None:
    with pytest.raises(UserError) as caught:
        read_rules(["good.example", word])
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"--network_allow {word!r} ")


def test_tightening() -> None:
    run = NetworkRules.read(["*.example.com", "api.other.org", "10.0.0.0/8"])
    row = NetworkRules.read(["a.example.com", "*.other.org", "evil.org", "10.1.0.0/16", "8.8.8.8"])
    assert set(row.within(run).words) == {"a.example.com", "api.other.org", "10.1.0.0/16"}
    assert NetworkRules.read(["a.org", "8.8.8.8", "10.0.0.1"]).within(NetworkRules.all()).words == ("a.org", "8.8.8.8")
    assert NetworkRules.read(["a.org"]).within(NetworkRules()).words == ()
    assert tightened(["*.a.example", "b.example"], ["x.a.example", "B.Example."]) == ("b.example", "x.a.example")
    assert tightened(["*.a.example"], ["*.b.a.example", "a.example"]) == ("*.b.a.example",)


def test_rules_of_somebody_else_open_nothing_private() -> None:
    theirs = ["files.example", "*.pages.example", "127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8", "8.8.8.8", "8.0.0.0/5"]
    rules = NetworkRules.read(public_alone(theirs))
    assert rules.words == ("files.example", "*.pages.example", "8.8.8.8", "8.0.0.0/5")
    assert rules.address(ip_address("10.0.0.1"), "files.example") is not None


async def test_of_a_name_with_several_addresses_only_the_allowed_ones_are_tried() -> None:
    async def mixed(name: str) -> list[str]:
        return ["10.0.0.1", "::1", "1.1.1.1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "2606:4700::1111"]

    rules = NetworkRules.read(["mixed.example"])
    found = await allowed_addresses("mixed.example", rules, mixed)
    assert found == [IPv4Address("1.1.1.1"), IPv6Address("2606:4700::1111")]


async def test_no_address_of_an_unlisted_name_is_looked_up() -> None:
    async def never(name: str) -> list[str]:
        raise AssertionError(name)

    with pytest.raises(
        Refused, match=r"^secret\.evil\.example is not among the hosts that --network_allow lists \(a\.example\)$"
    ):
        await allowed_addresses("secret.evil.example", NetworkRules.read(["a.example"]), never)
