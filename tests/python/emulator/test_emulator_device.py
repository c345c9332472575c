"""Memory, operators and copies of the emulated device."""

from __future__ import annotations

import io
import pickle
import signal
import subprocess
import sys

import pytest
import torch
from ranks import Rank, on

ALPHA = "alpha"


@on(ALPHA)
def test_device_has_the_vendor_name(place: Rank) -> None:
    import kaitian_emulator

    device = kaitian_emulator.load("alpha", 3)
    assert str(device) == "alpha:0"
    assert kaitian_emulator.logical_index() == 3
    assert kaitian_emulator.describe().startswith("emulated Alpha A1 (alpha:3)")
    assert torch.accelerator.current_accelerator() == torch.device("alpha")
    assert torch.alpha.is_available()


@on(ALPHA)
def test_second_vendor_in_a_process_is_refused(place: Rank) -> None:
    import kaitian_emulator

    with pytest.raises(RuntimeError, match="already emulates alpha"):
        kaitian_emulator.load("beta")


@on(ALPHA)
def test_addresses_are_not_those_of_the_host(place: Rank) -> None:
    tensor = torch.arange(4.0, device=ALPHA)
    assert tensor.data_ptr() & 1 << 54
    assert tensor[1:].data_ptr() == tensor.data_ptr() + 4


@pytest.mark.parametrize("how", ["ctypes.memmove(buffer, x.data_ptr(), 4)", "ctypes.memset(x.data_ptr(), 0, 4)"])
def test_access_without_a_copy_crashes(how: str) -> None:
    code = f"""if True:
        import ctypes, torch, kaitian_emulator
        x = torch.ones(4, device=kaitian_emulator.load("alpha"))
        buffer = ctypes.create_string_buffer(16)
        print("alive", flush=True)
        {how}
        print("survived", flush=True)
    """
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert child.stdout == "alive\n"
    assert child.returncode == -signal.SIGSEGV


@on(ALPHA)
def test_tensor_over_a_raw_address_works_without_our_allocator(place: Rank) -> None:
    from kaitian_emulator import _C

    owner = torch.arange(8.0, device=ALPHA)
    view = _C.tensor_at(owner.data_ptr() + 8, [4], owner)
    assert view.device == torch.device("alpha:0")
    assert view.cpu().tolist() == [2, 3, 4, 5]
    view.copy_(torch.tensor([9.0, 8, 7, 6]))
    view.add_(1)
    assert owner.tolist() == [0, 1, 10, 9, 8, 7, 6, 7]
    with pytest.raises(RuntimeError, match="is not a device address"):
        _C.tensor_at(torch.ones(1).data_ptr(), [1], owner)


@on(ALPHA)
def test_operators_give_the_bits_of_the_cpu(place: Rank) -> None:
    torch.manual_seed(7)
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    functions = [
        lambda a, b: a + b,
        lambda a, b: (a @ b.T).softmax(-1),
        lambda a, b: torch.where(a > b, a, b).sum(0),
        lambda a, b: torch.cat([a, b]).sort(0).values,
        lambda a, b: a.unfold(1, 2, 1).mean(-1),
        lambda a, b: torch.einsum("ij,kj->ik", a, b),
        lambda a, b: torch.linalg.svd(a).S,
        lambda a, b: a[b > 0],
        lambda a, b: torch.stack([a, b]).to(torch.bfloat16).float(),
        lambda a, b: torch.nn.functional.layer_norm(a, [5]),
        lambda a, b: torch.fft.fft(a).abs(),
        lambda a, b: a.clone().index_put_((torch.tensor([1], device=a.device),), b[:1]),
        lambda a, b: torch.arange(3, device=a.device),
        lambda a, b: torch.eye(3, device=a.device),
        lambda a, b: a.half().to(torch.float64),
        lambda a, b: torch.view_as_complex(torch.stack([a, b], -1)).conj(),
        lambda a, b: torch._foreach_add([a, b], [b, a], alpha=0.5)[0],
        lambda a, b: a.unique(),
    ]
    for number, function in enumerate(functions):
        expected, found = function(x, y), function(x.to(ALPHA), y.to(ALPHA))
        assert found.device.type == ALPHA, number
        assert torch.equal(found.cpu().resolve_conj(), expected.resolve_conj()), number


