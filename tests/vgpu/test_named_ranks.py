"""Ranks that the script names are sampled."""

from pathlib import Path

import numpy as np

from sandtable.vgpu.named_ranks import named_ranks

SCRIPT = """
import torch.distributed as dist

rank = dist.get_rank()
if rank == 0 or rank == 5:
    print("one")
if dist.get_rank() in (7, 400):
    print("two")
if args.local_rank == 3 and steps == 9:
    print("three")
"""


def test_ranks_that_are_compared_with_numbers_are_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert sorted(named_ranks(str(script), world_size=64, ranks_per_node=8)) == [3, 5, 7]
    assert sorted(named_ranks(str(script), world_size=6, ranks_per_node=2)) == [5]


def test_numbers_behind_names_and_in_modules_beside_the_script_count(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import watching\nWATCHED, SLOW = 21, 3\nODD = {9: 'x', 33: 'y'}\nif rank in ODD: pass\n")
    (tmp_path / "watching.py").write_text("LAST = 40\ndef f(rank):\n    return rank == LAST\n")
    assert sorted(named_ranks(str(script), world_size=64, ranks_per_node=8)) == [9, 33, 40]


def test_places_on_two_axes_name_the_rank_at_both(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("if tp_rank == 3 and mesh.get_local_rank('dp') == 5:\n    pass\n")
    ranks = np.arange(128)
    named = named_ranks(str(script), world_size=128, ranks_per_node=8, positions=[ranks % 8, ranks // 8])
    assert 5 * 8 + 3 in named
    assert len(named) <= 14


def test_what_is_no_python_file_names_none(tmp_path: Path) -> None:
    assert named_ranks(str(tmp_path / "none.py"), world_size=8, ranks_per_node=8) == ()
    (tmp_path / "broken.py").write_text("if rank ==\n")
    assert named_ranks(str(tmp_path / "broken.py"), world_size=8, ranks_per_node=8) == ()
