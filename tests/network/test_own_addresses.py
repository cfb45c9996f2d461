"""A public address that is the machine's own is as closed as a private one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from ipaddress import ip_address

import pytest

from manyhands.network.connecting import is_ours

OWN = "1.2.3.4"
SCRIPT = f"""\
import asyncio
from manyhands.network.connecting import Refused, connect
from manyhands.network.rules import NetworkRules
from manyhands.tools.services.steps import ServiceError
from manyhands.tools.services.web.fetching import DirectFetcher

async def served(reader, writer):
    writer.write(b"inside")
    writer.close()

async def look_up(name):
    return ["{OWN}"]

async def main():
    server = await asyncio.start_server(served, "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    for rules in (NetworkRules.all(), NetworkRules.read(["a.example"]), NetworkRules.read(["a.example", "{OWN}"])):
        try:
            reader, writer = await connect("a.example", port, rules, seconds=5, look_up=look_up)
            print((await reader.read()).decode())
            writer.close()
        except Refused as refused:
            print(refused)
    fetcher = DirectFetcher(NetworkRules.web(private=False), look_up=look_up, ignore_robots=True, seconds=1)
    for host in ("a.example", "{OWN}", "[::ffff:{OWN}]"):
        try:
            print(await fetcher.fetch(f"http://{{host}}:{{port}}/"))
        except ServiceError as error:
            print(str(error).partition(" can't be read: ")[2])
    await fetcher.close()

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("ip") is None or shutil.which("unshare") is None, reason="needs ip and unshare")
def test_a_public_address_of_the_machine_itself_must_be_listed() -> None:
    setting_up = f'ip link set lo up && ip addr add {OWN}/32 dev lo && exec "$0" -c "$1"'
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", setting_up, sys.executable, SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    refused = f"a.example has the address {OWN}, which is this machine's own, which --network_allow does not list"
    listed, found = done.stdout.splitlines()[:3], done.stdout.splitlines()[3:]
    assert listed == [refused, refused, "inside"]
    own = "is this machine's own, which this tool does not reach"
    assert found == [f"a.example has the address {OWN}, which {own}", f"{OWN} {own}", f"{OWN} {own}"]


def test_other_addresses_are_others() -> None:
    assert is_ours(ip_address("127.0.0.1"))
    assert is_ours(ip_address("::1")) or not shutil.which("ip")
    assert not is_ours(ip_address("1.2.3.4"))
    assert not is_ours(ip_address("2001:4860::1"))