@on(ALPHA)
def test_scalars_and_printing(place: Rank) -> None:
    tensor = torch.tensor([1.5, 2.5], device=ALPHA)
    assert tensor[1].item() == 2.5
    assert tensor.tolist() == [1.5, 2.5]
    assert repr(tensor) == "tensor([1.5000, 2.5000], device='alpha:0')"
    assert (tensor > 2).any()


@on(ALPHA)
def test_asynchronous_arithmetic_follows_torch(place: Rank) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        values = torch.arange(-5, 7).to(dtype)
        device = values.to(ALPHA)
        for tensor in (values, device):
            tensor.add_(tensor, alpha=2).mul_(3).mul_(tensor).add_(1)
            tensor[2:4].zero_()
            tensor[:2].fill_(4)
        assert torch.equal(device.cpu(), values), dtype
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.ones(2, dtype=torch.int64, device=ALPHA).add_(0.5)
    with pytest.raises(RuntimeError, match="size"):
        torch.ones(2, device=ALPHA).add_(torch.ones(3, device=ALPHA))


@on(ALPHA)
def test_resize_keeps_what_was_there(place: Rank) -> None:
    tensor = torch.arange(4.0, device=ALPHA)
    tensor.resize_(2, 4)
    assert tensor[0].tolist() == [0, 1, 2, 3]
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(8)
    assert storage.nbytes() == 8


@on(ALPHA)
def test_set_shares_memory(place: Rank) -> None:
    owner = torch.arange(6.0, device=ALPHA)
    other = torch.empty(0, device=ALPHA)
    other.set_(owner.untyped_storage(), 1, (2, 2), (2, 1))
    assert other.tolist() == [[1, 2], [3, 4]]
    other.zero_()
    assert owner.tolist() == [0, 0, 0, 0, 0, 5]
    assert other.set_().numel() == 0
    other.set_(owner)
    assert other.data_ptr() == owner.data_ptr()


@on(ALPHA)
def test_out_arguments_grow(place: Rank) -> None:
    out = torch.empty(0, device=ALPHA)
    torch.add(torch.ones(3, device=ALPHA), 1, out=out)
    assert out.tolist() == [2, 2, 2]


@on(ALPHA)
def test_modules_pickle_and_load(place: Rank) -> None:
    model = torch.nn.Linear(3, 2).to(ALPHA)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    on_cpu = torch.load(buffer, map_location="cpu")
    buffer.seek(0)
    on_device = torch.load(buffer)
    assert on_cpu["weight"].device.type == "cpu"
    assert on_device["weight"].device.type == ALPHA
    assert torch.equal(on_device["weight"].cpu(), on_cpu["weight"])
    tensor = pickle.loads(pickle.dumps(torch.arange(3, device=ALPHA)))
    assert tensor.device.type == ALPHA
    assert tensor.tolist() == [0, 1, 2]


@on(ALPHA)
def test_random_numbers_are_those_of_the_seed(place: Rank) -> None:
    torch.manual_seed(5)
    expected = torch.randn(4)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(4, device=ALPHA).cpu(), expected)
    state = torch.alpha.get_rng_state()
    first = torch.rand(2, device=ALPHA)
    torch.alpha.set_rng_state(state)
    assert torch.equal(torch.rand(2, device=ALPHA), first)
    generator = torch.Generator("alpha").manual_seed(5)
    assert torch.equal(torch.randn(4, generator=generator, device=ALPHA).cpu(), expected)


@on(ALPHA)
def test_pinned_memory_is_known_by_any_address_inside(place: Rank) -> None:
    pinned = torch.empty(100).pin_memory()
    assert pinned.is_pinned()
    assert pinned[40:].is_pinned()
    assert not torch.empty(100).is_pinned()


def _count(item: int) -> torch.Tensor:
    return torch.full((2,), float(item))


@on(ALPHA)
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_pins(place: Rank, workers: int) -> None:
    data = [_count(item) for item in range(8)]
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
    batches = [(batch.is_pinned(), batch.to(ALPHA, non_blocking=True)) for batch in loader]
    assert [pinned for pinned, _ in batches] == [True, True]
    assert torch.cat([batch for _, batch in batches])[:, 0].tolist() == list(range(8))


@on(ALPHA)
def test_use_after_fork_is_refused(place: Rank) -> None:
    import os

    tensor = torch.ones(2, device=ALPHA)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            tensor.add_(1)
        except RuntimeError as error:
            code = 0 if "forked process" in str(error) and torch.alpha._is_in_bad_fork() else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert not torch.alpha._is_in_bad_fork()
