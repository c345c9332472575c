"""Ranks in two network namespaces, which reach each other over one link alone: two hosts, with real routes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import test_ddp
from kaitian_testing import matrix
from kaitian_testing.pool import Job, RankFailed, Worker

CLONE_NEWNET = 0x40000000
LAYOUT = ["alpha", "beta", "alpha", "cpu"]
HOST_OF = [0, 1, 0, 1]  # emulated devices of one vendor reach each other inside one namespace only

pytestmark = pytest.mark.long


class HostJob(Job):
    """A job whose store is on the first host."""

    def store(self) -> dist.Store:
        client = dist.TCPStore(os.environ["MASTER_ADDR"], self.port, is_master=False, timeout=timedelta(seconds=60))
        return dist.PrefixStore(self.key, client)


@dataclass
class Namespaces:
    """Two namespaces with a link between them, and one link in each that leads nowhere."""

    holders: list[int]  # processes whose end ends the namespaces
    links: list[str]
    addresses: list[str]


def _ip(holder: int, *arguments: str) -> None:
    """Run ip in the namespace of a process."""
    command = ["nsenter", "-t", str(holder), "-n", "ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _inside(holder: int, action: Callable[[], Any]) -> Any:
    """Run `action` on a thread that is in the namespace; its threads, sockets and processes stay there."""
    results: list[Any] = []

    def run() -> None:
        with open(f"/proc/{holder}/ns/net") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns to the namespace of process {holder}")
        results.append(action())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def _set_up(made: Namespaces) -> None:
    first, second = made.links
    peer = ["peer", "name", second, "netns", str(made.holders[1])]
    _ip(made.holders[0], "link", "add", first, "type", "veth", *peer)
    for k, (holder, link, address) in enumerate(zip(made.holders, made.links, made.addresses, strict=True)):
        _ip(holder, "link", "add", "nowhere", "type", "veth", "peer", "name", "nowhere2")
        _ip(holder, "addr", "add", f"10.214.{k}.1/24", "dev", "nowhere")
        _ip(holder, "addr", "add", f"{address}/24", "dev", link)
        for up in ("lo", "nowhere", link):
            _ip(holder, "link", "set", up, "up")


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"the command {tool} is missing (packages iproute2, util-linux)")
    # They read from a pipe of this process, so the namespaces go with it however it ends.
    holders = [subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        own = os.stat("/proc/self/ns/net").st_ino
        until = time.monotonic() + 5
        while any(os.stat(f"/proc/{h.pid}/ns/net").st_ino == own for h in holders):
            if time.monotonic() > until or any(h.poll() is not None for h in holders):
                pytest.skip("network namespaces cannot be made here: unshare --net failed")
            time.sleep(0.01)
        made = Namespaces([h.pid for h in holders], ["kt-a", "kt-b"], ["10.213.7.1", "10.213.7.2"])
        try:
            _set_up(made)
        except RuntimeError as error:
            pytest.skip(f"links between network namespaces cannot be made here: {error}")
        yield made
    finally:
        for holder in holders:
            holder.communicate(timeout=10)


class Hosts:
    """A rank process per entry of the layout, each in its namespace."""

    def __init__(self, spaces: Namespaces, with_name: bool) -> None:
        self._store = _inside(
            spaces.holders[0],
            lambda: dist.TCPStore(
                spaces.addresses[0], 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
            ),
        )
        self._count = 0
        indices = [LAYOUT[:r].count(device) for r, device in enumerate(LAYOUT)]
        self._workers = []
        for device, index, host in zip(LAYOUT, indices, HOST_OF, strict=True):
            environment = {"MASTER_ADDR": spaces.addresses[0], "KAITIAN_SOCKET_IFNAME": spaces.links[host]}
            if not with_name:
                del environment["KAITIAN_SOCKET_IFNAME"]
            name = device if device == "cpu" else f"{device}:{index}"
            self._workers.append(_inside(spaces.holders[host], lambda name=name, env=environment: Worker(name, env)))

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 90, **options: Any) -> list[Any]:
        """Run a job on all ranks."""
        self._count += 1
        deadline = time.monotonic() + timeout
        jobs = [
            HostJob(r, tuple(LAYOUT), (), f"job{self._count}/", self._store.port, timeout, options)
            for r in range(len(LAYOUT))
        ]
        for job, worker in zip(jobs, self._workers, strict=True):
            worker.start(job, function, args)
        results, failures = [], []
        for job, worker in zip(jobs, self._workers, strict=True):
            try:
                results.append(worker.finish(job, deadline))
            except RankFailed as failure:
                failures.append(str(failure))
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()


@pytest.fixture(scope="module", params=[False, True], ids=["route to the master", "KAITIAN_SOCKET_IFNAME"])
def hosts(namespaces: Namespaces, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    made = Hosts(namespaces, request.param)
    yield made
    made.close()


def seen_hosts(job: Job) -> list[int]:
    from kaitian import _backend
    from kaitian_testing.worker import group

    with group(job):
        return [rank["host"] for rank in _backend.backend_of().world()]


def test_each_namespace_is_a_host(hosts: Hosts) -> None:
    assert hosts.run(seen_hosts) == [HOST_OF] * len(LAYOUT)


@pytest.mark.parametrize(
    "operation", ["all_reduce", "all_to_all_single", "send/recv", "broadcast", "all_gather in place"]
)
def test_operations_are_right_between_namespaces(hosts: Hosts, operation: str) -> None:
    for table in hosts.run(matrix.all_cells, operation):
        assert all(outcome.startswith(("ok", "not defined")) for outcome in table.values())
        assert any(outcome.startswith("ok") for outcome in table.values())


def test_training_between_namespaces_equals_one_process(hosts: Hosts) -> None:
    expected = test_ddp.alone("small buckets", len(LAYOUT))
    ranks = hosts.run(test_ddp.together, "small buckets")
    assert len({digest for _, digest in ranks}) == 1
    for history, _ in ranks:
        for found, wanted in zip(history, expected, strict=True):
            assert test_ddp.difference(found, wanted) <= 1e-12


def test_a_wrong_interface_is_an_error_that_names_it(namespaces: Namespaces) -> None:
    script = (
        "import kaitian, torch.distributed as dist\n"
        "dist.init_process_group('kaitian', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = subprocess.run(
        ["nsenter", "-t", str(namespaces.holders[0]), "-n", sys.executable, "-c", script],
        env={**os.environ, "KAITIAN_SOCKET_IFNAME": "absent0", "KAITIAN_DEVICE": "cpu", "MASTER_ADDR": "10.213.7.1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "KAITIAN_SOCKET_IFNAME" in done.stderr
    assert "absent0" in done.stderr
    assert namespaces.links[0] in done.stderr
