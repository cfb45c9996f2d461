"""What commands in a sandbox that may reach a few hosts try, and what comes of it: the same for every kind of sandbox.

Two servers stand for all others. The allowed one is at 127.0.0.2, which is listed; the secret one at 127.0.0.1, which is not. Commands know
their ports by the variables ALLOWED and SECRET.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALLOWED_ADDRESS, SECRET_ADDRESS = "127.0.0.2", "127.0.0.1"
RULES = (
    *("files.example", "*.pages.example", ALLOWED_ADDRESS),
    *("gone.example", "mixed.example", "fickle.example", "inner.example"),
)
NAMES: Mapping[str, Sequence[Sequence[str]]] = {
    "files.example": [[ALLOWED_ADDRESS]],
    "a.pages.example": [[ALLOWED_ADDRESS]],
    "pages.example": [[ALLOWED_ADDRESS]],
    "evil.example": [[ALLOWED_ADDRESS]],
    "inner.example": [[SECRET_ADDRESS]],
    "mixed.example": [[SECRET_ADDRESS, "::ffff:127.0.0.1", "10.0.0.1", ALLOWED_ADDRESS]],
    "fickle.example": [[ALLOWED_ADDRESS], [SECRET_ADDRESS]],
}
PROXY = "127.0.0.1/13128"
NEVER = "ESCAPED"


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, and what it must print."""

    name: str
    command: str
    said: tuple[str, ...]
    """What is in its output."""
    reaches: bool = False
    """Whether it reaches the server that is allowed. Nothing ever reaches the other one."""


def raw(*lines: str, then: str = "cat") -> str:
    """Lines for the proxy, as they are; then what it answers."""
    text = "\\r\\n".join(lines)
    return f'exec 3<>/dev/tcp/{PROXY}; printf "{text}" >&3; timeout 8 {then} <&3; exec 3>&-'


def python(code: str) -> str:
    return f"/usr/bin/python3 - <<'END'\nimport os, socket\n{code}\nEND"


def refused(family: str, addresses: str, *, kind: str = "SOCK_STREAM", do: str = "client.connect(address)") -> str:
    """That nothing comes of ``do`` with any of these addresses."""
    return python(f"""\
secret, allowed, udp = (int(os.environ[name]) for name in ("SECRET", "ALLOWED", "UDP"))
abstract, path = os.environ["ABSTRACT"], os.environ["SOCKET"]
for address in {addresses}:
    try:
        with socket.socket(socket.{family}, socket.{kind}) as client:
            client.settimeout(1)
            {do}
        print("{NEVER}", address)
    except (OSError, ValueError) as error:
        print("nothing", type(error).__name__)
print("tried")""")


CURL = "curl -sS -m 10"
_NOTATIONS = (
    *(
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "127.0.0.1.",
    ),
    *(
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
    ),
    *(
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[::1%25lo]",
        "[fe80::1%lo]",
        "%31%32%37.0.0.1",
        "①②⑦.0.0.1",
    ),
)
_PRIVATE = (
    *("169.254.169.254", "100.100.100.200", "168.63.129.16", "10.0.0.1", "172.16.0.1", "192.168.0.1", "224.0.0.1"),
    *("[fd00:ec2::254]", "[fe80::1]"),
)

