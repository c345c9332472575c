"""The HTML report in a real browser without a network: the plots are drawn, and what is text stays text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic import HEADER, step_record

from kaitian.cli import main
from kaitian.report import EventRecord, Header, RankInfo, Recorder, Run, read_run
from kaitian.report.figures import buckets, figures
from kaitian.report.summary import summarize

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PICTURE = Path(__file__).resolve().parents[3] / "build" / "report.png"

pytest.importorskip("plotly", reason="plotly is not here: pip install 'kaitian[report]'")


@pytest.fixture(scope="session")
def browser() -> list[str]:
    """Return the start of a browser's command line; it can reach nothing but files."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no chromium: apt-get install chromium-headless-shell")
    alone = ["unshare", "--net", "--map-root-user"]
    no_network = alone if subprocess.run([*alone, "true"], capture_output=True).returncode == 0 else []
    # Where namespaces are not allowed: a proxy at which nobody listens, also for addresses that need no name.
    blocked = ["--proxy-server=127.0.0.1:1", "--proxy-bypass-list=<-loopback>", "--host-resolver-rules=MAP * ~NOTFOUND"]
    return [*no_network, found, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *blocked]


def visit(browser: list[str], page: Path, profile: Path, *options: str) -> tuple[str, list[str]]:
    """Open a page; return what is on stdout and the messages of the page's console."""
    done = subprocess.run(
        [
            *browser,
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(profile)},
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="session")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("html") / "report.html"
    assert main(["explain", str(folder), "--html", str(path)]) == 0
    return path


class Plots(HTMLParser):
    """Counts what plotly drew in each element that has the class `plot`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.traces: dict[str, int] = {}
        self.classes: dict[str, list[str]] = {}
        self._plot = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = (dict(attributes).get("class") or "").split()
        if "plot" in names and tag == "div":
            self._plot = dict(attributes)["id"] or ""
            self.traces[self._plot] = 0
        elif tag == "table":
            self._plot = ""
        elif self._plot and tag == "g" and "trace" in names:  # in the scatter or the bar layer
            self.traces[self._plot] += 1


def test_the_plots_are_drawn_without_a_network(browser: list[str], page: Path, tmp_path: Path) -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.unlink(missing_ok=True)
    dom, console = visit(browser, page, tmp_path, "--dump-dom", "--window-size=1366,2700", f"--screenshot={PICTURE}")
    assert console == []
    # shares: four ranks and the marks; steps: measured, predicted, bound; breakdown: five parts and the rest
    assert Plots(dom).traces == {"shares": 5, "steps": 3, "idle": 4, "breakdown": 6}
    assert PICTURE.read_bytes().startswith(b"\x89PNG")  # for people to look at


def test_a_page_with_errors_says_so_and_can_fetch_nothing(browser: list[str], page: Path, tmp_path: Path) -> None:
    """The check of the check above: its silence means something."""
    bad = tmp_path / "bad.html"
    text = page.read_text().replace("Plotly.newPlot(", "Plotly.noPlot(")
    bad.write_text(text.replace("<header>", '<img src="https://example.com/x.png"><header>', 1))
    dom, console = visit(browser, bad, tmp_path / "p", "--dump-dom")
    assert any("noPlot is not a function" in line for line in console)
    assert any("example.com" in line and "Content Security Policy" in line for line in console)
    assert sum(Plots(dom).traces.values()) == 0


def test_the_page_names_nothing_outside_itself(page: Path) -> None:
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert re.search(r"""(src|href)\s*=|url\(|@import""", text) is None


def evil_run(folder: Path) -> Run:
    evil = "</script><script>document.title='gone'</script><b>&amp;"
    ranks = tuple(RankInfo(rank, f"{evil}{rank}", 0, None, evil, False) for rank in range(4))
    with Recorder(folder, Header(1, 0.0, evil, evil, 384, evil, 4, ranks)) as recorder:
        recorder.event(EventRecord(0, 0, "note", None, evil))
        recorder.step(step_record(0))
        recorder.step(step_record(1))
    return read_run(folder)


def test_text_of_a_run_stays_text(browser: list[str], tmp_path: Path) -> None:
    evil_run(tmp_path / "run")
    page = tmp_path / "evil.html"
    assert main(["explain", str(tmp_path / "run"), "--html", str(page)]) == 0
    dom, console = visit(browser, page, tmp_path / "p", "--dump-dom")
    assert console == []
    assert "<title>kaitian run run</title>" in dom
    assert "&lt;/script&gt;&lt;script&gt;" in dom
    assert Plots(dom).traces["shares"] == 5


def test_plotly_knows_every_property_that_is_used(run: Run) -> None:
    import plotly.graph_objects

    for figure in figures(run, summarize(run)):
        plotly.graph_objects.Figure({"data": figure.data, "layout": figure.layout})  # raises for one that it does not


def test_a_run_without_steps_has_a_report_without_plots(tmp_path: Path) -> None:
    Recorder(tmp_path / "run", HEADER).close()
    assert main(["explain", str(tmp_path / "run"), "--html", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "steps: none recorded" in text
    assert 'class="plot"' not in text


def test_long_runs_are_drawn_with_few_points() -> None:
    assert buckets(3, 10) == [range(0, 1), range(1, 2), range(2, 3)]
    groups = buckets(100_001, 1500)
    assert len(groups) <= 1500
    assert [index for group in groups for index in group] == list(range(100_001))


def test_without_plotly_it_says_how_to_get_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    assert main(["explain", str(folder), "--html", str(tmp_path / "r.html")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: an HTML report cannot be made: ")
    assert err.endswith("hint: pip install 'kaitian[report]'\n")
    assert not (tmp_path / "r.html").exists()


def test_a_file_that_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder), "--html", str(folder / "no" / "r.html")]) == 2
    assert "no/r.html: cannot be written: No such file" in capsys.readouterr().err
