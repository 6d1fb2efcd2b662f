"""The error of an import that fails says what to describe."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandtable.vgpu.missing_modules import missing_module_remedy


@pytest.mark.parametrize(
    ("source", "described"),
    [
        ("from fast_kernels import attend, norm", ["fast_kernels.attend", "fast_kernels.norm"]),
        ("import fast_kernels\ndef f(x):\n    return fast_kernels.gelu(x)", ["fast_kernels.gelu"]),
        (
            "import fast_kernels as fk\ndef f(x):\n    return fk.gelu(fk.norm(x))",
            ["fast_kernels.gelu", "fast_kernels.norm"],
        ),
        ("import fast_kernels._C", ["fast_kernels.function"]),
    ],
)
def test_the_remedy_names_what_the_file_wants_of_a_missing_module(
    source: str, described: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    with pytest.raises(ModuleNotFoundError) as caught:
        exec(compile(source, str(file), "exec"), {})
    remedy = missing_module_remedy(caught.value)
    assert remedy.startswith("install fast_kernels here")
    assert all(f'@sandtable.cost("{name}")' in remedy for name in described)


def test_a_module_that_an_installed_package_lacks_may_be_in_another_release() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        exec("import json.compression.compress", {})
    assert missing_module_remedy(caught.value).startswith("json is installed here without this module: another release")


def test_other_errors_have_no_such_remedy() -> None:
    assert missing_module_remedy(ImportError("cannot import name 'x'")) == ""
    assert missing_module_remedy(ModuleNotFoundError("...; sandtable run --without apex", name="apex.amp")) == ""


def test_what_python_no_longer_has_is_not_described() -> None:
    error = ModuleNotFoundError("No module named 'distutils'", name="distutils")
    assert missing_module_remedy(error).endswith("setuptools brings it: pip install setuptools")
    assert "an older Python" in missing_module_remedy(ModuleNotFoundError("No module named 'imp'", name="imp"))


def test_a_module_that_torch_lacks_is_another_release_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    remedy = missing_module_remedy(ModuleNotFoundError("No module named 'torch._six'", name="torch._six"))
    assert remedy.startswith("torch 2.13.0 has no torch._six: the code asks for another release of torch")


def test_a_package_in_the_working_directory_has_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_code").mkdir()
    (tmp_path / "my_code" / "model.py").touch()
    monkeypatch.chdir(tmp_path)
    remedy = missing_module_remedy(ModuleNotFoundError("No module named 'my_code'", name="my_code"))
    assert remedy.startswith("my_code is in the working directory")
    assert remedy.endswith("set PYTHONPATH=.")
