"""The page of a run."""

from __future__ import annotations

import statistics

from paddlebox.tools.report import text
from paddlebox.tools.report.page import Page
from paddlebox.tools.report.run import Run, flat, number
from paddlebox.tools.report.state_figures import (
    commit_figures,
    configuration_figures,
    environment_figure,
    rank_figures,
    row_figures,
    store_figures,
)
from paddlebox.tools.report.training_figures import (
    calibration_figures,
    learning_figures,
    newest_test,
    pipeline_figures,
)


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """The headline. The test AUC is that of the newest evaluation, or else of the last pass."""
    newest = newest_test(run)
    speeds = [v for v in (number(line, "samples_per_s") for line in run.lines) if v is not None]
    speed = text.count(statistics.median(speeds) if speeds else None)
    version = number(run.store, "version") or number(run.summary, "version") or text.NONE
    auc, copc = (number(run.last, "metrics", name) for name in ("auc", "copc"))
    samples = sum(number(line, "samples") or 0 for line in run.lines)
    live = "live, first table" if flat(run.config).get("extra_tables") else "live"
    tiles = [("Test AUC", text.decimal(number(newest[1], "auc")), newest[0])] if newest else []
    return [
        *tiles,
        ("Training AUC", text.decimal(auc), "last pass, before training on it"),
        ("COPC", text.decimal(copc, 3), "clicks / predicted, last pass"),
        ("Samples/s", speed, "median of passes"),
        ("Samples", text.count(samples), text.passes(len(run.lines))),
        ("Version", str(version), "newest commit"),
        ("Rows", text.count(number(run.store, "live_rows")), live),
        ("Disk", text.size(run.disk_bytes or None), "files of the store"),
    ]


def run_page(run: Run, reload_s: float = 0) -> Page:
    config = flat(run.config)
    other = config.get("data.path_template") or config.get("data.stream.source")
    data = config.get("data.train_files") or [other or "no files"]
    files = f"{data[0]}{f' and {len(data) - 1} more' if len(data) > 1 else ''}"
    return Page(
        title=run.name,
        about=f"{config.get('model.type')} on {files} ({config.get('data.format')}), seed "
        f"{config.get('seed')}{f', {run.size} ranks' if run.size > 1 else ''} · {run.folder}",
        tiles=_tiles(run),
        sections={
            "Learning": learning_figures(run),
            "Calibration": calibration_figures(run),
            "Rows": row_figures(run),
            "Pipeline": pipeline_figures(run),
            **({"Ranks": rank_figures(run)} if run.size > 1 else {}),
            "Store": store_figures(run),
            "Commits and saves": commit_figures(run),
            "Configuration": configuration_figures(run),
            "Environment": [environment_figure(run)],
        },
        state=run.state,
        reload_s=reload_s,
    )
