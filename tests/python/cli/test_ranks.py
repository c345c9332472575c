import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaitian.cli.ranks import RanksError, device_names, parse_ranks


def test_ranks_are_numbered_in_the_order_of_the_command_line() -> None:
    assert parse_ranks("alpha:2,beta:1,cpu:2") == ["alpha:0", "alpha:1", "beta:0", "cpu", "cpu"]


def test_a_name_that_comes_again_interleaves_and_goes_on_counting() -> None:
    assert parse_ranks("alpha:1,beta:1, alpha:2") == ["alpha:0", "beta:0", "alpha:1", "alpha:2"]
    assert device_names(parse_ranks("alpha:1,beta:1,alpha:1")) == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("text", "piece", "fault"),
    [
        ("alpha:0", "piece 1 is 'alpha:0'", "the count '0' is no number from 1"),
        ("alpha:x", "piece 1 is 'alpha:x'", "the count 'x'"),
        ("alpha:-1", "piece 1 is 'alpha:-1'", "the count '-1'"),
        ("alpha:1,,beta:1", "piece 2 is ''", "it is empty"),
        ("alpha:1,beta", "piece 2 is 'beta'", "the count is missing"),
        ("Alpha:1", "piece 1 is 'Alpha:1'", "'Alpha' is no device name"),
        (":1", "piece 1 is ':1'", "'' is no device name"),
        ("alpha:1:2", "piece 1 is 'alpha:1:2'", "the count '1:2'"),
    ],
)
def test_a_malformed_piece_is_named_with_its_fault_and_the_syntax(text: str, piece: str, fault: str) -> None:
    with pytest.raises(RanksError) as caught:
        parse_ranks(text)
    assert piece in str(caught.value)
    assert fault in str(caught.value)
    assert "NAME:COUNT" in str(caught.value)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_specification_is_refused_with_the_syntax(text: str) -> None:
    with pytest.raises(RanksError, match="--ranks is empty, expected NAME:COUNT"):
        parse_ranks(text)


def test_an_absurd_number_of_ranks_is_refused() -> None:
    with pytest.raises(RanksError, match="more than 1024 ranks"):
        parse_ranks("cpu:1000,alpha:25")


@given(st.lists(st.tuples(st.sampled_from(["alpha", "beta", "cpu"]), st.integers(1, 9)), min_size=1, max_size=9))
def test_every_well_formed_specification_gives_each_device_once(pieces: list[tuple[str, int]]) -> None:
    devices = parse_ranks(",".join(f"{name}:{count}" for name, count in pieces))
    assert len(devices) == sum(count for _, count in pieces)
    accelerators = [device for device in devices if device != "cpu"]
    assert len(set(accelerators)) == len(accelerators)
