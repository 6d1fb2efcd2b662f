"""Modules are adapted by every package that names them."""

import importlib
import sys
from types import ModuleType
from unittest.mock import Mock

from sandtable.vgpu.packages import Package
from sandtable.vgpu.packages.importing import PackageFinder


def test_a_module_that_two_packages_name_is_adapted_by_both(tmp_path, monkeypatch) -> None:
    (tmp_path / "adapted_twice.py").write_text("steps = []\n")

    def adding(step: str) -> Package:
        def adapt(module: ModuleType) -> None:
            module.steps.append(step)

        return Package(name=step, adaptations={"adapted_twice": adapt})

    finder = PackageFinder([adding("phases"), adding("events")], Mock())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    module = importlib.import_module("adapted_twice")
    assert module.steps == ["phases", "events"]
    finder.adapt_imported()
    assert module.steps == ["phases", "events"] * 2
