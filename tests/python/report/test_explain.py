"""The figures of the synthetic run, each recomputed here from the law that made it, and the text that tells them."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest
import synthetic
from synthetic import BATCH, PLANS, SLOW, SPEEDS, STEPS

from kaitian.cli import main
from kaitian.report import EventRecord, Header, RankInfo, Recorder, Run, ScheduleRecord, StepRecord, read_run, words
from kaitian.report.explain import cut
from kaitian.report.summary import percentile, summarize


def own_time(rank: int, step: int) -> float:
    """Return the seconds that a rank was busy in a step."""
    share = PLANS[max(start for start in PLANS if start <= step)][1][rank]
    speed = SPEEDS[rank] * (SLOW if rank == 0 and 120 <= step < 220 else 1)
    return (share / speed + 0.010) * (1 + 0.01 * (step % 5)) if share else 0.0


SECONDS = [max(own_time(rank, step) for rank in range(4)) for step in range(STEPS)]


def test_throughput_is_items_over_time(run: Run) -> None:
    summary = summarize(run)
    assert summary.samples == BATCH * STEPS
    assert summary.seconds == pytest.approx(sum(SECONDS))
    assert summary.throughput == pytest.approx(BATCH * STEPS / sum(SECONDS))
    assert summary.median_step == pytest.approx(statistics.median(SECONDS))


@pytest.mark.parametrize("rank", range(4))
def test_idle_is_what_a_rank_is_not_busy(run: Run, rank: int) -> None:
    figures = summarize(run).ranks[rank]
    busy = sum(own_time(rank, step) for step in range(STEPS))
    assert figures.idle == pytest.approx(1 - busy / sum(SECONDS))
    assert figures.parts["wait"] == pytest.approx(sum(SECONDS) - busy)
    assert figures.parts["other"] == pytest.approx(0, abs=1e-9)


def test_ranks_without_items_do_not_count_as_idle(run: Run) -> None:
    waits = times = 0.0
    for step, seconds in enumerate(SECONDS):
        for rank in range(3 if step >= 60 else 4):
            waits += seconds - own_time(rank, step)
            times += seconds
    assert summarize(run).idle == pytest.approx(waits / times)
    assert summarize(run).ranks[3].working_steps == 60
    assert summarize(run).ranks[3].items == 20 * 96 + 40 * 8


def test_predictions_are_off_by_the_ripple(run: Run) -> None:
    # Measured is predicted times 1.00, 1.01, 1.02, 1.03, 1.04, each in a fifth of the steps.
    summary = summarize(run)
    assert summary.prediction_error_median == pytest.approx(0.02 / 1.02)
    assert summary.prediction_error_p95 == pytest.approx(0.04 / 1.04)
    assert summary.predicted_steps == 300


def test_bound_ratio_is_bound_over_measured(run: Run) -> None:
    fast, slow = BATCH / 2040, BATCH / (2040 - 800 * 0.39)
    bounds = [slow if 120 <= step < 220 else fast for step in range(STEPS)]
    ratios = [bound / seconds for bound, seconds in zip(bounds, SECONDS, strict=True)]
    assert summarize(run).bound_ratio == pytest.approx(sum(bounds) / sum(SECONDS))
    assert summarize(run).bound_ratio_median == pytest.approx(statistics.median(ratios))


def test_efficiency_counts_from_where_the_speeds_are_known(run: Run) -> None:
    assert summarize(run).efficiency == pytest.approx(BATCH * 280 / (sum(SECONDS[20:]) * sum(SPEEDS)))


def test_the_exclusion_is_told_with_its_cost(run: Run) -> None:
    (entry,) = summarize(run).exclusions
    assert (entry.label, entry.first, entry.last, entry.would_cost) == ("cpu", 60, None, 0.021)
    assert entry.would_cost_ratio == pytest.approx(0.021 / (154 / 800 + 0.010))


def test_an_exclusion_ends_where_the_rank_works_again(tmp_path: Path) -> None:
    with Recorder(tmp_path, synthetic.HEADER) as recorder:
        for start in (60, 126):
            recorder.schedule(synthetic.schedule_record(start))
        recorder.schedule(dataclasses.replace(synthetic.schedule_record(20), start=200))
    (entry,) = summarize(read_run(tmp_path)).exclusions
    assert (entry.first, entry.last) == (60, 199)


def test_the_nearest_rank_is_a_value_that_occurred() -> None:
    assert percentile([], 0.95) is None
    assert percentile([1.0], 0.95) == 1.0
    assert percentile([float(value) for value in range(1, 101)], 0.95) == 95.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0


TOLD = [
    "conditions: global batch 384, objective time, loaders at most 4 steps ahead",
    "steps: 0-299, 300 recorded in 113 s, 115,200 items, finished",
    "note: alpha:0, alpha:1, beta:0: emulated; their figures are properties of the emulation, not of any hardware",
    "step 0: equal shares, to learn from: alpha:0 96; alpha:1 96; beta:0 96; cpu 96 (holds from 0)",
    "step 55: cpu is left without work",
    "step 121: alpha:0 slowed to 0.61x, 154 -> 110; alpha:1 154 -> 179; beta:0 76 -> 95 (holds from 126)",
    "step 221: alpha:0 recovered to 1.00x, 110 -> 154; alpha:1 179 -> 154; beta:0 95 -> 76 (holds from 226)",
    "predicted against measured: error 2.0 % in the median, 3.8 % at p95, over 300 steps",
    "cpu, steps 60 to the end: its fixed costs are more than its part of the work; "
    "with work a step would be 21.0 ms (+10.4 %) longer",
]


def test_the_command_tells_it_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line.rstrip() for line in out.splitlines()]
    assert [told for told in TOLD if told not in lines] == []
    assert lines.count("step 121: alpha:0 slowed to 0.61x") == 0  # the line with the shares says it
    assert any(
        line.split() == ["126", "247.5", "ms", "325.6", "ms", "110/64", "179/64", "95/64", "out"] for line in lines
    )


def test_json_has_the_same_figures(folder: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["summary"]["bound_ratio"] == summarize(run).bound_ratio
    assert facts["summary"]["exclusions"][0]["label"] == "cpu"
    assert facts["summary"]["ranks"][0]["emulated"] is True
    assert len(facts["schedules"]) == 5


def test_long_lists_are_cut_in_the_middle() -> None:
    assert cut(20, everything=False) == (list(range(20)), 0)
    shown, left_out = cut(100, everything=False)
    assert (shown, left_out) == ([0, 1, 2, 3, 4, *range(85, 100)], 80)
    assert cut(100, everything=True) == (list(range(100)), 0)


def test_ranks_with_one_device_name_are_told_apart() -> None:
    ranks = [RankInfo(rank, device, 0, None, "", False) for rank, device in enumerate(["cpu", "alpha:0", "cpu"])]
    assert words.labels(ranks) == ["cpu#0", "alpha:0", "cpu#2"]


def test_text_of_a_file_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2Jgone\r\u202ebold[red]x[/red]"
    ranks = (RankInfo(0, evil, 0, None, evil, False),)
    with Recorder(tmp_path, Header(1, 0.0, evil, evil, 8, evil, 1, ranks)) as recorder:
        recorder.event(EventRecord(0, 0, "note", None, evil))
        recorder.event(EventRecord(0, 0, "slowed", 0.5, ""))
        recorder.schedule(ScheduleRecord(0, 1, (8,), (8,), (True,), evil, None, None, ()))
        recorder.step(StepRecord(0, 1.0, (8,), (8,), *[(0.1,)] * 5, None, None, 8))
    assert main(["explain", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert out.count("[red]x[/red]") > 5  # in tables too
    assert "step 0: ?[2Jgone??bold[red]x[/red]" in out


def test_ranks_that_do_not_fit_side_by_side_go_below_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = tuple(RankInfo(rank, f"alpha:{rank}", 0, 0, "alpha", True) for rank in range(64))
    with Recorder(tmp_path, dataclasses.replace(synthetic.HEADER, ranks=ranks)) as recorder:
        shares = tuple(range(100, 164))
        recorder.schedule(ScheduleRecord(0, 0, shares, shares, (True,) * 64, "start", 1.0, None, ()))
    assert main(["explain", str(tmp_path)]) == 0
    words = capsys.readouterr().out.split()
    assert [str(share) for share in shares if str(share) not in words] == []


def test_many_changes_are_told_in_short() -> None:
    def schedule(shares: tuple[int, ...]) -> ScheduleRecord:
        return ScheduleRecord(3, 9, shares, shares, (True,) * 6, "new costs", None, None, ())

    text = words.schedule_sentence(schedule((11, 22, 33, 44, 55, 66)), schedule((1, 2, 3, 4, 5, 6)), list("abcdef"))
    assert text == "new costs: f 6 -> 66; e 5 -> 55; d 4 -> 44; c 3 -> 33; 2 more (holds from 9)"
    same = schedule((1, 2, 3, 4, 5, 6))
    assert words.schedule_sentence(same, same, list("abcdef")) == "new costs: shares stay (holds from 9)"
