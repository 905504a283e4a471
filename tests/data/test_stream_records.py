"""Records of a stream in each payload, and those that cannot be parsed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paddlebox.config import Format
from paddlebox.config.data import DataConfig
from paddlebox.config.slots import Csv
from paddlebox.data.bad_lines import BadLines
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import LoadOptions
from paddlebox.data.streams import records
from paddlebox.data.streams.records import Events, Records
from paddlebox.data.streams.stream import Batch, Range
from paddlebox.errors import ConfigError, DataError
from tests.support.configs import make_slots

NAME = Range("clicks/0", 100, 200).name
SLOTS: dict[str, Any] = {
    "click": "label",
    "user": {"hash": True},
    "ids": {},
    "age": {"type": "dense", "default": 7.0},
}


def schema_of(data_format: str, **slots: Any) -> Any:
    stream = {"source": "kafka://a:1/clicks"}
    config = DataConfig.model_validate(
        {"format": data_format, "slots": "slots.yaml", "stream": stream}, strict=False
    )
    return LoadOptions(config, make_slots(**(slots or SLOTS)), 1).schema()


def parsed(data_format: str, values: list[bytes], **slots: Any) -> tuple[Any, list[dict[str, Any]]]:
    schema = schema_of(data_format, **slots)
    records = Records(
        NAME, Batch(values, [100 + 2 * n for n in range(len(values))]), Format(data_format)
    )
    columns, events = records.parse(schema), Events()
    events.add(records, columns, schema)
    return columns, events.dead


def feasigns(columns: Any) -> list[list[int]]:
    lengths, found = columns.sample(100)
    return [part.tolist() for part in np.split(found, np.cumsum(lengths)[:-1])]


def test_the_name_of_a_range_holds_any_partition() -> None:
    wanted = Range("a b#1-2/ä", 0, 9)
    assert Range.of(wanted.name) == wanted


def test_a_text_record_is_a_line_and_one_with_a_line_break_is_none() -> None:
    lines = [b"1 1 1 5 ", b"1 0 1 6 \n", b"1 1 1 7 \n1 1 1 8", b"", b"x"]
    columns, dead = parsed("multislot", lines, click="label", ids={})
    assert columns.instances == 2
    assert [(one["offset"], one["record"]) for one in dead] == [
        (104, "1 1 1 7 \n1 1 1 8"),
        (108, "x"),
    ]
    assert dead[0]["reason"] == "a line break inside the record"
    assert dead[1]["partition"] == "clicks/0"


@pytest.mark.parametrize("bad", [1, 8, 9, 40])
def test_every_record_that_cannot_be_parsed_becomes_a_dead_letter(bad: int) -> None:
    values = [b"1 1 1 5"] * 50
    wrong = range(3, 3 + bad)
    for number in wrong:
        values[number] = b"wrong %d" % number
    columns, dead = parsed("multislot", values, click="label", ids={})
    assert columns.bad_lines == bad
    assert [one["record"] for one in dead] == [f"wrong {number}" for number in wrong]
    assert [one["offset"] for one in dead] == [100 + 2 * number for number in wrong]


def test_a_json_object_gives_the_feasigns_of_the_same_csv_line() -> None:
    rows: list[dict[str, Any]] = [
        {"click": 1, "user": "u1", "ids": [3, 4], "age": 2},
        {"click": 0.0, "user": 7, "ids": 5, "other": {"x": [1]}},
        {"click": True, "user": True, "ids": [], "age": None},
    ]
    columns, dead = parsed("json", [json.dumps(row).encode() for row in rows])
    assert dead == []
    assert columns.instances == 3
    lines = [b"1,u1,3|4,2", b"0,7,5,", b"1,true,,"]
    config = DataConfig.model_validate(
        {"format": "csv", "slots": "s", "train_files": ["x"]}, strict=False
    )
    slots = make_slots(**SLOTS).having({"csv": Csv(header=False)})
    text = Records(NAME, Batch(lines, [0, 1, 2]), Format.CSV)
    assert feasigns(columns) == feasigns(text.parse(LoadOptions(config, slots, 1).schema()))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b'{"click": 1, "user": ', "not a JSON object of the slots: Expecting value"),
        (b"[1]", "expected an object, found list"),
        (b"", "Expecting value"),
        (b'{"click": "yes", "user": "a"}', "'click': expected a number, found str"),
        (b'{"click": 1, "user": {"a": 1}}', "'user': expected a text or a number, found dict"),
        (b'{"click": 1, "user": "a", "ids": ["x"]}', "'ids': expected an integer of 64 bits"),
        (b'{"click": 1, "user": "a", "age": 1' + b"0" * 400 + b"}", "too large"),
        (b'{"user": "a"}', "a null, expected a label"),
    ],
)
def test_a_json_record_that_does_not_fit_is_a_dead_letter_and_its_neighbours_are_not(
    record: bytes, reason: str
) -> None:
    good = b'{"click": 1, "user": "a", "ids": [3], "age": 1}'
    columns, dead = parsed("json", [good, record, good])
    assert columns.instances == 2
    (letter,) = dead
    assert letter["offset"] == 102
    assert reason in letter["reason"]


def ipc(**columns: Any) -> bytes:
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_an_arrow_message_has_any_number_of_rows_and_a_bad_one_is_a_dead_letter() -> None:
    ids = pa.array([[1, 2], [3]], pa.list_(pa.uint64()))
    two = ipc(click=[1.0, 0.0], user=["a", "b"], ids=ids, age=[1.0, 2.0])
    one = ipc(click=[1], user=pa.array(["a"]).dictionary_encode(), ids=ids[:1], age=[1])
    bad_row = ipc(click=[1.0, 9.0], user=["a", "b"], ids=ids, age=[1.0, 2.0])
    columns, dead = parsed("arrow", [two, b"nothing", one, ipc(x=[1]), bad_row])
    assert columns.instances == 4
    assert [letter["offset"] for letter in dead] == [102, 106, 108]
    assert "not an Arrow IPC stream of the slots" in dead[0]["reason"]
    assert "not an Arrow IPC stream of the slots" in dead[1]["reason"]
    assert "label" in dead[2]["reason"]


def test_records_that_did_not_come_yet_are_no_lines() -> None:
    for data_format in ("json", "arrow", "multislot"):
        slots = {"click": "label", "ids": {}} if data_format == "multislot" else SLOTS
        columns, _ = parsed(data_format, [], **slots)
        assert (columns.lines, columns.instances) == (0, 0)


def test_a_small_pass_may_have_as_many_bad_records_as_one_of_10000() -> None:
    for bad, fails in ((10, False), (11, True)):
        counts = BadLines(0.001, least=10_000)
        counts.add(NAME, 20, bad, [(0, "wrong", "x")])
        if fails:
            with pytest.raises(DataError, match="11 of 20 lines are malformed"):
                counts.check()
        else:
            counts.check()


def test_a_csv_record_has_no_header() -> None:
    data = DataConfig.model_validate(
        {"format": "csv", "slots": "s", "stream": {"source": "logs"}}, strict=False
    )
    with pytest.raises(ConfigError, match=r"without a header, found csv: \{header: true"):
        LoadOptions(data, make_slots(**SLOTS), 1).check()


class Silent:
    """A stream that has a record, and then gives no answer."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def read(self, wanted: Range) -> Iterator[Batch]:
        yield Batch([b"1 1 1 5", b"wrong"], [wanted.begin, wanted.begin + 1], 77.0, 3)
        for _ in range(1000):
            yield Batch([], [])
            self._then()


def load_silently(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[], object], cancelled: threading.Event
) -> LoadedPass:
    monkeypatch.setattr(records, "open_stream", lambda _: Silent(then))
    data = DataConfig.model_validate(
        {
            "format": "multislot",
            "slots": "s",
            "batch_size": 4,
            "stream": {"source": "kafka://a:1/t"},
        },
        strict=False,
    )
    options = LoadOptions(data, make_slots(click="label", ids={}), 1)
    return load([NAME], options, 1 << 30, cancelled)


def test_loading_can_be_cancelled_while_a_stream_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled = threading.Event()
    with pytest.raises(CancelledError):
        load_silently(monkeypatch, cancelled.set, cancelled)


def test_a_loaded_pass_says_how_new_its_newest_event_is(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_silently(monkeypatch, lambda: None, threading.Event())
    assert (loaded.trained, loaded.lines, loaded.bad_lines) == (1, 2, 1)
    assert (loaded.events.newest, loaded.events.ahead) == (77.0, 3)
    assert [letter["offset"] for letter in loaded.events.dead] == [101]
