"""The command that each host runs."""

import sys

import pytest

from sandtable.errors import LabError
from sandtable.lab.torchrun import TorchrunNode, command_for, environment_for

NODE = TorchrunNode(index=2, num_hosts=4, address="10.83.0.3", master_address="10.83.0.1", interface="eth0")
OWN = ["--nnodes", "4", "--node-rank", "2", "--master-addr", "10.83.0.1", "--master-port", "29500"]


def test_torchrun_is_told_which_node_of_how_many_it_is() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "--steps", "3"]
    expected = [*command[:3], *OWN, "--local-addr", "10.83.0.3", *command[3:]]
    assert command_for(command, NODE) == expected


def test_torchrun_that_is_not_on_the_path_is_this_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert command_for(["torchrun", "train.py"], NODE)[:3] == [sys.executable, "-m", "torch.distributed.run"]


def test_other_commands_are_left_as_they_are() -> None:
    assert command_for(["ip", "addr"], NODE) == ["ip", "addr"]


@pytest.mark.parametrize("option", ["--nnodes", "--node_rank=1", "--master-addr=1.2.3.4", "--standalone"])
def test_option_that_the_lab_fills_in_is_refused(option: str) -> None:
    with pytest.raises(LabError, match="must be left to the lab"):
        command_for(["torchrun", option, "2", "train.py"], NODE)


def test_the_scripts_own_options_may_have_any_name() -> None:
    assert command_for(["torchrun", "train.py", "--nnodes", "2"], NODE)[-2:] == ["--nnodes", "2"]


def test_no_command_gets_a_remedy() -> None:
    with pytest.raises(LabError, match="try: -- torchrun"):
        command_for([], NODE)


def test_sockets_are_bound_to_the_labs_interface_and_threads_are_the_users_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = environment_for(NODE, threads=3)
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "eth0"
    assert environment["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment_for(NODE, threads=3)["OMP_NUM_THREADS"] == "7"
