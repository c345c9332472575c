"""The store of a run and what the launchers of several hosts tell each other through it.

The launcher of host 0 owns the store, so that it outlives every rank; ranks connect as clients
(``TORCHELASTIC_USE_AGENT_STORE=True`` makes ``init_process_group`` do so). Keys of the launchers start with
``kaitian/run/``. Used from the launcher's main thread.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

_PREFIX = "kaitian/run/"
SILENCE_S = 30.0  # a launcher that has given no sign of life for so long is taken for dead


class LaunchError(RuntimeError):
    """The run cannot start."""


@dataclass(frozen=True)
class Place:
    """Where this launcher is among the hosts, and where the store is."""

    nodes: int = 1
    node: int = 0
    address: str = "127.0.0.1"
    port: int = 0  # 0: any free one, on one host only


@dataclass(frozen=True)
class World:
    """What the launchers have agreed on: ranks over all hosts, and the first rank of this one."""

    size: int
    first_rank: int
    node_of: tuple[int, ...]  # the host of each rank


class Nodes:
    """The end of the store that this launcher holds."""

    def __init__(self, place: Place, timeout: timedelta) -> None:
        self.place = place
        if place.node == 0:
            self.port, self.store = _host(place, timeout)
        else:
            self.port, self.store = place.port, _connect(place, timeout)
        self._timeout = timeout

    def agree(self, local_ranks: int) -> World:
        """Learn how many ranks each host has; waits for the other launchers."""
        self.store.set(f"{_PREFIX}ranks/{self.place.node}", str(local_ranks))
        keys = [f"{_PREFIX}ranks/{node}" for node in range(self.place.nodes)]
        try:
            self.store.wait(keys, self._timeout)
        except dist.DistStoreError:
            missing = [str(node) for node, key in enumerate(keys) if not self.store.check([key])]
            raise LaunchError(
                f"after {self._timeout.total_seconds():.0f} s the launchers of these hosts have not come: "
                f"--node-rank {', '.join(missing)}"
                f"\nhint: start `kaitian run --nnodes {self.place.nodes} --node-rank …` on each of them, "
                f"with the same --master-addr and --master-port"
            ) from None
        counts = [int(self.store.get(key)) for key in keys]
        node_of = tuple(node for node, count in enumerate(counts) for _ in range(count))
        return World(sum(counts), sum(counts[: self.place.node]), node_of)

    def report_failure(self, text: str) -> None:
        """Tell the other launchers that a rank of this host failed."""
        if self.place.nodes > 1:
            self.store.set(f"{_PREFIX}failed", json.dumps([self.place.node, text]))

    def foreign_failure(self) -> str | None:
        """Return what failed on another host, if anything did; to be called every second, as a sign of life."""
        if self.place.nodes == 1:
            return None
        try:
            self.store.add(f"{_PREFIX}beat/{self.place.node}", 1)
            if not self.store.check([f"{_PREFIX}failed"]):
                return None
            node, text = json.loads(self.store.get(f"{_PREFIX}failed"))
        except dist.DistError:
            return "the launcher of host 0, which holds the store, is gone"
        return None if node == self.place.node else f"on host {node}, {text}"

    def leave(self) -> None:
        """Say that this host is done; host 0 waits for the others, because its store ends with it."""
        if self.place.nodes == 1:
            return
        try:
            self.store.set(f"{_PREFIX}left/{self.place.node}", "")
            if self.place.node == 0:
                self._wait_for_others()
        except dist.DistError:
            return

    def _wait_for_others(self) -> None:
        others = set(range(1, self.place.nodes))
        beats: dict[int, tuple[int, float]] = {}
        while others:
            for node in list(others):
                now = time.monotonic()
                beat = self.store.add(f"{_PREFIX}beat/{node}", 0)
                if beats.get(node, (-1, now))[0] != beat:
                    beats[node] = (beat, now)
                silent = now - beats[node][1] > SILENCE_S
                if silent or self.store.check([f"{_PREFIX}left/{node}"]):
                    others.remove(node)
            time.sleep(0.1 if others else 0)


def _host(place: Place, timeout: timedelta) -> tuple[int, TCPStore]:
    # Bound here and handed over, so that the port cannot be lost between choice and use, and so that the
    # store of a one-host run is not reachable from other machines.
    address = "127.0.0.1" if place.nodes == 1 else ""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, place.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _bind_error(place.port, error) from error
    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1",
        port,
        None,
        True,
        timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return port, store


def _bind_error(port: int, error: OSError) -> LaunchError:
    if error.errno == errno.EADDRINUSE:
        return LaunchError(
            f"port {port} (--master-port) is already in use on this host"
            "\nhint: leave --master-port out to use a free one, or choose another"
        )
    return LaunchError(f"cannot listen on port {port} (--master-port): {error.strerror}")


def _connect(place: Place, timeout: timedelta) -> TCPStore:
    try:
        return TCPStore(place.address, place.port, None, False, timeout, wait_for_workers=False)
    except (dist.DistError, RuntimeError) as error:
        raise LaunchError(
            f"cannot reach the launcher of host 0 at {place.address}:{place.port} within "
            f"{timeout.total_seconds():.0f} s: {str(error).splitlines()[0]}"
            "\nhint: start the launcher with --node-rank 0 there, and check --master-addr and --master-port"
        ) from error
