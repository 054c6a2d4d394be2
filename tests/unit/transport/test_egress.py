"""Where connections may go."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from counterfoil.transport.egress import EgressDenied, EgressPolicy, GuardedResolver, destination

ALLOWED = [
    "127.0.0.1",
    "127.8.9.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.199",
    "8.8.8.8",
    "::1",
    "fd12::1",
    "2606:4700::1111",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "::ffff:0:10.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "64:ff9b:1:a00:0:100::",
    "64:ff9b:1:a:0:1::",
    "64:ff9b:1:0:a:0:100:0",
    "64:ff9b:1:0:a:0:100:7",
    "2001:0:808:808:0:0:f7f7:f7f7",
    "2001:db8::5efe:10.0.0.1",
    "2001:db8::200:5efe:10.0.0.1",
    "2001:db8::5eff:169.254.169.254",
]
DENIED = [
    "169.254.169.254",
    "169.254.0.1",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "239.255.255.255",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "ff02::1",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:77:0:77:169.254.169.254",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9fe:a9:fe00::1",
    "64:ff9b:1:a9fe:ffa9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:77a9:fe:a9fe:1:2",
    "64:ff9b:1::a9:fea9:fe00:0",
    "64:ff9b:1:77:a9:fea9:fe12:3456",
    "64:ff9b:1::",
    "2001:0:a9fe:a9fe:0:0:f7f7:f7f7",
    "2001:0:808:808:0:0:5601:5601",
    "2001:db8::5efe:169.254.169.254",
    "2001:db8::200:5efe:169.254.169.254",
    "fd12::100:5efe:169.254.169.254",
    "fe80::5efe:10.0.0.1",
]


@pytest.mark.parametrize("address", ALLOWED)
def test_workers_live_at_loopback_private_and_public_addresses(address: str) -> None:
    EgressPolicy().check_address(address, "worker")
    EgressPolicy().check_host(address)


@pytest.mark.parametrize("address", DENIED)
def test_link_local_metadata_and_no_addresses_at_all_are_denied(address: str) -> None:
    with pytest.raises(EgressDenied):
        EgressPolicy().check_address(address, "worker")
    with pytest.raises(EgressDenied):
        EgressPolicy().check_host(address)


def test_allow_overrides_the_default_denials() -> None:
    policy = EgressPolicy(allow=["169.254.7.0/24", "fe80::/64"])
    policy.check_address("169.254.7.9", "worker")
    policy.check_address("::ffff:169.254.7.9", "worker")
    policy.check_address("fe80::9", "worker")
    for address in ("169.254.8.1", "169.254.169.254", "fe81::1"):
        with pytest.raises(EgressDenied):
            policy.check_address(address, "worker")


def test_deny_beats_allow() -> None:
    policy = EgressPolicy(allow=["10.0.0.0/8", "worker.internal"], deny=["10.1.0.0/16", "10.2.3.4"])
    policy.check_address("10.0.0.1", "worker.internal")
    for address in ("10.1.2.3", "10.2.3.4", "::ffff:10.1.2.3"):
        with pytest.raises(EgressDenied):
            policy.check_address(address, "worker.internal")


def test_an_address_inside_that_is_allowed_does_not_vouch_for_another_one() -> None:
    policy = EgressPolicy(allow=["169.254.7.0/24"], deny=["10.1.0.0/16"])
    policy.check_address("2001:0:808:808:0:0:5601:f8f6", "worker")  # a Teredo client at 169.254.7.9
    for address in (
        "2001:0:a9fe:709:0:0:5601:5601",  # its server is allowed, the client is not
        "64:ff9b:1:a9fe:7:900:a9fe:a9fe",
        "fe80::5efe:169.254.7.9",
        "2001:db8::5efe:10.1.2.3",
        "::ffff:0:10.1.2.3",
    ):
        with pytest.raises(EgressDenied):
            policy.check_address(address, "worker")


def test_an_ipv6_network_is_allowed_with_whatever_is_inside() -> None:
    EgressPolicy(allow=["64:ff9b:1::/48"]).check_address("64:ff9b:1::169.254.169.254", "worker")


def test_names_are_denied_before_any_lookup() -> None:
    policy = EgressPolicy(deny=["evil.example", "*.bad.example"])
    for host in ("evil.example", "EVIL.example.", "a.bad.example", "a.b.BAD.example"):
        with pytest.raises(EgressDenied):
            policy.check_host(host)
    for host in ("good.example", "not-evil.example", "sub.evil.example", "bad.example", "xbad.example", "example"):
        policy.check_host(host)


def test_a_name_may_be_allowed_wherever_it_leads() -> None:
    policy = EgressPolicy(allow=["metadata.internal", "*.links.internal"])
    policy.check_address("169.254.169.254", "Metadata.Internal.")
    policy.check_address("169.254.1.1", "a.links.internal")
    for host in ("other.internal", "links.internal", "metadata.internal.evil.example", ""):
        with pytest.raises(EgressDenied):
            policy.check_address("169.254.169.254", host)


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "300.1.1.1", "*", "*.", "a b", "http://x/", "a..b", "-", "x/24", ""])
@pytest.mark.parametrize("setting", ["allow", "deny", "only"])
def test_an_entry_that_is_none_is_named_with_its_setting(setting: str, entry: str) -> None:
    with pytest.raises(ValueError, match=f"egress_{setting}") as refusal:
        EgressPolicy(**{setting: ["10.0.0.0/8", entry]})
    assert repr(entry) in str(refusal.value)


class TestOnly:
    """The list of the only destinations."""

    def test_an_address_must_be_inside_a_listed_network(self) -> None:
        policy = EgressPolicy(only=["10.1.0.0/16", "fd12::/16"])
        for address in ("10.1.2.3", "fd12::1", "::ffff:10.1.2.3"):
            policy.check_address(address, "worker")
            policy.check_host(address)
        for address in ("10.2.0.1", "127.0.0.1", "8.8.8.8", "::1", "::ffff:10.2.0.1"):
            with pytest.raises(EgressDenied):
                policy.check_address(address, "worker")
            with pytest.raises(EgressDenied):
                policy.check_host(address)

    @pytest.mark.parametrize(
        "address", ["2001:db8::5efe:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::1", "2001:0:a01:203::f5fe:fdfc"]
    )
    def test_a_listed_address_inside_another_one_does_not_count(self, address: str) -> None:
        with pytest.raises(EgressDenied):
            EgressPolicy(only=["10.1.0.0/16"]).check_address(address, "worker")

    def test_every_ipv6_address_is_no_ipv4_address(self) -> None:
        with pytest.raises(EgressDenied):
            EgressPolicy(only=["::/0"]).check_address("::ffff:10.1.2.3", "worker")

    def test_a_listed_name_may_lead_anywhere_that_is_not_denied(self) -> None:
        policy = EgressPolicy(only=["worker.internal", "*.hooks.example"], deny=["10.1.0.0/16", "bad.hooks.example"])
        for host in ("worker.internal", "WORKER.internal.", "a.hooks.example", "a.b.hooks.example"):
            policy.check_host(host)
            policy.check_address("10.2.0.1", host)
            for address in ("10.1.2.3", "169.254.169.254"):
                with pytest.raises(EgressDenied):
                    policy.check_address(address, host)
        with pytest.raises(EgressDenied):
            policy.check_host("bad.hooks.example")

    def test_other_names_are_refused_before_any_lookup_unless_a_network_is_listed(self) -> None:
        for host in ("other.internal", "hooks.example", "worker.internal.evil.example", "10.2.0.1"):
            with pytest.raises(EgressDenied):
                EgressPolicy(only=["worker.internal", "*.hooks.example"]).check_host(host)
        policy = EgressPolicy(only=["worker.internal", "10.1.0.0/16"])
        policy.check_host("other.internal")
        policy.check_address("10.1.2.3", "other.internal")
        with pytest.raises(EgressDenied):
            policy.check_address("10.2.0.1", "other.internal")

    def test_what_is_denied_by_default_must_be_allowed_besides(self) -> None:
        listed = ["169.254.7.0/24"]
        with pytest.raises(EgressDenied):
            EgressPolicy(only=listed).check_address("169.254.7.9", "worker")
        EgressPolicy(allow=listed, only=listed).check_address("169.254.7.9", "worker")
        with pytest.raises(EgressDenied):
            EgressPolicy(allow=["169.254.0.0/16"], only=listed).check_address("169.254.8.9", "worker")

    async def test_only_listed_addresses_of_a_name_are_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolving(monkeypatch, "10.0.0.1", "10.1.0.1", "fd12::1", "169.254.1.1")
        assert await resolved(EgressPolicy(only=["10.1.0.0/16"])) == ["10.1.0.1"]
        assert await resolved(EgressPolicy(only=["worker.internal"])) == ["10.0.0.1", "10.1.0.1", "fd12::1"]
        with pytest.raises(EgressDenied):
            await resolved(EgressPolicy(only=["192.168.0.0/16", "other.internal"]))


def test_networks_may_be_written_with_host_bits() -> None:
    with pytest.raises(EgressDenied):
        EgressPolicy(deny=[" 10.1.2.3/8 "]).check_address("10.9.9.9", "worker")


def test_the_socket_is_where_it_is_enforced() -> None:
    """Whatever a name resolved to before, the address of the connection itself is what counts."""
    policy = EgressPolicy(allow=["worker.internal"])
    information = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("169.254.169.254", 80))
    destination.set("other.internal")
    with pytest.raises(EgressDenied):
        policy.make_socket(information)
    destination.set("worker.internal")
    with policy.make_socket(information) as made:
        assert (made.family, made.type) == (socket.AF_INET, socket.SOCK_STREAM)


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


async def resolved(policy: EgressPolicy) -> list[str]:
    resolver = GuardedResolver(policy)
    try:
        return [result["host"] for result in await resolver.resolve("worker.internal", 80)]
    finally:
        await resolver.close()


async def test_only_allowed_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "169.254.1.1", "10.0.0.1", "fe80::1", "fd12::1")
    assert await resolved(EgressPolicy()) == ["10.0.0.1", "fd12::1"]
    assert await resolved(EgressPolicy(deny=["10.0.0.0/8"])) == ["fd12::1"]
    assert len(await resolved(EgressPolicy(allow=["worker.internal"]))) == 4


async def test_a_name_with_denied_addresses_only_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "169.254.1.1", "fe80::1")
    with pytest.raises(EgressDenied):
        await resolved(EgressPolicy())


async def test_names_that_hang_do_not_hold_up_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """More lookups hang than the loop's own pool has threads; work for that pool is still done."""
    import threading

    release, hanging = threading.Event(), threading.Semaphore(0)

    def hang(*_: Any, **__: Any) -> list[Any]:
        hanging.release()
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    resolver = GuardedResolver(EgressPolicy())
    lookups = [asyncio.ensure_future(resolver.resolve(f"slow{number}.example")) for number in range(32)]
    try:
        for _ in lookups:
            assert await asyncio.to_thread(hanging.acquire, timeout=10)
    finally:
        release.set()
        await asyncio.gather(*lookups)
        await resolver.close()
