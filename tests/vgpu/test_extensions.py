"""Kernels for a card that a script's libraries bring are replaced when they are loaded."""

import sysconfig
from pathlib import Path

import pytest
import torch
from tests.vgpu.virtual import rehearse

from sandtable.native import compile_shared
from sandtable.vgpu.compatibility import torch_directory

SOURCE = """
#include <torch/library.h>

at::Tensor on_real_card(const at::Tensor&) {
  TORCH_CHECK(false, "a real card was asked");
}

at::Tensor shape(const at::Tensor& given) {
  return given.new_empty({given.size(0), 2});
}

TORCH_LIBRARY(sandtable_extension, m) {
  m.def("pair(Tensor given) -> Tensor");
}
TORCH_LIBRARY_IMPL(sandtable_extension, CUDA, m) {
  m.impl("pair", on_real_card);
}
TORCH_LIBRARY_IMPL(sandtable_extension, Meta, m) {
  m.impl("pair", shape);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("extension")
    (directory / "extension.cpp").write_text(SOURCE)
    torch_include = torch_directory() / "include"
    places = (torch_include, torch_include / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include"))
    flags = ("-std=c++20", "-O0", "-w", *(f"-I{place}" for place in places))
    compile_shared(directory / "extension.so", [directory / "extension.cpp"], flags=flags)
    return directory / "extension.so"


def load_and_call(library: str) -> None:
    torch.ops.load_library(library)
    print(tuple(torch.ops.sandtable_extension.pair(torch.randn(3, 4, device="cuda")).shape))


def test_a_librarys_kernel_for_the_card_does_not_run(library: Path) -> None:
    done = rehearse(load_and_call, arguments={"library": str(library)})
    assert [text for _, text in done.out] == ["(3, 2)"]
    names = [operator.signature.op for operator in done.trace.rank(0).operators()]
    assert "sandtable_extension::pair" in names
