"""The table of measured times: what it answers for, what is between two rows, and what is no table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.compute.operators import mm, op, pointwise, spec

from sandtable.cluster import load
from sandtable.engine.compute import MeasuredRow, MeasuredTable
from sandtable.errors import ClusterError


def table(*rows: MeasuredRow) -> MeasuredTable:
    return MeasuredTable(rows, device="here", source="this test")


def test_a_saved_table_reads_back_equal(tmp_path: Path) -> None:
    rows = (
        MeasuredRow(signature=mm(8, 16, 32), ns=1500.5),
        MeasuredRow(signature=pointwise(100), ns=7.0, any_arguments=True),
    )
    path = tmp_path / "table.json"
    table(*rows).save(path)
    loaded = MeasuredTable.load(path)
    assert (loaded.device, loaded.source, len(loaded)) == ("here", "this test", 2)
    assert [loaded.find(row.signature) for row in rows] == [1500.5, 7.0]
    assert loaded.rows[0] == rows[0]


def test_a_row_answers_whatever_the_overload_the_device_and_the_strides() -> None:
    here = op("add", [spec("float32", 4, 4, device="cpu")] * 2, [spec("float32", 4, 4, device="cpu")], '["t","t","s"]')
    there = op("add.Tensor", [spec("float32", 4, 4)] * 2, [spec("float32", 4, 4)], '["t","t","s"]')
    assert table(MeasuredRow(signature=here, ns=3.0)).find(there) == 3.0


def test_other_shapes_types_and_arguments_are_not_answered() -> None:
    row = MeasuredRow(signature=op("softmax", [spec("float32", 4)], [], '["t",0]'), ns=3.0)
    one = table(row)
    assert one.find(op("softmax", [spec("float32", 5)], [], '["t",0]')) is None
    assert one.find(op("softmax", [spec("float16", 4)], [], '["t",0]')) is None
    assert one.find(op("softmax", [spec("float32", 4)], [], '["t",1]')) is None
    assert table(MeasuredRow(signature=row.signature, ns=3.0, any_arguments=True)).find(
        op("softmax", [spec("float32", 4)], [], '["t",1]')
    )


def test_times_between_two_sizes_lie_on_the_line_and_beyond_them_there_is_none() -> None:
    both = table(*(MeasuredRow(signature=pointwise(size), ns=ns) for size, ns in ((300, 50.0), (100, 10.0))))
    assert both.interpolate(pointwise(150)) == pytest.approx(20.0)
    assert both.interpolate(pointwise(100)) == 10.0
    assert both.interpolate(pointwise(300)) == 50.0
    assert both.interpolate(pointwise(301)) is None
    assert both.interpolate(pointwise(99)) is None
    assert both.interpolate(pointwise(150, "float16")) is None
    assert MeasuredTable().interpolate(pointwise(1)) is None


GOOD: dict[str, Any] = {
    "format": "sandtable-measured",
    "version": 1,
    "rows": [
        {"signature": {"op": "aten::add", "in": [["float32", [2], [1], "cpu"]], "out": [], "args": None}, "ns": 5}
    ],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "csv"}, 'must be an object with "format": "sandtable-measured"'),
        ({"version": 2}, "version must be 1, but got 2; make the table again"),
        ({"rows": None}, 'and "rows"'),
        ({"rows": [5]}, r"rows\[0\] must be an object with signature and ns, but got 5"),
        ({"rows": [{**GOOD["rows"][0], "ns": -1}]}, r"rows\[0\].ns must be a positive number, but got -1"),
        ({"rows": [{**GOOD["rows"][0], "ns": "5"}]}, r"rows\[0\].ns must be a positive number, but got '5'"),
        ({"rows": [{"signature": {"op": "aten::add"}, "ns": 5}]}, r"rows\[0\].signature: a signature must be JSON"),
        (
            {"rows": [{"signature": {"op": "a", "in": [["float7", [2], [1], "cpu"]], "out": [], "args": []}, "ns": 5}]},
            r"rows\[0\].signature: dtype of a recorded tensor must be one of",
        ),
    ],
)
def test_a_bad_table_names_file_rule_value_and_remedy(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**GOOD, **change}), encoding="utf-8")
    with pytest.raises(ClusterError, match=message) as caught:
        MeasuredTable.load(path)
    assert str(path) in str(caught.value)


def test_a_good_table_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert MeasuredTable.load(path).find(op("add", [spec("float32", 2)], [], '["t"]')) == 5


def test_files_that_are_no_json_or_not_there_say_so(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with pytest.raises(ClusterError, match="must be readable UTF-8 text"):
        MeasuredTable.load(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ClusterError, match="must be valid JSON"):
        MeasuredTable.load(path)


def test_the_table_beside_a_cluster_file_is_found_and_only_that(tmp_path: Path) -> None:
    catalogued = load("lab")
    cluster = replace(catalogued, source_file=tmp_path / "lab.toml")
    assert MeasuredTable.for_cluster(cluster) is None
    MeasuredTable([], device="here").save(tmp_path / "lab.measured.json")
    found = MeasuredTable.for_cluster(cluster)
    assert found is not None
    assert found.device == "here"
    assert MeasuredTable.for_cluster(catalogued) is None
