"""`sandtable partition` as a user types it."""

import json
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.errors import PlanError

RUNNER = CliRunner()


@pytest.fixture
def profile(tmp_path):
    """Write a profile with much work and few weights, then little work and many weights."""
    layers = [
        {"name": f"conv{k}", "forward_s": 0.05, "backward_s": 0.1, "activation_bytes": 10**6, "weight_bytes": 10**5}
        for k in range(4)
    ]
    layers.append(
        {"name": "line", "forward_s": 0.02, "backward_s": 0.04, "activation_bytes": 10, "weight_bytes": 5 * 10**8}
    )
    names = [layer["name"] for layer in layers]
    path = tmp_path / "profile.json"
    edges = list(pairwise(names))
    path.write_text(json.dumps({"format": "sandtable-profile", "version": 1, "layers": layers, "edges": edges}))
    return str(path)


def run(*arguments: str) -> str:
    done = RUNNER.invoke(app, ["partition", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_split_is_printed_with_what_it_is_worth(profile):
    text = run(profile, "--machines", "8", "--bandwidth", "10Gbit")
    assert "7-1 (machines by stage)" in text
    assert "conv0 … conv3 (4)" in text
    assert "minibatches per second" in text
    assert "99.7% fewer" in text
    assert "8 machines with 10 Gbit/s each" in text


def test_as_json_it_says_what_a_pipeline_is_made_with(profile):
    data = json.loads(run(profile, "--machines", "8", "--bandwidth", "10Gbit", "--json"))
    assert (data["shape"], data["boundaries"], data["replicas"]) == ("7-1", [4], [7, 1])
    assert data["in_flight"] == 2
    assert data["stages"][0]["layers"] == ["conv0", "conv1", "conv2", "conv3"]
    assert data["stages"][0]["bytes_to_next"] == 10**6
    assert data["seconds_per_minibatch"] == pytest.approx(0.6 / 7)
    assert data["data_parallel_seconds"] == pytest.approx(4 * 7 / 8 * (5e8 + 4e5) / 1.25e9 / 8)
    assert data["bytes_per_minibatch"] < data["data_parallel_bytes"]


def test_a_smaller_minibatch_than_the_profiled_one_may_be_asked_for(profile):
    arguments = (profile, "--machines", "8", "--bandwidth", "100TB", "--json")
    whole, half = (json.loads(run(*arguments, "--minibatch-scale", scale)) for scale in ("1", "0.5"))
    assert half["seconds_per_minibatch"] == pytest.approx(whole["seconds_per_minibatch"] / 2)


def test_one_machine_or_fast_links_are_plain_data_parallelism(profile):
    assert "4 (plain data parallelism)" in run(profile, "--machines", "4", "--bandwidth", "100TB")
    assert json.loads(run(profile, "--machines", "1", "--bandwidth", "1Gbit", "--json"))["shape"] == "1"


def test_devices_inside_machines_are_a_level_of_their_own(profile):
    arguments = (profile, "--machines", "2", "--bandwidth", "1Gbit", "--devices", "4", "--device-bandwidth", "100Gbit")
    assert "4 devices in each with 100 Gbit/s" in run(*arguments)
    data = json.loads(run(*arguments, "--json"))
    assert data["machines"] == [4, 2]
    assert all(stage["inside"] for stage in data["stages"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--bandwidth", "fast"),
            "--bandwidth must be a number and one of bit, .* but got 'fast'; for example 10Gbit",
        ),
        (("--bandwidth", "1Gbit", "--devices", "2"), "2 devices in a machine need --device-bandwidth"),
        (("--bandwidth", "1Gbit", "--memory", "1MB"), "must fit into the memory of a device"),
        (("--bandwidth", "0Gbit"), "bandwidth must be more than 0"),
    ],
)
def test_bad_options_are_refused_with_the_rule(profile, arguments, message):
    with pytest.raises(PlanError, match=message):
        run(profile, "--machines", "4", *arguments)


def test_help_shows_examples():
    assert "sandtable partition profile.json --machines 8 --bandwidth 10Gbit" in run("--help")


def test_json_stays_json_when_nothing_takes_any_time(tmp_path):
    layer = {"name": "line", "forward_s": 0, "backward_s": 0, "activation_bytes": 0, "weight_bytes": 0}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"format": "sandtable-profile", "version": 1, "layers": [layer], "edges": []}))
    text = run(str(path), "--machines", "2", "--bandwidth", "1Gbit", "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(text, parse_constant=refuse)["minibatches_per_s"] is None
