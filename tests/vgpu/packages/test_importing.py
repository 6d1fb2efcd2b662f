"""Packages that are not installed: how scripts find out about them, and how they stay missing."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.vgpu.virtual import on_gpu, on_shared_launcher, rehearse

from sandtable import LaunchOptions
from sandtable import rehearse as rehearse_script
from sandtable.errors import LaunchError

pytestmark = pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash_attn is installed here")


@on_gpu()
def test_probes_find_a_missing_package():
    import importlib.metadata
    import importlib.util

    assert importlib.util.find_spec("flash_attn") is not None
    assert importlib.util.find_spec("flash_attn.bert_padding") is not None
    assert importlib.metadata.version("flash-attn") == "2.8.3"
    assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash_attn"]
    import flash_attn

    assert flash_attn.__version__ == "2.8.3"


@on_gpu()
def test_transformers_takes_it_for_installed():
    pytest.importorskip("transformers")
    from transformers.utils.import_utils import is_flash_attn_2_available

    assert is_flash_attn_2_available()


@on_gpu()
def test_a_module_that_the_replacement_lacks_says_so():
    with pytest.raises(ModuleNotFoundError, match="--without flash_attn"):
        import flash_attn.modules.block  # noqa: F401
    with pytest.raises(ImportError):
        from flash_attn import unheard_of  # noqa: F401


def _imports_twice() -> None:
    import flash_attn  # noqa: F401
    from flash_attn.bert_padding import pad_input  # noqa: F401


def test_one_note_names_the_package_and_the_remedy():
    (note,) = rehearse(_imports_twice).notes("missing package")
    assert "flash_attn is not installed here" in note.text
    assert "--without flash_attn" in note.text


SCRIPT = """
import importlib.util, sandtable, torch
assert importlib.util.find_spec("flash_attn") is None
try:
    import flash_attn
except ImportError:
    torch.zeros(1, device="cuda")
    sandtable.step()
"""


def test_a_package_may_stay_missing(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    options = LaunchOptions(ranks_per_node=1, without=("flash_attn",))
    with on_shared_launcher():
        run = rehearse_script(tmp_path / "train.py", steps=1, options=options)
    assert run.error is None
    assert run.trace.num_steps == 1


def test_only_known_packages_can_be_left_out(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(LaunchError, match=r"choose from .*flash_attn"):
        rehearse_script(tmp_path / "train.py", options=LaunchOptions(without=("numpy",)))


def test_the_packages_that_can_be_left_out_are_those_with_a_replacement():
    from unittest import mock

    from sandtable.vgpu.package_names import REPLACED_PACKAGES
    from sandtable.vgpu.packages.known import PACKAGES

    described = [describe(mock.Mock()) for describe in PACKAGES]
    assert tuple(sorted(package.name for package in described if package.missing)) == REPLACED_PACKAGES
