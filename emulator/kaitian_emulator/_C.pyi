from datetime import timedelta

from torch import Tensor
from torch._C._distributed_c10d import Backend, Store

def register_device() -> None:
    """Make the device known to torch; once per process."""

def in_bad_fork() -> bool: ...
def live_device_bytes() -> int: ...
def peak_device_bytes() -> int: ...
def reset_peak_device_bytes() -> None: ...
def memory_info() -> tuple[int, int]:
    """Bytes free and in all."""

def describe_device(name: str, memory: int) -> None:
    """How messages call the device, and its bytes of memory; 0: as much as the host has."""

def park_streams() -> None:
    """Start no more work, for ever; for process exit."""

def synchronize() -> None:
    """Wait for all streams; raises the first error of their work."""

def sleep_on_stream(milliseconds: float) -> None: ...
def configure_pace(
    kind: str,
    slowness: float,
    copy_latency: float,
    copy_bandwidth: float,
    link_bandwidth: float,
    fixed: float,
    flop_rate: float,
    byte_rate: float,
    staircase: int,
) -> None:
    """Times in seconds, rates and bandwidths per second. Sets the device's clock to real time."""

def set_speed(factor: float) -> None: ...
def speed() -> float: ...
def set_mode_slowness(factor: float) -> None: ...
def schedule_speeds(changes: list[tuple[float, float]]) -> None:
    """Seconds from now on the device's clock, and factors; replaces the changes to come."""

def device_seconds() -> float:
    """The time on the device's clock, since some point in the past."""

def busy_seconds() -> float: ...
def clock_state() -> tuple[float, float]:
    """Seconds by which the clock is behind real time, and those that were given up."""

def set_copy_delay(milliseconds: int) -> None: ...
def tensor_at(address: int, sizes: list[int], like: Tensor) -> Tensor:
    """A tensor over a raw device address, without the emulator's allocator behind it."""

def plan_fault(kind: str, call: int, lag_ms: int) -> None: ...

class Ccl(Backend):
    """An emulated vendor library; see kaitian_emulator.create_ccl()."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        ranks: list[int],
        timeout: timedelta,
        vendor: str,
        name: str,
        synchronous: bool,
        double_as_float: bool,
        null: bool,
        own_stream: bool,
        gaps: set[str],
    ) -> None: ...
