"""The module `torch.<vendor>`: what DDP, FSDP2 and users expect of an accelerator's module."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import torch

from kaitian_emulator import _C

_Device = torch.device | str | int | None


def _check(device: _Device, name: str) -> None:
    index = device if isinstance(device, int) else None if device is None else torch.device(device).index
    if index not in (None, -1, 0):
        raise ValueError(f"no device {name}:{index}: the emulator gives each process one device, index 0")


class _StreamContext:
    """Makes a stream current inside a `with` block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._before: torch.Stream | None = None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._before = torch.accelerator.current_stream()
            torch.accelerator.set_stream(self._stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            torch.accelerator.set_stream(self._before)


def _stream_class(name: str) -> type[torch.Stream]:
    class Stream(torch.Stream):
        """A stream of the emulated device."""

        def __new__(cls, device: _Device = None, priority: int = 0, **ids: int) -> Stream:
            _check(device, name)
            if ids:
                return super().__new__(cls, **ids)
            return super().__new__(cls, device=torch.device(name, 0), priority=priority)

        def synchronize(self) -> None:
            """Wait for the work enqueued so far; raises its first error."""
            super().synchronize()

    return Stream


def _event_factory(name: str) -> Callable[..., torch.Event]:
    # Not a subclass: torch.Event.elapsed_time() takes nothing but a torch.Event.
    def event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        """Make an event of the emulated device."""
        return torch.Event(
            torch.device(name, 0), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )

    return event


def _device_context(name: str) -> type:
    class device:  # named as in torch.cuda
        """Makes a device current inside a `with` block. There is one only."""

        def __init__(self, device: _Device) -> None:
            _check(device, name)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            pass

    return device


def _add_memory(module: Any) -> None:
    # Nothing is cached, so what is allocated is what is reserved.
    module.memory_allocated = module.memory_reserved = lambda device=None: _C.live_device_bytes()
    module.max_memory_allocated = module.max_memory_reserved = lambda device=None: _C.peak_device_bytes()
    module.reset_peak_memory_stats = lambda device=None: _C.reset_peak_device_bytes()
    module.mem_get_info = lambda device=None: _C.memory_info()


def make_device_module(name: str, description: str) -> ModuleType:
    """Make the module that torch shows as `torch.<name>`."""
    module: Any = ModuleType(f"torch.{name}", description)
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.init = lambda: None
    module._lazy_init = lambda: None
    module._is_in_bad_fork = _C.in_bad_fork
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: _check(device, name)
    module.get_device_name = lambda device=None: description
    module.device = _device_context(name)
    module.synchronize = lambda device=None: _C.synchronize()
    module.Stream = _stream_class(name)
    module.Event = _event_factory(name)
    module.stream = _StreamContext
    module.StreamContext = _StreamContext
    module.current_stream = lambda device=None: torch.accelerator.current_stream(torch.device(name, 0))
    module.default_stream = lambda device=None: module.Stream(
        stream_id=0, device_index=0, device_type=torch._C._autograd.DeviceType.PrivateUse1.value
    )
    module.set_stream = torch.accelerator.set_stream
    module.empty_cache = lambda: None
    _add_memory(module)
    # Its kernels are those of the CPU, and so is the generator that they draw from.
    module.manual_seed = torch.default_generator.manual_seed
    module.manual_seed_all = torch.default_generator.manual_seed
    module.seed = torch.default_generator.seed
    module.seed_all = torch.default_generator.seed
    module.initial_seed = torch.default_generator.initial_seed
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module  # type: ignore[no-any-return]
