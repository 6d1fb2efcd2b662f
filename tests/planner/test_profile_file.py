"""Profile files: two forms, and errors that name the place."""

import json

import pytest

from sandtable.errors import PlanError
from sandtable.pipeline_profile import Profile
from sandtable.planner import read_profile
from sandtable.planner.predicted_profile import with_event_times

LAYERS = [
    {"name": "conv", "kind": "Conv2d", "forward_s": 0.1, "backward_s": 0.2, "activation_bytes": 10, "weight_bytes": 1},
    {"name": "skip", "kind": "Conv2d", "forward_s": 0.3, "backward_s": 0.4, "activation_bytes": 20, "weight_bytes": 2},
    {"name": "line", "kind": "Linear", "forward_s": 0.5, "backward_s": 0.6, "activation_bytes": 40, "weight_bytes": 4},
]
PROFILE = {
    "format": "sandtable-profile",
    "version": 1,
    "layers": LAYERS,
    "edges": [["conv", "skip"], ["skip", "line"], ["conv", "line"]],
}


TIMES = "forward_compute_time=1.0, backward_compute_time=1.0"


def write(path, data) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_our_own_form_is_read_as_a_chain(tmp_path):
    chain = read_profile(write(tmp_path / "profile.json", PROFILE))
    assert [layer.name for layer in chain.layers] == ["conv", "skip", "line"]
    assert chain.cut_bytes == (10, 10 + 20, 0)
    assert chain.seconds == pytest.approx(2.1)
    assert chain.weight_bytes == 7


def test_the_published_form_is_read_as_a_chain(tmp_path):
    text = (
        "node1 -- Input -- forward_compute_time=0, backward_compute_time=0, activation_size=0, parameter_size=0\n"
        "node2 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=[8.0; 2.0], "
        "parameter_size=7.000\n"
        "node10 -- ReLU -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=4.0, parameter_size=0\n"
        "\tnode1 -- node2\n\tnode2 -- node10\n"
    )
    chain = read_profile(write(tmp_path / "graph.txt", text))
    assert [layer.name for layer in chain.layers] == ["node2", "node10"]
    assert chain.layers[0].forward_s == pytest.approx(0.0015)
    assert chain.cut_bytes == (10, 0)


def test_the_number_of_a_node_is_made_of_its_digits_alone(tmp_path):
    text = f"node² -- ReLU -- {TIMES}, activation_size=4.0, parameter_size=0\n"
    assert [layer.name for layer in read_profile(write(tmp_path / "graph.txt", text)).layers] == ["node²"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {**PROFILE, "version": 9},
            "must be a sandtable-profile of version 1, but .* of version 9; profile",
        ),
        ({"layers": []}, "but .* is None of version None"),
        ({**PROFILE, "layers": [{"name": "conv"}]}, "every layer and edge of a profile must be complete, .*forward_s"),
        ({**PROFILE, "basis": "guessed"}, "must be one of measured, predicted, but got 'guessed'"),
        ({**PROFILE, "layers": [*LAYERS, LAYERS[0]]}, "its own name, but 4 layers have 3 names"),
        ({**PROFILE, "edges": [["conv"]]}, "every layer and edge of a profile must be complete"),
        ({**PROFILE, "edges": [["conv", "nothing"]]}, "an edge must join two layers, but there is no layer 'nothing'"),
        ('{"format": ', "must be complete, but .* is not JSON"),
        ({**PROFILE, "layers": [{**LAYERS[0], "name": [1]}]}, "there is no layer 'conv'"),
        (
            {**PROFILE, "layers": [{**LAYERS[0], "weight_bytes": 10**400}]},
            "weight_bytes of a layer must be a finite number",
        ),
        (
            f"node1 -- ReLU -- {TIMES}, activation_size=inf, parameter_size=0\n",
            "must be a layer or an edge, but .*:1 is",
        ),
        ("something else\n", "must be a layer or an edge, but .*:1 is 'something else'"),
    ],
)
def test_files_that_are_no_profiles_are_refused_with_the_rule(data, message, tmp_path):
    with pytest.raises(PlanError, match=message):
        read_profile(write(tmp_path / "profile.json", data))


def test_a_profile_survives_its_file(tmp_path):
    profile = Profile.from_json(json.dumps({**PROFILE, "model": "Net", "device": "cpu", "inputs": ["2×3 float32"]}))
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    profile.save(tmp_path / "graph.txt")
    published = Profile.load(tmp_path / "graph.txt")
    assert [layer.kind for layer in published.layers] == ["Conv2d(conv)", "Conv2d(skip)", "Linear(line)"]
    assert published.seconds == pytest.approx(profile.seconds)
    assert published.edges == (("node1", "node2"), ("node2", "node3"), ("node1", "node3"))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(PlanError, match=r"must be a text file, but nowhere.json cannot be read"):
        read_profile("nowhere.json")


def test_captured_seconds_are_those_between_the_events_of_the_last_minibatch():
    warm_up = [5] * 16
    forward = [0, 1, 10, 12, 20, 23, 30, 34]  # three layers and the loss
    backward = [40, 45, 50, 56, 60, 67, 70, 78]  # the loss, then the layers from the last to the first
    times = [time * 10**9 for time in (*warm_up, *forward, *backward)]
    profile = Profile.from_json(json.dumps(PROFILE))
    found = with_event_times(profile, times, device="a card")
    assert [layer.forward_s for layer in found.layers] == [1, 2, 3 + 4]
    assert [layer.backward_s for layer in found.layers] == [8, 7, 6 + 5]
    assert (found.basis, found.device, found.edges) == ("predicted", "a card", profile.edges)
    assert profile.layers[0].forward_s == 0.1
    with pytest.raises(PlanError, match="of 3 layers must have 16 events, but the capture has 15"):
        with_event_times(profile, times[:15], device="a card")
