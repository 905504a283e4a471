"""The page /docs: it runs its own script only, and each example on it is answered."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import test_utils

from paddlebox.config import Slots
from paddlebox.serving import Predictor, openapi
from paddlebox.serving.counters import Counters, ServeOptions
from paddlebox.serving.http import Server
from tests.conftest import ROOT
from tests.serving.json_schema import check
from tests.support.configs import make_config

PAGE = (ROOT / "paddlebox/serving/docs.html").read_text()
# What the script uses of a browser. A request of openapi.json gets `page`, another one `answer`.
BROWSER = """
const made = {};
function element() {
  const self = { children: [], textContent: "", value: "", disabled: false, on: {} };
  self.append = (...more) => {
    self.children.push(...more);
    if (self.value === "") self.value = 0;
  };
  self.addEventListener = (name, does) => { self.on[name] = does; };
  return self;
}
const document = {
  getElementById: (id) => made[id] ??= element(), createElement: element, title: "",
};
const asked = [];
async function fetch(url, request) {
  if (url === "openapi.json") return { json: async () => input.page };
  asked.push([url, request]);
  if (input.answer === null) throw new Error("refused");
  return { status: 422, text: async () => input.answer };
}
"""
STEPS = """
setTimeout(async () => {
  const rows = (id) => made[id].children.map((row) => row.children.map((cell) => cell.textContent));
  const shown = [];
  for (const at of made.endpoint.children.keys()) {
    made.endpoint.value = at;
    made.endpoint.on.change();
    const before = [made.body.value, made.body.disabled];
    await made.send.on.click();
    shown.push([...before, made.status.textContent, made.answer.textContent]);
  }
  const endpoints = made.endpoint.children.map((option) => option.textContent);
  const title = made.title.textContent;
  console.log(JSON.stringify({ title, endpoints, fields: rows("fields"), shown, asked }));
});
"""


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def part(name: str) -> str:
    (found,) = re.findall(f"<{name}>(.*?)</{name}>", PAGE, re.DOTALL)
    return str(found)


def with_server(path: Path, talk: Callable[..., Any]) -> None:
    async def run() -> None:
        with Predictor(path, follow_s=0) as predictor:
            application = Server(predictor, ServeOptions(), Counters(1), 0).application()
            async with test_utils.TestClient(test_utils.TestServer(application)) as client:
                await talk(client)

    asyncio.run(run())


def test_the_page_may_run_its_own_script_and_ask_its_own_server_and_nothing_else(
    csv_run: tuple[Path, Path],
) -> None:
    async def talk(client: Any) -> None:
        answer = await client.get("/docs")
        assert (answer.status, await answer.text()) == (200, PAGE)
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = answer.headers["Content-Security-Policy"]
        allowed = dict(one.split(" ", 1) for one in policy.split("; "))
        for name in ("script", "style"):
            digest = base64.b64encode(hashlib.sha256(part(name).encode()).digest()).decode()
            assert allowed.pop(f"{name}-src") == f"'sha256-{digest}'"
        assert allowed.pop("connect-src") == "'self'"
        assert allowed == dict.fromkeys(
            ("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'"
        )

    with_server(csv_run[1], talk)
    assert "://" not in PAGE
    # Nothing of a model becomes HTML.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function", PAGE)
    assert re.findall(r"<[^>]+\s(?:on\w+|style|src)\s*=", PAGE) == []


def test_each_example_is_a_request_as_the_interface_says_and_is_answered(
    csv_run: tuple[Path, Path],
) -> None:
    answers = {}

    async def talk(client: Any) -> None:
        page = await (await client.get("/openapi.json")).json()
        for path, item in page["paths"].items():
            url = path
            for one in item.get("parameters", ()):
                url = url.replace(f"{{{one['name']}}}", one["schema"]["const"])
            if "get" in item:
                assert (await client.get(url)).status == 200, url
                continue
            content = item["post"]["requestBody"]["content"]["application/json"]
            check(content["example"], content["schema"], page)
            answer = await client.post(url, json=content["example"])
            answers[path] = await answer.json()
            assert answer.status == 200, (url, answers[path])
            check(answers[path], item["post"]["responses"]["200"]["content"]["application/json"]
                  ["schema"], page)  # fmt: skip

    with_server(csv_run[1], talk)
    predicted = answers.pop("/predict")["predictions"]
    assert len(answers) == 2  # with and without a version
    for answer in answers.values():
        assert answer["outputs"][0]["data"] == predicted


SLOTS = {
    "slots": [
        {"name": "click", "type": "label"},
        {"name": "<b>&", "type": "sparse"},
        {"name": "word", "type": "sparse", "hash": True},
        {"name": "tag", "type": "sparse", "hash": True, "weighted": True},
        {"name": "age", "type": "dense", "default": 1},
        {"name": "place", "type": "dense", "dim": 2},
    ]
}


def opened(answer: str | None) -> Any:
    """What the page shows of a model, and what it does with each endpoint."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on PATH")
    slots = Slots.model_validate(SLOTS, strict=False)
    page = openapi.page(make_config(), slots, 5, "1", unknown=False)
    page["paths"]["/v/{x}"] = {
        "get": {"responses": {"200": {"description": "of x"}}},
        "parameters": [{"name": "x", "schema": {"const": "a/b"}}],
    }
    given = f"const input = {json.dumps({'page': page, 'answer': answer})};"
    done = subprocess.run(
        [node, "-e", given + BROWSER + part("script") + STEPS],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_lists_the_fields_and_sends_what_was_typed_to_the_chosen_endpoint() -> None:
    said = '{"error": "<i>"}'
    found = opened(said)
    assert found["title"] == "Predictions of run"
    assert found["fields"] == [
        ["<b>&", "instance", "integer or string or array of (integer or string) or null", "yes"],
        ["word", "instance", "string or number or array of (string or number) or null", "yes"],
        ["tag", "instance", "string or number or array of (string or number) or null", "yes"],
        ["age", "instance", "array of 1 × number or number or null", "yes"],
        ["place", "instance", "array of 2 × number", "no"],
    ]
    example = {"<b>&": 17, "word": "red", "tag": "red:0.5", "age": 0.5, "place": [0.5, 0.5]}
    assert found["endpoints"][0] == "POST /predict"
    body, disabled, *rest = found["shown"][0]
    assert json.loads(body) == {"instances": [example]}
    assert not disabled
    url, request = found["asked"][0]
    assert (url, request["method"], request["body"]) == ("predict", "POST", body)
    assert request["headers"] == {"Content-Type": "application/json"}
    assert re.fullmatch(r"422 after \d+ ms", rest[0])
    assert rest[1] == said
    assert found["endpoints"][1:3] == ["GET /healthz", "GET /metrics"]
    assert found["shown"][1][:2] == ["", True]
    assert found["asked"][1] == ["healthz", {"method": "GET"}]
    assert found["asked"][-1][0] == "v/a%2Fb"  # below the path of a proxy, and encoded


def test_the_page_says_that_no_answer_came() -> None:
    assert opened(None)["shown"][0][2:] == ["no answer: refused", ""]
