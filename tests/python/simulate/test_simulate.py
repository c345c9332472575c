"""The simulator from Python: hand-computed steps, the controller in the loop, the file and the command."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from kaitian import simulate
from kaitian.cli import main
from kaitian.simulate import Cluster, ClusterError, Link, Model, Rank, RunOptions, SpeedChange
from kaitian.simulate_file import parse

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cluster.toml"


def cluster(*ranks: Rank, batch: int = 30, **changes: Any) -> Cluster:
    values = {"host": Link(4e9), "network": Link(1e9, 50e-6), "model": Model((8000,)), **changes}
    return Cluster(batch, ranks, **values)


def cpu(host: str, per_item: float, fixed: float = 0.01) -> Rank:
    return Rank("cpu", "cpu", host, fixed, per_item)


def content() -> dict[str, Any]:
    return {
        "global_batch": 30,
        "model": {"gradient_bytes": 8000},
        "links": {"host": {"bandwidth": 4e9}, "network": {"bandwidth": 1e9, "latency": 50e-6}},
        "devices": {"cpu": {"fixed": 0.01, "per_item": 0.001}},
        "ranks": [{"device": "cpu", "host": "a"}, {"device": "cpu", "host": "b"}],
    }


def test_a_step_is_computing_and_one_hop() -> None:
    described = cluster(cpu("a", 0.001), cpu("b", 0.0005))
    report = simulate.simulate(described)
    hop = 50e-6 + 8000 / 1e9
    step = report.policy("balanced").step
    assert step is not None
    assert [rank.items for rank in step.ranks] == [10, 20]
    assert step.seconds == pytest.approx(0.02 + hop)
    assert step.throughput == pytest.approx(30 / step.seconds)
    assert report.standalone == pytest.approx((30 / 0.04, 30 / 0.025))
    assert simulate.step(described, [15, 15]).seconds == pytest.approx(0.025 + hop)
    with pytest.raises(ValueError, match="expected a sum of 30, found 31"):
        simulate.step(described, [16, 15])


def test_the_controller_reaches_the_optimum_after_throttling() -> None:
    ranks = (cpu("a", 0.001), cpu("a", 0.0005, 0.02), cpu("b", 0.004, 0.005), cpu("b", 0.0002, 0.04))
    options = RunOptions(steps=400, noise=0.02, seed=3, events=(SpeedChange(200, 3, 0.5),))
    run = simulate.run(cluster(*ranks, batch=256, run=options))
    slower = dataclasses.replace(ranks[3], scale=2.0)
    optimum = simulate.simulate(cluster(*ranks[:3], slower, batch=256)).policy("balanced").step
    assert optimum is not None
    assert run.steps[-1].best == pytest.approx(optimum.seconds)
    assert statistics.mean(step.seconds for step in run.steps[240:]) <= 1.03 * optimum.seconds
    assert run.steps[200].seconds > 1.1 * optimum.seconds
    assert 4 < run.reactions[0] <= 19
    assert simulate.run(cluster(*ranks, batch=256, run=options)) is not run
    assert simulate.run(cluster(*ranks, batch=256, run=options)).steps == run.steps


def test_a_file_is_the_cluster_that_it_describes() -> None:
    described = parse(content(), "x.toml")
    assert described.ranks == (
        Rank("cpu:0", "cpu", "a", 0.01, 0.001),
        Rank("cpu:1", "cpu", "b", 0.01, 0.001),
    )
    assert described == Cluster(30, described.ranks, Link(4e9), Link(1e9, 50e-6), Model((8000,)))


def test_buckets_are_those_of_ddp() -> None:
    values = content()
    values["model"] = {"gradient_bytes": 60 << 20, "bucket_bytes": 25 << 20}
    assert parse(values, "x.toml").model.buckets == (1 << 20, 25 << 20, 25 << 20, 9 << 20)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["global_batch"], 0, "x.toml: global_batch: expected a whole number >= 1, found 0"),
        (["globl_batch"], 1, "x.toml: expected the fields .*global_batch.*, found 'globl_batch'"),
        (["links", "network", "latency"], -1, "x.toml: links: network: latency: expected a number >= 0, found -1"),
        (["links", "host"], 4e9, "x.toml: links: host: expected a table, found 4000000000.0"),
        (["devices", "cpu", "speed"], 1, "x.toml: devices.cpu: expected the fields .*per_item.*, found 'speed'"),
        (["devices", "cpu", "curve"], [[1, 0]], r"devices.cpu: curve: expected points of .*, found \[1, 0\]"),
        (["ranks", 1, "device"], "gpu", r"x.toml: ranks\[1\]: device: expected one of cpu, found 'gpu'"),
        (["model", "buckets"], [1000], "model: gradient_bytes: expected the sum of buckets, 1000, found 8000"),
        (["model", "first_ready"], 2, "model: first_ready: expected 0 to 1, found 2"),
        (
            ["run"],
            {"events": [{"step": 1, "rank": 0, "speed": 0}]},
            r"run: events\[0\]: speed: expected a number above",
        ),
    ],
)
def test_errors_name_file_table_field_expected_and_found(path: list[Any], value: object, message: str) -> None:
    values = content()
    table: Any = values
    for name in path[:-1]:
        table = table[name]
    table[path[-1]] = value
    with pytest.raises(ClusterError, match=message):
        parse(values, "x.toml")


def test_what_cannot_be_read_is_an_error_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: expected a cluster's file, found No such file" in capsys.readouterr().err
    (tmp_path / "bad.toml").write_text("a = \n")
    assert main(["simulate", str(tmp_path / "bad.toml")]) == 2
    assert "bad.toml: expected TOML, found" in capsys.readouterr().err


def test_the_example_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(EXAMPLE), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    policies = {policy["name"]: policy["step"] for policy in facts["report"]["policies"]}
    assert policies["best"]["seconds"] <= policies["balanced"]["seconds"] <= policies["even"]["seconds"]
    assert policies["balanced"]["seconds"] <= policies["proportional"]["seconds"]
    assert sum(rank["items"] for rank in policies["best"]["ranks"]) == 512
    assert [left["rank"] for left in facts["report"]["left_out"]] == [3]
    assert len(facts["run"]["steps"]) == 240
    assert main(["simulate", str(EXAMPLE)]) == 0
    text = capsys.readouterr().out
    assert "cpu:0: " in text
    assert "bottleneck: " in text
    assert "slowed to 0.5" in text
