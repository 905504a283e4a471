"""A served model that reads sequences: candidates after a history are predicted as in an
evaluation, whether the history was sent whole or event by event."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from aiohttp import test_utils
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox.errors import ConfigError, DataError, HistoryMissing
from paddlebox.serving import Predictor
from paddlebox.serving.counters import Counters, ServeOptions
from paddlebox.serving.http import Server
from paddlebox.serving.users import MOST_NAME, UserRequest
from tests.conftest import tool
from tests.serving.json_schema import ANYTHING, bent, check, fitting
from tests.support import serving_library as library
from tests.support.configs import write_config, write_slots

MAX_LENGTH = 10
COLUMNS = ("click", "user", "item", "category", "age", "ts")

Event = dict[str, Any]


def write(path: Path, users: int, seed: int) -> list[list[Event]]:
    """Users who click the items that they have seen."""
    random, lists = np.random.default_rng(seed), []
    lines = [",".join(COLUMNS)]
    for user in range(users):
        seen: set[int] = set()
        times = np.sort(random.integers(0, 10**6, random.integers(1, MAX_LENGTH + 1)))
        events = []
        for time in times.tolist():
            item = int(random.integers(1, 12))
            click = int(random.random() < (0.9 if item in seen else 0.1))
            seen.add(item)
            events.append({"click": click, "user": user + 1, "item": item, "category": item % 4 + 1,
                           "age": int(random.integers(90)), "ts": time})  # fmt: skip
            lines.append(",".join(str(events[-1][name]) for name in COLUMNS))
        lists.append(events)
    path.write_text("\n".join(lines) + "\n")
    return lists


def ran(name: str, *arguments: Any) -> Any:
    done = tool(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done


class Run:
    """A trained run, its test lists, the predictions of their evaluation, and an export."""

    def __init__(self, folder: Path) -> None:
        for number in range(2):
            write(folder / f"train-{number}.csv", 120, number)
        self.lists = write(folder / "test.csv", 25, 9)
        sparse = {"type": "sparse"}
        age = {"type": "dense", "log1p": True}
        slots: dict[str, Any] = {"age": age, "user": sparse, "item": sparse, "category": sparse}
        path = write_slots(folder, click="label", **slots)
        path.write_text(f"{path.read_text()}tags: {{time: ts}}\n")
        config = write_config(
            folder,
            table={"embedx_dim": 4, "embedx_threshold": 0.0, "life": {"base_threshold": 0.0}},
            data={
                "format": "csv",
                "train_files": [f"{folder}/train-*.csv"],
                "test_files": [f"{folder}/test.csv"],
                "files_per_pass": 1,
                "batch_size": 64,
                "sequences": {"user": "user", "max_length": MAX_LENGTH},
            },
            model={"type": "hstu", "width": 8, "heads": 2, "head_dim": 4, "hidden": [8],
                   "max_length": MAX_LENGTH, "use_cvm": False, "slots": ["item", "category"]},
            optimizer={"learning_rate": 0.01, "averaging": 0.9},
            checkpoint={"keep_versions": 9},
        )  # fmt: skip
        self.folder, self.export = folder / "run", folder / "model.pbx"
        given = ("-c", config, "--run-dir", self.folder)
        ran("train", *given)
        ran("evaluate", *given, "--dump", folder / "dump.parquet")
        self.evaluated = np.asarray(pq.read_table(folder / "dump.parquet")["prediction"])
        onnx = ["--onnx"] if importlib.util.find_spec("onnx") else []
        ran("export", self.folder, "--out", self.export, *onnx)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("users"))


@pytest.fixture
def predictor(run: Run) -> Iterator[Predictor]:
    with Predictor(run.export, follow_s=0) as opened:
        yield opened


def asked(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "click"}


def long_list(events: int) -> list[Event]:
    """Events of a user who has seen more than a sequence holds."""
    random = np.random.default_rng(5)
    items = random.integers(1, 12, events).tolist()
    return [
        {"click": item % 2, "item": item, "category": item % 4 + 1, "age": 30, "ts": 100 * at + 7}
        for at, item in enumerate(items)
    ]


@pytest.mark.slow
def test_each_instance_is_predicted_as_in_the_evaluation(run: Run, predictor: Predictor) -> None:
    served = [
        predictor.predict_user(events[:at], [asked(event)])[0]
        for events in run.lists
        for at, event in enumerate(events)
    ]
    assert np.ptp(run.evaluated) > 0.05
    np.testing.assert_allclose(served, run.evaluated, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_candidates_share_a_history_and_do_not_see_each_other(
    run: Run, predictor: Predictor
) -> None:
    history = long_list(7)
    candidates = [{**asked(event), "ts": 900 + at} for at, event in enumerate(long_list(30)[7:])]
    together = predictor.predict_user(history, candidates)
    alone = [predictor.predict_user(history, [one])[0] for one in candidates]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    assert predictor.predict_user(history, []).shape == (0,)
    assert predictor.predict_user([], candidates[:1]).shape == (1,)
    clicked = [{**event, "click": 1 - event["click"]} for event in history]
    assert not np.allclose(predictor.predict_user(clicked, candidates), together, atol=1e-4)


def first_seen(count: int) -> int:
    most, half = MAX_LENGTH - 1, MAX_LENGTH // 2
    return 0 if count <= most else -(-(count - most) // half) * half


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(st.integers(0, 7), min_size=1, max_size=8), retried=st.sampled_from([0, 1, 3])
)
def test_a_history_sent_in_parts_is_one_that_is_sent_whole(
    predictor: Predictor, steps: list[int], retried: int
) -> None:
    """Through lengths that overflow, also if the last events are sent a second time."""
    events, at = long_list(80), 0
    candidates = [{**asked(event), "ts": 10**5} for event in events[-3:]]
    predictor.predict_user(events[:1], candidates, user="7")
    at = 1
    for step in steps:
        found = predictor.predict_user(events[at : at + step], candidates, user="7", after=at)
        at += step
        whole = predictor.predict_user(events[:at], candidates)
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-6)
        back = at - retried
        if back > 0 and first_seen(back) == first_seen(at):
            again = predictor.predict_user(events[back:at], candidates, user="7", after=back)
            np.testing.assert_allclose(again, whole, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_history_that_is_not_kept_is_asked_for_again(run: Run, predictor: Predictor) -> None:
    events = long_list(6)
    with pytest.raises(HistoryMissing, match="at most 0, the events of user '8' that are kept"):
        predictor.predict_user(events[5:], [asked(events[0])], user="8", after=5)
    with pytest.raises(HistoryMissing, match="at most 0"):
        predictor.predict_user(events[5:], [asked(events[0])], user="8", after=10**30)
    predictor.predict_user(events[:4], [], user="8")
    with pytest.raises(HistoryMissing, match="at most 4, the events of user '8'"):
        predictor.predict_user(events[5:], [asked(events[0])], user="8", after=5)
    with Predictor(run.export, follow_s=0, history_bytes=100) as forgetful:
        forgetful.predict_user(events[:4], [], user="8")
        with pytest.raises(HistoryMissing, match="at most 0"):
            forgetful.predict_user(events[4:], [], user="8", after=4)


@pytest.mark.slow
def test_a_new_version_drops_the_histories(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.pbx"
    versions = json.loads(ran("store", "stat", run.folder, "--json").stdout)["versions"]
    first = next(one["version"] for one in versions if one["pass_number"] == 1)
    ran("export", run.folder, "--version", first, "--out", path)
    events, candidates = long_list(6), [{**asked(long_list(1)[0]), "ts": 999}]
    with Predictor(path, follow_s=0) as predictor:
        predictor.predict_user(events[:5], candidates, user="7")
        before = predictor.predict_user(events[5:], candidates, user="7", after=5)
        ran("export", path, "--apply", run.folder)  # a process of its own writes
        assert predictor.refresh()
        with pytest.raises(HistoryMissing):
            predictor.predict_user([], candidates, user="7", after=6)
        assert not np.allclose(predictor.predict_user(events, candidates), before, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ts": None}, "history 1: field 'ts': expected a time, .* found nothing"),
        ({"ts": -1}, "history 1: field 'ts': expected a time, .* found -1"),
        ({"ts": 3.5}, "history 1: field 'ts': expected a time, .* found 3.5"),
        ({"ts": 3}, "history 1: expected events in the order of time, found time 3 after 7"),
        ({"click": None}, "history 1: field 'click': expected the label .* found nothing"),
        ({"click": "yes"}, "history 1: field 'click': expected the label .* found 'yes'"),
        ({"itm": 3}, "history 1: no slot reads a field 'itm'; did you mean 'item'"),
    ],
)
def test_a_mistake_in_an_event_is_named(predictor: Predictor, change: Event, message: str) -> None:
    events = long_list(3)
    events[1] |= change
    with pytest.raises(DataError, match=message):
        predictor.predict_user(events, [asked(events[0])])


@pytest.mark.slow
def test_an_event_before_the_kept_ones_and_a_candidate_without_time(predictor: Predictor) -> None:
    events = long_list(4)
    predictor.predict_user(events[:3], [], user="7")
    with pytest.raises(DataError, match=r"history 0: .* found time 100 after 207"):
        predictor.predict_user([{**events[3], "ts": 100}], [], user="7", after=3)
    with pytest.raises(DataError, match="candidate 0: field 'ts': expected a time"):
        predictor.predict_user(events, [{"item": 3, "age": 2}])
    with pytest.raises(DataError, match="candidate: expected a list of instances, found one"):
        predictor.predict_user(events, asked(events[0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="after -1: expected 0 or more"):
        predictor.predict_user(events, [], user="7", after=-1)


@pytest.mark.slow
def test_instances_and_histories_are_not_mixed_up(predictor: Predictor) -> None:
    with pytest.raises(ConfigError, match=r"hstu reads the history of a user, .* predict_user"):
        predictor.predict([{"item": 3, "age": 2}])
    with pytest.raises(ConfigError, match="hstu reads the history of a user"):
        predictor.predict_feasigns(np.zeros(0, np.uint64), np.zeros(4, np.int32), np.zeros((1, 1)))


# ---- with the serving library


class Library:
    """Predicts by the serving library and ONNX Runtime, and checks that the dense part gets the
    bits that the Predictor gives it."""

    def __init__(self, version: library.Version, predictor: Predictor) -> None:
        onnxruntime = pytest.importorskip("onnxruntime")
        self._session = onnxruntime.InferenceSession(version.onnx)
        self._version, self._predictor = version, predictor

    def predict_user(
        self, history: list[Event], candidates: list[Event], user: str = "", after: int = 0
    ) -> Any:
        with self._version.user(history, candidates, user, after) as request:
            with self._predictor._using() as generation:
                scorer: Any = generation.models[0]._users
                asked = UserRequest(history, candidates, user, after)
                expected = scorer.prepared(asked).tensors
            given = request.inputs
            assert given.keys() == expected.keys()
            for name in given.keys() - {"box_known"}:
                assert given[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(given[name], expected[name])
            known = "box_known"  # what the two dense parts have made
            np.testing.assert_allclose(given[known], expected[known], rtol=0, atol=1e-5)
            probability, made = self._session.run(["probability", "known"], given)
            request.keep(made)
        np.testing.assert_allclose(
            probability.reshape(-1),
            self._predictor.predict_user(history, candidates, user=user, after=after),
            rtol=0,
            atol=1e-5,
        )
        return probability.reshape(-1)


@pytest.mark.slow
def test_the_library_predicts_as_the_predictor_does(run: Run, predictor: Predictor) -> None:
    """Histories that are sent whole, in parts that overflow, and again."""
    events = long_list(40)
    candidates = [{**asked(event), "ts": 10**5 + at} for at, event in enumerate(events[-3:])]
    with library.Server(run.export) as server, server.version() as version:
        served = Library(version, predictor)
        found = [served.predict_user(list_[:-1], [asked(list_[-1])])[0] for list_ in run.lists]
        last = np.cumsum([len(list_) for list_ in run.lists]) - 1
        np.testing.assert_allclose(found, run.evaluated[last], rtol=0, atol=1e-5)
        assert len(served.predict_user([], [])) == 0
        assert len(served.predict_user([], candidates)) == 3
        at = 0
        for step in (4, 0, 1, 3, 5, 1, 2, 9, 12):
            for _ in range(2):  # the second time, what the first one brought is replaced
                some = candidates[: step % 4]
                found = served.predict_user(events[at : at + step], some, "7", at)
                assert len(found) == len(some)
                if first_seen(at) != first_seen(at + step):
                    break
            at += step
        with pytest.raises(library.ServingError) as missing:
            served.predict_user([], [], "7", at + 1)
        assert missing.value.code == library.HISTORY_MISSING
        with pytest.raises(HistoryMissing) as expected:
            predictor.predict_user([], [], user="7", after=at + 1)
        assert str(missing.value) == str(expected.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"ts": None}, {"ts": -1}, {"ts": 3.5}, {"ts": "x"}, {"ts": 3}, {"ts": [1]}]
    + [{"click": None}, {"click": "yes"}, {"click": [1]}, {"click": float("nan")}, {"click": 1e39}],
)
def test_the_library_and_the_predictor_refuse_with_one_message(
    run: Run, predictor: Predictor, change: Event
) -> None:
    events = long_list(3)
    events[1] |= change
    with pytest.raises(DataError) as expected:
        predictor.predict_user(events, [])
    with (
        library.Server(run.export) as server,
        server.version() as version,
        pytest.raises(library.ServingError) as found,
        version.user(events, []),
    ):
        pass
    assert str(found.value) == str(expected.value)


# ---- over HTTP


_PAGE = object()  # in place of a body: asks for the page


def asking(predictor: Predictor, *bodies: Any, path: str = "/predict") -> list[tuple[int, Any]]:
    """The answers of a server in this process, in order."""

    async def answers() -> list[tuple[int, Any]]:
        server = Server(predictor, ServeOptions(max_batch=40), Counters(1), 0)
        async with test_utils.TestClient(test_utils.TestServer(server.application())) as client:
            found = []
            for body in bodies:
                if body is _PAGE:
                    answer = await client.get("/openapi.json")
                else:
                    answer = await client.post(path, json=body)
                found.append((answer.status, await answer.json()))
            return found

    return asyncio.run(answers())


@pytest.mark.slow
def test_predict_answers_candidates(predictor: Predictor) -> None:
    events, candidates = long_list(6), [{**asked(event), "ts": 999} for event in long_list(3)]
    expected = predictor.predict_user(events, candidates).tolist()
    whole, first, second, missing, not_one, late = asking(
        predictor,
        {"history": events, "candidates": candidates},
        {"user": 7, "history": events[:4], "candidates": []},
        {"user": 7, "after": 4, "history": events[4:], "candidates": candidates},
        {"user": 6, "after": 4, "history": events[4:], "candidates": candidates},
        {"instances": candidates},
        {"history": [events[1], events[0]], "candidates": []},
    )
    assert whole[1]["predictions"] == expected
    assert whole[1]["model"] == "run"
    assert first[1]["predictions"] == []
    np.testing.assert_allclose(second[1]["predictions"], expected, rtol=0, atol=1e-6)
    assert (missing[0], missing[1]["error"]["code"]) == (409, "history_missing")
    assert (not_one[0], not_one[1]["error"]["code"]) == (422, "unknown_member")
    assert (late[0], late[1]["error"]["where"]) == (422, "history[1]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({"history": []}, 422, ""),
        ({"history": {}, "candidates": []}, 422, "history"),
        ({"history": [], "candidates": [3]}, 422, "candidates[0]"),
        ({"history": [], "candidates": [{}] * 41}, 422, "candidates"),
        ({"history": [], "candidates": [], "after": -1}, 422, "after"),
        ({"history": [], "candidates": [], "user": 1.5}, 422, "user"),
        ({"history": [{"ts": 1, "click": 10**400}], "candidates": []}, 422, "history[0].click"),
        ({"history": [], "candidates": [{"item": 1, "ts": 1}]}, 422, "candidates[0].age"),
    ],
)
def test_a_request_that_is_none_is_refused(
    predictor: Predictor, body: Any, status: int, where: str
) -> None:
    [(found, answer)] = asking(predictor, body)
    assert (found, answer["error"]["where"]) == (status, where), answer


@pytest.mark.slow
def test_the_openapi_page_describes_what_the_server_does(predictor: Predictor) -> None:
    [(_, page)] = asking(predictor, _PAGE)
    post = page["paths"]["/predict"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]

    def answered(body: Any) -> int:
        [(status, answer)] = asking(predictor, body)
        described = post["responses"][str(status)]["content"]["application/json"]["schema"]
        check(answer, described, page)
        return status

    @settings(max_examples=25, deadline=None)
    @given(fitting(schema, page))
    def fitting_bodies(body: Any) -> None:
        body["history"].sort(key=lambda event: event["ts"])
        status = answered({**body, "after": 0})
        assert status == 200 or "no finite" in json.dumps(asking(predictor, body))

    @settings(max_examples=40, deadline=None)
    @given(st.one_of(bent(schema, page), ANYTHING))
    def other_bodies(body: Any) -> None:
        try:
            json.dumps(body, allow_nan=False).encode()
        except (ValueError, UnicodeEncodeError):
            return  # not a body that this client can send
        assert answered(body) < 500

    example = post["requestBody"]["content"]["application/json"]["example"]
    check(example, schema, page)
    assert answered(example) == 200
    fitting_bodies()
    other_bodies()


@pytest.mark.slow
def test_tensors_have_no_histories(predictor: Predictor) -> None:
    [(status, answer)] = asking(predictor, {}, path="/v2/models/run/infer")
    why = "run reads histories of users, which tensors do not have: POST to /predict"
    assert (status, answer) == (400, {"error": why})


@pytest.mark.slow
def test_unknown_fields_of_events_and_candidates_are_ignored_if_asked(run: Run) -> None:
    events, candidates = long_list(3), [{**asked(event), "ts": 999} for event in long_list(2)]
    more = [[{**one, "new": 1} for one in part] for part in (events, candidates)]
    with Predictor(run.export, follow_s=0, unknown_fields="ignore") as predictor:
        expected = predictor.predict_user(events, candidates)
        np.testing.assert_array_equal(predictor.predict_user(*more), expected)
        assert predictor.ignored_fields == {"new": 5}


def test_a_long_name_of_a_user_is_refused(predictor: Predictor) -> None:
    candidates = [asked(long_list(1)[0])]
    assert len(predictor.predict_user([], candidates, user="x" * MOST_NAME)) == 1
    with pytest.raises(DataError, match="user: expected a name of at most 256 characters"):
        predictor.predict_user([], candidates, user="x" * (MOST_NAME + 1))
    with pytest.raises(DataError, match="user: expected a name in Unicode"):
        predictor.predict_user([], candidates, user="\ud800")


def test_what_is_kept_belongs_to_the_number_of_events_that_was_sent(predictor: Predictor) -> None:
    """After an overflow, a smaller `after` needs events that were forgotten."""
    events = long_list(MAX_LENGTH + 4)
    candidates = [asked(events[-1])]
    predictor.predict_user(events[:-1], candidates, user="u")
    with pytest.raises(HistoryMissing):
        predictor.predict_user(events[3:5], candidates, user="u", after=3)
