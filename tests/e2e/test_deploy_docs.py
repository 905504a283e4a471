"""docs/deploy.md: what it shows is read by whom it is for. docs/scale.md: what the model says."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from paddlebox.tools.supervise.arguments import PASSED_ON

ROOT = Path(__file__).parents[2]
DEPLOY = (ROOT / "docs/deploy.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DEPLOY, re.MULTILINE | re.DOTALL)


def bash_reads(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_scripts_of_the_page_are_read_by_bash() -> None:
    assert len(blocks("sh")) == 3
    for script in blocks("sh"):
        bash_reads(script)


def test_the_script_inside_the_slurm_script_is_read_by_bash() -> None:
    (script,) = (block for block in blocks("sh") if "bash -c" in block)
    inner = re.search(r"bash -c '\n(.*?)\n'", script, re.DOTALL)
    assert inner is not None
    bash_reads(inner[1])


def test_options_of_the_slurm_script_are_options() -> None:
    (script,) = (block for block in blocks("sh") if "#SBATCH" in block)
    options = re.findall(r"^#SBATCH --[\w-]+=?\S*$", script, re.MULTILINE)
    assert len(options) == script.count("#SBATCH")


def test_manifests_are_those_of_a_service_and_a_job_whose_parts_fit() -> None:
    (text,) = blocks("yaml")
    service, job = yaml.safe_load_all(text)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["containerName"] == container["name"]
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    assert f"--nnodes {job['spec']['completions']} " in container["args"][0]
    bash_reads(container["args"][0])


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="make test-cluster has it")
    (text,) = blocks("yaml")
    for manifest in yaml.safe_load_all(text):
        validator.validate(manifest, version, strict=True)
    manifest["spec"]["completionMode"] = 2
    with pytest.raises(validator.ValidationError):
        validator.validate(manifest, version, strict=True)


def test_the_unit_is_one_and_signals_the_supervisor_alone() -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser()
    unit.read_string(text)
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Service"]["KillMode"] == "mixed"
    assert "tools/supervise.py" in unit["Service"]["ExecStart"]


def test_the_variables_that_ranks_get_are_those_of_the_page() -> None:
    listed = re.search(r"variables to the ranks: `([^`]*)`", DEPLOY)
    assert listed is not None
    assert set(listed[1].split()) == set(PASSED_ON)


@pytest.fixture(scope="module")
def model() -> ModuleType:
    path = ROOT / "benchmarks/scale_model.py"
    spec = importlib.util.spec_from_file_location("scale_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_model"] = module
    spec.loader.exec_module(module)
    return module


def test_tables_of_the_page_are_what_the_model_says(model: ModuleType) -> None:
    page = (ROOT / "docs/scale.md").read_text()
    for heading, text in model.tables().items():
        assert f"### {heading}\n\n{text}" in page


def test_a_step_by_hand(model: ModuleType) -> None:
    work = model.Work(
        batch=1000, unique=1e6, dim=1, dense_parameters=250_000, rows=100, row_bytes=8
    )
    machine = model.Machine(
        samples_per_s=1000, ranks_a_node=2, message_s=0.01, memory_bytes_per_s=1e6, store_s=0.08,
        store_turn_s=0.0, spread=0.0,
    )  # fmt: skip
    found = model.predict(2, work, machine)
    assert work.step_bytes == 36e6  # 2 * 4 * (3 + 1) + 4 bytes a row
    assert found.compute_s == 1.0
    assert found.exchange_s == pytest.approx(18.0)  # one half is the other rank's
    assert found.messages_s == pytest.approx(0.02)
    assert found.dense_s == pytest.approx(1.0 + 0.02)  # 1 MB
    assert found.store_s == pytest.approx(0.02)  # 2 words every 8 steps
    assert found.bytes_a_sample == pytest.approx(19_000)
    assert found.rows_bytes == 800  # both ranks are of one node


def test_the_cost_of_a_message_is_found_again_from_two_ranks(
    model: ModuleType, tmp_path: Path
) -> None:
    work, truth = model.Work(), model.Machine(message_s=0.004)
    figures = {}
    for ranks in (1, 2, 4):
        found = model.predict(ranks, work, truth)
        copies, mine = ranks * truth.samples_per_s, found.samples_per_s(work.batch)
        figures[str(ranks)] = {
            "samples_per_s": {"median": mine},
            "of_copies": {"median": copies},
            "shares": [mine / copies],
        }
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps({"figures": figures, "settings": {"batch": work.batch}}))
    lines = model.check(path, work, model.Machine())
    assert lines[0].endswith("4.00 ms")
    assert re.search(r"\([+-]0%\)$", lines[-1]), lines
