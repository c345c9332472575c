from collections.abc import Callable
from importlib import metadata

import pytest
import torch

from kaitian import _devices
from kaitian._devices import DeviceError

Loaders = dict[str, Callable[[int], object]]


class _Point:
    """An entry point that was never installed."""

    def __init__(self, name: str, load: Callable[[int], object]) -> None:
        self.name, self.value, self.module, self._load = name, f"nowhere:{name}", "kaitian_emulator", load

    def load(self) -> Callable[[int], object]:
        return self._load


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "_chosen", None)
    monkeypatch.delenv("KAITIAN_DEVICE", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Loaders:
    """Make providers look installed: what a test puts in is registered."""
    loaders: Loaders = {}
    monkeypatch.setattr(metadata, "entry_points", lambda group: [_Point(name, load) for name, load in loaders.items()])
    return loaders


def test_without_launcher_and_accelerator_the_device_is_the_cpu() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this torch has an accelerator")
    assert _devices.device() == torch.device("cpu")


def test_kaitian_device_decides_and_its_provider_gets_the_index(
    installed: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    installed["alpha"] = lambda index: asked.append(index) or torch.device("meta", index)
    monkeypatch.setenv("KAITIAN_DEVICE", "alpha:3")
    assert _devices.device() == torch.device("meta", 3)
    assert _devices.device() == _devices.chosen() == torch.device("meta", 3)
    assert asked == [3], "the provider is asked once per process"


def test_an_accelerator_is_taken_by_local_rank_modulo_the_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("meta"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert _devices.device() == torch.device("meta", 1)
    assert chosen == [1]


def test_an_unknown_provider_is_refused_with_those_installed_and_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    monkeypatch.setenv("KAITIAN_DEVICE", "alpha:0")
    with pytest.raises(DeviceError, match=r"no device provider .alpha.; installed here: cpu, cuda") as caught:
        _devices.device()
    assert str(caught.value).splitlines()[1] == "hint: install kaitian-emulator, which brings 'alpha'"
    assert "'kaitian.devices'" in str(_devices.unknown_provider("quux"))


@pytest.mark.parametrize("text", ["alpha:", "alpha:x", "alpha:-1", ":1", "Alpha", "alpha:1:2", "alpha 1"])
def test_a_malformed_kaitian_device_is_named_with_the_syntax(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_DEVICE", text)
    with pytest.raises(DeviceError, match=f"KAITIAN_DEVICE is '{text}', expected NAME or NAME:INDEX"):
        _devices.device()


def test_a_malformed_local_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("meta"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "one")
    with pytest.raises(DeviceError, match="LOCAL_RANK is 'one', expected a number from 0"):
        _devices.device()


def test_a_provider_that_raises_is_named_with_its_own_message(
    installed: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(index: int) -> object:
        raise OSError("no driver")

    installed["alpha"] = fail
    monkeypatch.setenv("KAITIAN_DEVICE", "alpha:0")
    with pytest.raises(DeviceError, match="provider 'alpha' could not load alpha:0: no driver"):
        _devices.device()


def test_a_provider_that_returns_no_device_is_named(installed: Loaders) -> None:
    installed["alpha"] = lambda index: f"alpha:{index}"
    with pytest.raises(DeviceError, match=r"provider 'alpha' returned 'alpha:0', expected a torch\.device"):
        _devices.load("alpha", 0)


def test_an_index_that_the_device_does_not_have_is_refused_with_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="cpu has the index 0 alone, got 1"):
        _devices.load("cpu", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"index 2 is out of range: 2 cuda device\(s\) here, 0 to 1"):
        _devices.load("cuda", 2)


def test_cuda_without_a_device_says_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="finds no CUDA or ROCm device here"):
        _devices.load("cuda", 0)


def test_a_failed_choice_is_not_kept(installed: Loaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_DEVICE", "alpha:0")
    with pytest.raises(DeviceError):
        _devices.device()
    installed["alpha"] = lambda index: torch.device("meta", index)
    assert _devices.device() == torch.device("meta", 0)


def test_listing_providers_loads_none_and_knows_the_emulated_ones(installed: Loaders) -> None:
    installed["alpha"] = lambda index: pytest.fail("a provider was loaded")
    assert _devices.provider_names() == ["alpha", "cpu", "cuda"]
    assert _devices.is_emulated("alpha")
    assert not _devices.is_emulated("cpu")
    assert _devices.is_available("alpha")
    assert not _devices.is_available("beta")
