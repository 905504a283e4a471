"""The sections of the page of one run."""

from __future__ import annotations

import statistics

from paddlebox.tools.report import text
from paddlebox.tools.report.learning_figures import calibration_figures, learning_figures, tested
from paddlebox.tools.report.page import Section, Tile
from paddlebox.tools.report.pipeline_figures import pipeline_figures
from paddlebox.tools.report.rank_figures import rank_figures
from paddlebox.tools.report.run import Line, Run, number
from paddlebox.tools.report.settings import flat
from paddlebox.tools.report.setup_figures import configuration_figures, environment_figure
from paddlebox.tools.report.store_figures import commit_figures, row_figures, store_figures


def tiles(run: Run) -> list[Tile]:
    """The headline. The test AUC is that of the newest evaluation, or else of the last pass."""
    last: Line = run.lines[-1] if run.lines else {}
    newest = tested(run)
    speeds = [v for v in (number(line, "samples_per_s") for line in run.lines) if v is not None]
    version = number(run.store, "version") or number(run.summary, "version")
    live = number(run.store, "live_rows")
    samples = sum(number(line, "samples") or 0 for line in run.lines)
    found = []
    if newest is not None:
        found.append(Tile("Test AUC", text.decimal(number(newest[1], "auc")), newest[0]))
    return [
        *found,
        Tile(
            "Training AUC",
            text.decimal(number(last, "metrics", "auc")),
            "last pass, before training on it",
        ),
        Tile(
            "COPC",
            text.decimal(number(last, "metrics", "copc"), 3),
            "clicks / predicted, last pass",
        ),
        Tile(
            "Samples/s",
            text.count(statistics.median(speeds) if speeds else None),
            "median of passes",
        ),
        Tile("Samples", text.count(samples), f"{len(run.lines)} passes"),
        Tile("Version", str(version or text.NONE), "newest commit"),
        Tile(
            "Rows",
            text.count(live),
            "live, first table" if flat(run.config).get("extra_tables") else "live",
        ),
        Tile("Disk", text.size(run.disk_bytes or None), "files of the store"),
    ]


def sections(run: Run) -> list[Section]:
    return [
        Section("Learning", learning_figures(run)),
        Section("Calibration", calibration_figures(run)),
        Section("Rows", row_figures(run)),
        Section("Pipeline", pipeline_figures(run)),
        *([Section("Ranks", rank_figures(run))] if run.size > 1 else []),
        Section("Store", store_figures(run)),
        Section("Commits and saves", commit_figures(run)),
        Section("Configuration", configuration_figures(run)),
        Section("Environment", [environment_figure(run)]),
    ]
