"""The demo: train one model over unlike devices and check that it is the model that one device would have made.

    python examples/demo.py [--ranks alpha:2,beta:1,cpu:1]

1. MobileNetV2 is trained over all ranks by `kaitian run … train_mobilenetv2.py`.
2. One process repeats it and checks gradients step by step (single.py, lockstep.py); meanwhile a small CNN is
   trained over all ranks and compared with one process (small_cnn.py).
3. A small CNN is trained over emulated devices of speeds 1 : 2 : 4, of which the fastest is throttled half way: with
   even shares, and with those of the Balancer (balanced.py).
4. Two tables on stdout, and with `--out` the report of the balanced run. Exit code 0 if every check passed, 1 if one
   failed, else that of the program that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

import lockstep
from kaitian import _devices
from kaitian.report import ReportError, html
from kaitian.report.reader import read_run
from kaitian.report.summary import summarize
from stages import StageError, stages
from table import Balanced, Check, Facts, render, render_balanced

CHECK_STEPS = "0,5,10,20"
UNLIKE = "alpha:2,beta:1,gamma:1"
THROTTLED_AFTER, BALANCED_STEPS = 90, 180
SPEEDS = {
    "KAITIAN_EMULATOR_PACE": "nominal",
    "KAITIAN_EMULATOR_SLOWNESS": "alpha=40,beta=20,gamma=10",
    "KAITIAN_EMULATOR_EVENTS": f"gamma:0@{THROTTLED_AFTER}=0.5",
}
ACCURACY_POINTS = 3.0  # the mixed run may differ by so much from one process


def main() -> int:
    """Run the demo; return its exit code."""
    options = _parse()
    start = time.monotonic()
    with ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kaitian-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.pt"):
            old.unlink()
        try:
            _run(options, folder)
        except StageError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.code
        facts = _facts(folder, time.monotonic() - start)
        console = Console(width=None if sys.stdout.isatty() else 100)
        render(facts, console)
        render_balanced(_balanced_facts(folder, options.out), console)
    return 0 if all(check.passed for check in facts.checks) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train over unlike devices and compare with one process.")
    parser.add_argument("--ranks", default="alpha:2,beta:1,cpu:1", help="as in kaitian run (default %(default)s)")
    parser.add_argument("--backend", default="kaitian", help="process group backend (default %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of training (default %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="images per rank and step (default %(default)s)")
    parser.add_argument("--data", help="folder with CIFAR-10 or Fashion-MNIST; default: what the machine has")
    parser.add_argument("--out", type=Path, help="folder to keep the results in (default: none is kept)")
    return parser.parse_args()


def _run(options: argparse.Namespace, folder: Path) -> None:
    shared = ["--backend", options.backend, "--out", str(folder)]
    shared += ["--data", options.data] if options.data else []
    training = ["--steps", str(options.steps), "--batch", str(options.batch), "--check-steps", CHECK_STEPS]
    # Dropout would draw other numbers in the comparison, and a high rate lets rounding grow into percents of accuracy.
    training += ["--dropout", "0", "--learning-rate", "0.02"]
    with stages() as running:
        running.ranks(options.ranks, options.ranks, "train_mobilenetv2.py", [*shared, *training]).wait()
        # Both at once: the first keeps one core busy.
        single = running.alone("one process, for comparison", "single.py", [str(folder)])
        running.ranks(options.ranks, "small CNN", "small_cnn.py", shared).wait()
        single.wait()
        if all(_devices.is_emulated(name) for name in ("alpha", "beta", "gamma")):
            steps = ["--steps", str(BALANCED_STEPS)] + (["--data", options.data] if options.data else [])
            for name in ("even", "balanced"):
                arguments = [*steps, "--out", str(folder / f"{name}.json"), "--record", str(folder / name)]
                arguments += ["--even"] if name == "even" else []
                running.ranks(UNLIKE, f"{UNLIKE}, {name} shares", "balanced.py", arguments, SPEEDS).wait()


def _facts(folder: Path, seconds: float) -> Facts:
    mixed = json.loads((folder / "result.json").read_text())
    single = json.loads((folder / "single.json").read_text())
    cnn = json.loads((folder / "small_cnn.json").read_text())
    rows = [lockstep.Row(**row) for row in json.loads((folder / "lockstep.json").read_text())]
    devices = [rank["device"] for rank in mixed["ranks"]]
    types = dict.fromkeys(device.split(":")[0] for device in devices)
    return Facts(
        devices=devices,
        emulated=[name for name in types if _devices.is_emulated(name)],
        rows=rows,
        checks=[*_lockstep_checks(rows), *_result_checks(mixed, single, cnn)],
        stats=[rank["stats"] for rank in mixed["ranks"]],
        training_seconds=mixed["seconds"],
        seconds=seconds,
    )


def _balanced_facts(folder: Path, out: Path | None) -> Balanced | None:
    """Step times of both runs, and where the report of the balanced one lies."""
    if not (folder / "balanced.json").is_file():
        return None
    ended = {name: json.loads((folder / f"{name}.json").read_text())["ended"] for name in ("even", "balanced")}

    def mean(name: str, first: int, last: int) -> float:
        return float(ended[name][last - 1] - ended[name][first - 1]) / (last - first)

    spans = {
        "learning": (1, 40),
        "before": (40, THROTTLED_AFTER),
        "after": (THROTTLED_AFTER, THROTTLED_AFTER + 20),
        "later": (THROTTLED_AFTER + 20, BALANCED_STEPS),
    }
    run = read_run(folder / "balanced")
    report = None
    if out is not None:
        try:
            report = out / "balanced.html"
            report.write_text(html.render(run, summarize(run)), encoding="utf-8")
        except ReportError as error:
            print(f"no report: {error}", file=sys.stderr)
            report = None
    return Balanced(
        ranks=[info.device for info in run.header.ranks],
        seconds={name: {part: mean(name, *span) for part, span in spans.items()} for name in ended},
        total={name: times[-1] for name, times in ended.items()},
        spans=spans,
        reasons=[(s.start, s.reason) for s in run.schedules if "slowed" in s.reason],
        report=report,
    )


def _lockstep_checks(rows: list[lockstep.Row]) -> list[Check]:
    checks = []
    for dtype, limit in (("float64", f"<= {lockstep.LIMIT_FP64:.0e}"), ("float32", "<= 3x itself permuted")):
        found = [row for row in rows if row.dtype == dtype]
        worst = max((row.mixed for row in found), default=0.0)
        passed = bool(found) and all(row.passed for row in found)
        checks.append(Check(f"gradient, {dtype}", f"{worst:.1e}", limit, passed))
    return checks


def _result_checks(mixed: dict[str, Any], single: dict[str, Any], cnn: dict[str, Any]) -> list[Check]:
    left, right = 100 * mixed["accuracy"], 100 * single["accuracy"]
    identical = "yes" if mixed["identical"] else "NO"
    return [
        Check(
            f"test accuracy, {mixed['seen']} images each once",
            f"{left:.2f} %, one process {right:.2f} %",
            f"within {ACCURACY_POINTS:.0f} points",
            abs(left - right) <= ACCURACY_POINTS and mixed["seen"] == single["seen"],
        ),
        Check(f"parameters identical on all {len(mixed['ranks'])} ranks", identical, "yes", mixed["identical"]),
        Check(
            f"small CNN, losses of {cnn['steps']} steps",
            f"{cnn['difference']:.1e}",
            f"<= {cnn['limit']:.0e}",
            cnn["difference"] <= cnn["limit"],
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
