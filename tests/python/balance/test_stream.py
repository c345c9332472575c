"""Every sample once per epoch, whatever happens to shares, world, workers and process; the same global batches."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from kaitian._schedule import Entry, Log, Permutation
from kaitian.balance.stream import Epoch, Piece, ShareSampler, fit_shares


class Numbers(Dataset[int]):
    """0, 1, 2, ..."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def random_entry(draw: random.Random, world: int, batch: int, floor: int, decided: int, start: int) -> Entry:
    shares = [batch] + [0] * (world - 1)
    for _ in range(20):
        cuts = sorted(draw.randint(0, batch) for _ in range(world - 1))
        drawn = [b - a for a, b in zip([0, *cuts], [*cuts, batch], strict=True)]
        if all(share == 0 or share >= floor for share in drawn):
            shares = drawn
            break
    pieces = [draw.randint(1, max(1, min(3, share))) for share in shares]
    return Entry(decided=decided, start=start, shares=shares, micro_batches=pieces)


def random_log(draw: random.Random, world: int, batch: int, floor: int, steps: int) -> Log:
    log = Log(world, batch)
    log.append(random_entry(draw, world, batch, floor, -1, 0))
    start = 0
    while start < steps:
        start += draw.randint(1, 6)
        log.append(random_entry(draw, world, batch, floor, start - 1, start))
    return log


def samplers(
    size: int, batch: int, world: int, entry_at: Callable[[int], Entry], seed: int, floor: int, micro_batches: int
) -> list[ShareSampler]:
    return [
        ShareSampler(
            Numbers(size),
            batch=batch,
            rank=rank,
            world_size=world,
            entry_at=entry_at,
            seed=seed,
            floor=floor,
            micro_batches=micro_batches,
        )
        for rank in range(world)
    ]


def steps_of(
    sampler: ShareSampler, epoch: int, begin: int, first_step: int
) -> dict[int, list[tuple[Piece, list[int]]]]:
    """Epoch step -> this rank's micro-batches."""
    issued: list[Piece] = []
    sampler.on_issue = issued.append
    sampler.position(epoch=epoch, begin=begin, first_step=first_step)
    steps: dict[int, list[tuple[Piece, list[int]]]] = {}
    for number, indices in enumerate(sampler):
        steps.setdefault(issued[number].epoch_step, []).append((issued[number], indices))
    return steps


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(1, 200),
    batch=st.integers(1, 40),
    floor=st.integers(1, 3),
    micro_batches=st.sampled_from([0, 0, 1, 2, 3]),
    worlds=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_every_sample_once_over_replans_resumes_and_resizes(
    size: int, batch: int, floor: int, micro_batches: int, worlds: list[int], seed: int
) -> None:
    if size < floor or batch < floor:
        return
    draw = random.Random(seed)
    epoch, begin, total = 3, 0, Epoch(size, batch, floor).steps
    used: list[int] = []
    for part, world in enumerate(worlds):  # each part ends in a crash between two steps, or at the end
        end = total if part == len(worlds) - 1 else draw.randint(begin, total)
        log = random_log(draw, world, batch, floor, total)
        ranks = [steps_of(s, epoch, begin, 0) for s in samplers(size, batch, world, log.at, seed, floor, micro_batches)]
        assert all(set(steps) == set(range(begin, total)) for steps in ranks)
        for step in range(begin, end):
            pieces = [piece for steps in ranks for piece in steps[step]]
            counted = [index for piece, indices in pieces if piece.counts for index in indices]
            expected = Epoch(size, batch, floor).bounds(step)
            assert counted == Permutation(size, seed, epoch).slice(*expected)  # the same for every layout
            used += counted
            for steps in ranks:
                mine = steps[step]
                assert [piece.last for piece, _ in mine] == [False] * (len(mine) - 1) + [True]
                assert all(len(indices) == piece.items >= min(floor, size) for piece, indices in mine)
                assert {piece.step_items for piece, _ in mine} == {len(counted)}
                assert micro_batches == 0 or len(mine) == micro_batches
        begin = end
    assert sorted(used) == list(range(size))


@settings(max_examples=300, deadline=None)
@given(
    shares=st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 0),
    items=st.integers(1, 200),
    floor=st.integers(1, 5),
)
def test_shares_of_another_size_keep_the_sum_and_the_floor(shares: list[int], items: int, floor: int) -> None:
    fitted = fit_shares(shares, items, floor)
    assert sum(fitted) == items
    assert sum(shares) == items or all(share == 0 or share >= min(floor, items) for share in fitted)
    assert all(share == 0 for share, before in zip(fitted, shares, strict=True) if before == 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(workers: int) -> None:
    """Two epochs through torch's DataLoader, persistent workers, a schedule that changes at every step."""
    draw = random.Random(5)
    log = random_log(draw, 3, 16, 1, 40)
    (sampler, *_) = samplers(150, 16, 3, log.at, 9, 1, 0)
    plain = [steps_of(sampler, epoch, 0, 10 * epoch) for epoch in (0, 1)]
    loader = DataLoader(Numbers(150), batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    for epoch in (0, 1):
        sampler.position(epoch=epoch, begin=0, first_step=10 * epoch)
        found = [batch.tolist() for batch in loader]
        assert found == [indices for step in plain[epoch].values() for _, indices in step]


def test_a_last_step_that_no_rank_could_take_joins_the_one_before() -> None:
    assert Epoch(33, 16, floor=2).steps == 2
    assert Epoch(33, 16, floor=2).bounds(1) == (16, 33)
    assert Epoch(34, 16, floor=2).bounds(2) == (32, 34)
    assert Epoch(33, 16, floor=2, drop_last=True).bounds(1) == (16, 32)
    assert Epoch(5, 16).bounds(0) == (0, 5)


def test_bad_sizes_are_named() -> None:
    with pytest.raises(ValueError, match=r"dataset: expected at least 2 samples .* found 1"):
        Epoch(1, 16, floor=2)
    with pytest.raises(ValueError, match="expected at least one global batch of 16 samples, found 5"):
        Epoch(5, 16, drop_last=True)


def test_frameworks_leave_the_sampler_alone() -> None:
    (sampler,) = samplers(10, 4, 1, lambda step: Entry(decided=-1, start=0, shares=[4], micro_batches=[1]), 0, 1, 0)
    assert isinstance(sampler, DistributedSampler)
    assert len(sampler) == 3
