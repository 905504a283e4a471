"""docs/deploy.md: what it shows is read by whom it is for."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from paddlebox.tools.on_ray.cli import PASSED_ON

ROOT = Path(__file__).parents[2]
DEPLOY = (ROOT / "docs/deploy.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DEPLOY, re.MULTILINE | re.DOTALL)


def bash_reads(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_scripts_of_the_page_are_read_by_bash() -> None:
    assert len(blocks("sh")) == 2
    for script in blocks("sh"):
        bash_reads(script)


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


def test_the_unit_is_one_and_signals_the_launcher_alone() -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser()
    unit.read_string(text)
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Service"]["KillMode"] == "mixed"
    assert "-m paddle.distributed.launch" in unit["Service"]["ExecStart"]


def test_the_variables_that_ranks_get_are_those_of_the_page() -> None:
    page = (ROOT / "docs/ray.md").read_text()
    listed = re.search(r"these variables, with the values [^:]*: `([^`]*)`", page)
    assert listed is not None
    assert set(listed[1].split()) == set(PASSED_ON)
