"""The configuration of a run, and the machine that it ran on."""

from __future__ import annotations

from paddlebox.tools.report import text
from paddlebox.tools.report.figures import Figure, missing, table
from paddlebox.tools.report.pipeline_figures import whose
from paddlebox.tools.report.run import FINISHED, Run, number
from paddlebox.tools.report.settings import ABSENT, changed, flat


def configuration_figures(run: Run) -> list[Figure]:
    return [_differences(run), _configuration(run)]


def _differences(run: Run) -> Figure:
    rows = [
        [
            key,
            text.setting(value, key),
            "required" if usual is ABSENT else text.setting(usual, key),
        ]
        for key, value, usual in changed(run.config)
    ]
    body = f"<div class=wrap>{table(['key', 'value', 'default'], rows, left=3)}</div>"
    note = "docs/config.md explains each key."
    return Figure("Values other than the defaults", note, body, wide=True)


def _configuration(run: Run) -> Figure:
    rows = [[key, text.setting(value, key)] for key, value in flat(run.config).items()]
    body = (
        f"<details><summary>All {len(rows)} keys</summary><div class=wrap>"
        f"{table(['key', 'value'], rows, left=2)}</div></details>"
    )
    return Figure("Every value", "Of the last start.", body, wide=True)


def environment_figure(run: Run) -> Figure:
    title = "Where it ran"
    if not run.environment:
        return missing(title, run.missing["environment"])
    found = run.environment
    threads, versions = found.get("threads", {}), found.get("versions", {})
    rows = [
        ["started", text.moment(number(found, "started_at"))],
        ["processor", str(found.get("cpu", text.NONE))],
        ["cores", str(found.get("cores", text.NONE))],
        ["memory", text.size(number(found, "memory_bytes"))],
        ["vector path", str(found.get("vector_path", text.NONE))],
        ["threads", ", ".join(f"{name} {value}" for name, value in threads.items())],
        ["kernel", str(found.get("kernel", text.NONE))],
        *([name, str(value)] for name, value in versions.items()),
    ]
    if run.state == FINISHED:
        rows.append(["sparse digest", str(run.summary.get("sparse_digest", text.NONE))])
        rows.append(["dense digest", str(run.summary.get("dense_digest", text.NONE))])
    body = f"<div class=wrap>{table(['', ''], rows, left=2)}</div>"
    return Figure(title, f"Of the last start.{whose(run)}", body, wide=True)