CASES = (
    # What is allowed
    Case("http", f"{CURL} http://files.example:$ALLOWED/a?b=c", ("allowed: GET /a?b=c HTTP/1.1",), reaches=True),
    Case("connect", f"{CURL} -p http://files.example:$ALLOWED/x", ("allowed: GET /x HTTP/1.1",), reaches=True),
    Case("below-a-name", f"{CURL} http://A.Pages.EXAMPLE.:$ALLOWED/", ("allowed: GET /",), reaches=True),
    Case("an-address", f"{CURL} http://127.0.0.2:$ALLOWED/", ("allowed: GET /",), reaches=True),
    Case("one-of-several-addresses", f"{CURL} http://mixed.example:$ALLOWED/", ("allowed: GET /",), reaches=True),
    Case(
        "from-python",
        python(
            "from urllib.request import urlopen\n"
            "print(urlopen('http://files.example:' + os.environ['ALLOWED'] + '/p', timeout=9).read().decode())"
        ),
        ("allowed: GET /p",),
        reaches=True,
    ),
    # What is not
    Case(
        "another-name",
        f"{CURL} http://evil.example:$ALLOWED/",
        ("evil.example is not among the hosts", "--network_allow"),
    ),
    Case(
        "another-name-by-connect",
        f"{CURL} -v -p http://evil.example:$ALLOWED/ 2>&1",
        ("403 evil.example is not among the hosts that --network_allow lists",),
    ),
    Case("the-name-above", f"{CURL} http://pages.example:$ALLOWED/", ("pages.example is not among",)),
    Case("a-name-that-ends-alike", f"{CURL} http://xfiles.example:$ALLOWED/", ("xfiles.example is not among",)),
    Case("a-name-without-address", f"{CURL} http://gone.example/", ("gone.example has no address",)),
    Case(
        "a-name-of-a-private-address",
        f"{CURL} http://inner.example:$SECRET/; {CURL} -p http://inner.example:$SECRET/",
        ("inner.example has the address 127.0.0.1, which is a loopback address", "response 403"),
    ),
    Case(
        "a-name-whose-address-changes",
        f"for n in 1 2 3; do {CURL} http://fickle.example:$SECRET/; done",
        ("fickle.example can't be connected to", "fickle.example has the address 127.0.0.1, which is a loopback"),
    ),
    Case(
        "notations-of-loopback",
        f"for h in {' '.join(_NOTATIONS)}; do for m in GET CONNECT; do t=$h:$SECRET; [ $m = GET ] && t=http://$t/; "
        f"exec 3<>/dev/tcp/{PROXY}; printf '%s %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' $m $t $h:$SECRET >&3; "
        "timeout 5 head -n 1 <&3; exec 3>&-; done; done | cut -c 1-12 | sort | uniq -c | sed 's/ *//'",
        (f"2 HTTP/1.1 400\n{2 * len(_NOTATIONS) - 2} HTTP/1.1 403",),
    ),
    Case(
        "metadata-and-private-networks",
        f"for h in {' '.join(_PRIVATE)}; do {CURL} -g http://$h/latest/meta-data; done | grep -c 'which --network_allow does not list'",
        (f"{len(_PRIVATE)}\n",),
    ),
    Case(
        "a-redirect",
        f"{CURL} --noproxy '' -L http://files.example:$REDIRECT/",
        ("127.0.0.1 is a loopback address, which --network_allow does not list",),
    ),
    Case(
        "a-user-name-that-looks-like-a-host",
        raw("GET http://files.example@127.0.0.1:$SECRET/ HTTP/1.1", "Host: files.example", "", "")
        + "; "
        + raw("GET http://127.0.0.1:$SECRET#@files.example/ HTTP/1.1", "Host: files.example", "", ""),
        ("HTTP/1.1 400 an address has no user name", "HTTP/1.1 400 an address has neither #"),
    ),
    Case(
        "a-host-header-of-another",
        raw("GET http://files.example:$ALLOWED/ HTTP/1.1", "Host: 127.0.0.1:$SECRET", "", ""),
        ("HTTP/1.1 400 the Host header names another host than the address",),
    ),
    Case(
        "a-request-for-no-proxy",
        raw("GET / HTTP/1.1", "Host: files.example", "", ""),
        ("HTTP/1.1 400 this is a proxy",),
    ),
    Case("other-schemes", raw("GET ftp://files.example/ HTTP/1.1", "Host: files.example", "", ""), ("HTTP/1.1 400",)),
    Case(
        "a-request-of-two-lengths",
        raw(
            *("POST http://files.example:$ALLOWED/ HTTP/1.1", "Host: files.example:$ALLOWED", "Content-Length: 6"),
            *("Transfer-Encoding: chunked", "", "0", "", "GET http://127.0.0.1:$SECRET/ HTTP/1.1", "Host: x", "", ""),
        ),
        ("HTTP/1.1 400 a request has either Content-Length or Transfer-Encoding",),
    ),
    Case(
        "a-request-behind-a-request",
        raw(
            *("GET http://files.example:$ALLOWED/1 HTTP/1.1", "Host: files.example:$ALLOWED", ""),
            *("GET http://127.0.0.1:$SECRET/2 HTTP/1.1", "Host: 127.0.0.1:$SECRET", "Connection: close", "", ""),
        ),
        ("allowed: GET /1", "HTTP/1.1 403 127.0.0.1 is a loopback address"),
        reaches=True,
    ),
    Case(
        "huge-headers",
        f"exec 3<>/dev/tcp/{PROXY}; (printf 'GET http://files.example/ HTTP/1.1\\r\\nX: '; head -c 300000 /dev/zero | tr '\\0' x) "
        ">&3 2>/dev/null & sleep 0.2; timeout 5 head -n 1 <&3; exec 3>&-",
        ("HTTP/1.1 431",),
    ),
    # What ignores the proxy
    Case(
        "without-the-proxy",
        f"for u in 127.0.0.2:$ALLOWED 127.0.0.1:$SECRET 1.1.1.1 [2606:4700::1111] files.example; do {CURL} -g --noproxy '*' $u "
        f"&& echo {NEVER}; done; env -i {CURL} http://files.example/ && echo {NEVER}",
        ("Couldn't connect to server", "Could not resolve host"),
    ),
    Case(
        "tcp",
        refused("AF_INET", '[("127.0.0.2", allowed), ("127.0.0.1", secret), ("1.1.1.1", 80), ("10.0.0.1", 80)]'),
        ("tried",),
    ),
    Case(
        "ipv6",
        refused(
            "AF_INET6", '[("::1", secret), ("2606:4700::1111", 80), ("::ffff:127.0.0.1", secret), ("fe80::1", 80)]'
        ),
        ("tried",),
    ),
    Case(
        "udp",
        refused(
            "AF_INET",
            '[("127.0.0.1", udp), ("1.1.1.1", 53), ("224.0.0.251", 5353)]',
            kind="SOCK_DGRAM",
            do='client.sendto(b"x", address), client.recv(10)',
        ),
        ("tried",),
    ),
    Case(
        "names",
        python(
            f"try:\n    print('{NEVER}', socket.getaddrinfo('files.example', 80))\nexcept OSError:\n    print('no')"
        ),
        ("no",),
    ),
    Case("raw-sockets", refused("AF_INET", '["icmp"]', kind="SOCK_RAW, 1", do="pass"), ("nothing",)),
    Case("packets", refused("AF_PACKET", '["ethernet"]', kind="SOCK_RAW", do="pass"), ("nothing",)),
    Case(
        "unix-sockets",
        refused("AF_UNIX", '["\\0" + abstract, path, "/run/docker.sock", "/run/podman/podman.sock"]'),
        ("tried",),
    ),
    Case(
        "interfaces",
        python("print('interfaces:', *sorted(name for _, name in socket.if_nameindex()))"),
        ("interfaces: lo\n",),
    ),
    # The proxy itself
    Case(
        "its-address",
        python(f"""\
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
try:
    client.bind(("127.0.0.1", 13128))
    client.listen()
    print("{NEVER}")
except OSError:
    print("taken")"""),
        ("taken",),
    ),
    Case("by-itself", f"{CURL} --noproxy '' -p http://127.0.0.1:13128/", ("response 403",)),
)
