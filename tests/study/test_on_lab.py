"""Studies on the lab: each worker on its own host, over a link of a given rate."""

from pathlib import Path

import pytest
from tests.lab.lab_state import lab_remains, needs_lab
from tests.study.test_runner import KINDS, quick, with_methods

from sandtable.study import StudySettings
from sandtable.study.runner import run_methods
from sandtable.study.worker_hosts import cores_for


def test_hosts_get_equal_parts_of_the_machine_unless_told() -> None:
    settings = StudySettings(workers=8)
    assert cores_for(settings, cores=2) == 0.25
    assert cores_for(settings.changed(workers=2), cores=16) == 1.0
    assert cores_for(settings.changed(cores_per_host=0.4), cores=2) == 0.4
    assert cores_for(settings.changed(cores_per_host=0.0), cores=2) == 0.0


def test_parts_too_small_to_be_held_are_no_limit() -> None:
    assert cores_for(StudySettings(workers=60), cores=2) == 0.0


@needs_lab
@pytest.mark.slow
def test_two_hosts_train_over_a_slow_cable_and_the_kernel_counts_what_they_send(tmp_path: Path) -> None:
    bulk, local = run_methods(quick(tmp_path, kind="lab", rate_mbit=20.0))
    assert bulk.wire_bytes is not None
    assert bulk.wire_bytes > bulk.sent_bytes
    assert local.sent_bytes < bulk.sent_bytes
    assert lab_remains() == []


@needs_lab
@pytest.mark.slow
def test_every_kind_trains_over_the_cables_of_the_lab(tmp_path: Path) -> None:
    settings = quick(tmp_path, kind="lab", cores_per_host=0.0, images_share=0.1, epochs=1)
    one, rain, blast, pipe = run_methods(with_methods(settings, KINDS))
    assert one.sent_bytes == 0
    assert one.wire_bytes is not None
    for run in (rain, blast, pipe):
        assert run.wire_bytes is not None
        # Half of what servers and replicas say stays on a host of two; evaluation comes on top.
        assert run.wire_bytes > one.wire_bytes + run.sent_bytes / 3
    assert lab_remains() == []
