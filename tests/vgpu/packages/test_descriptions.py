"""Kernels that users describe: `sandtable.cost`, and what happens to calls that nobody described."""

import shutil
import subprocess
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import LaunchOptions, Rehearsal, cost, rehearse
from sandtable.errors import LaunchError
from sandtable.trace import Phase

COSTS = """
import sandtable, torch

@sandtable.cost("my_extension.scale", backward=2)
def scale(x, factor):
    return sandtable.Kernel(outputs=torch.empty_like(x), bytes=10 * x.nbytes)

def attend_backward(grad, q, k):
    return sandtable.Kernel(outputs=(torch.empty_like(q), torch.empty_like(k)), flops=77, family="attention")

@sandtable.cost("my_package.ops.attend", backward=attend_backward)
def attend(q, k):
    return sandtable.Kernel(outputs=torch.empty_like(q), flops=4096, dtype=torch.bfloat16, family="attention")

@sandtable.cost("my_extension.update")
def update(x):
    return sandtable.Kernel(writes=(x,))
"""
USE = """
import sandtable, torch
from my_extension import scale, update
from my_package.ops import attend

x = torch.ones(64, device="cuda", requires_grad=True)
scale(x, factor=2.0).sum().backward()
assert x.grad.shape == x.shape
q, k = (torch.ones(8, 4, device="cuda", requires_grad=True) for _ in range(2))
attend(q, k=k).sum().backward()
assert k.grad.shape == k.shape
update(x)
sandtable.step()
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return a function that rehearses a script beside a package with an undescribed function."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("from my_package.ops import attend")
    (package / "ops.py").write_text("def attend(q, k):\n    raise RuntimeError('this would need a card')\n")

    def run(script: str, *, costs: str = "") -> Rehearsal:
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        (tmp_path / "costs.py").write_text(costs)
        options = LaunchOptions(ranks_per_node=1, costs=tmp_path / "costs.py" if costs else "")
        with on_shared_launcher():
            return rehearse(tmp_path / "train.py", steps=1, options=options)

    return run


def _described(rehearsal: Rehearsal) -> dict[str, Any]:
    if rehearsal.error is not None:
        raise rehearsal.error
    operators = rehearsal.trace.rank(0).operators()
    return {op.signature.op: op for op in operators if op.signature.work is not None}


def test_functions_described_in_a_file_take_the_place_of_compiled_ones(run):
    by_name = _described(run(USE, costs=COSTS))
    assert set(by_name) == {
        "my_extension::scale",
        "my_extension::scale_backward",
        "my_extension::update",
        "my_package.ops::attend",
        "my_package.ops::attend_backward",
    }
    assert by_name["my_extension::scale"].signature.work.bytes_read == 10 * 256
    assert by_name["my_extension::scale_backward"].signature.work.bytes_read == 20 * 256
    assert by_name["my_extension::scale_backward"].phase == Phase.BACKWARD
    work = by_name["my_package.ops::attend"].signature.work
    assert (work.flops, work.dtype, work.family) == (4096, "bfloat16", "attention")
    assert by_name["my_package.ops::attend_backward"].signature.work.flops == 77


def test_a_script_may_describe_what_it_has_imported(run):
    by_name = _described(
        run(
            """
            import sandtable, torch
            from my_package import attend

            @sandtable.cost("my_package.ops.attend")
            def description(q, k):
                return sandtable.Kernel(outputs=torch.empty_like(q), flops=1)

            out = attend(torch.ones(2, device="cuda", requires_grad=True), None)
            assert not out.requires_grad  # as of a compiled function
            sandtable.step()
            """
        )
    )
    assert list(by_name) == ["my_package.ops::attend"]


def test_a_call_that_nobody_described_is_shown_with_the_remedy(run):
    error = run("import torch, my_extension\nmy_extension.other(torch.ones(2, 3, device='cuda'), 4)", costs=COSTS).error
    assert "my_extension.other(float32[2, 3], 4) is compiled code" in str(error.findings[0].evidence[0].text)
    assert "@sandtable.cost('my_extension.other')" in error.traceback


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_an_extension_that_needs_cuda_is_made_of_functions_that_ask_for_a_description(run, tmp_path):
    source = tmp_path / "extension.c"
    source.write_text("int cudaOfNoRelease(void);\nint PyInit_cuda_only(void) { return cudaOfNoRelease(); }\n")
    library = tmp_path / f"cuda_only{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    error = run("from cuda_only import forward\nforward(1, causal=True)").error
    assert "cuda_only.forward(1, causal=True) is compiled code" in error.findings[0].evidence[0].text


def test_a_compiled_function_that_reads_the_memory_of_a_card_is_named(run):
    error = run(
        """
        import ctypes, torch

        def compiled(x):
            return ctypes.c_float.from_address(x.data_ptr()).value

        compiled(torch.ones(100000, device="cuda"))
        """
    ).error
    (finding,) = error.findings
    assert "SIGSEGV) in a call from compiled" in finding.evidence[0].text
    assert finding.evidence[0].line == 5
    assert "@sandtable.cost" in finding.remedy


def test_a_description_must_return_a_kernel(run):
    costs = "import sandtable\nsandtable.cost('my_extension.f')(lambda: 1)\n"
    error = run("import my_extension\nmy_extension.f()", costs=costs).error
    assert "must return a sandtable.Kernel, but got 1" in error.traceback


def test_outside_a_rehearsal_a_description_does_nothing():
    def function() -> None: ...

    assert cost("package.function")(function) is function
    with pytest.raises(ValueError, match="with its module"):
        cost("function")


def test_the_file_of_descriptions_must_exist(tmp_path):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(LaunchError, match="costs must be a Python file"):
        rehearse(tmp_path / "train.py", options=LaunchOptions(costs=tmp_path / "none.py"))


def test_a_kernel_of_triton_is_described_by_its_arguments(run):
    by_name = _described(
        run(
            """
            import sandtable, torch, triton

            @triton.jit
            def kernel(x, n):
                pass

            @sandtable.cost("__main__.kernel")
            def description(x, n):
                return sandtable.Kernel(flops=5 * n, family="gemm")

            kernel[(1,)](torch.ones(8, device="cuda"), 8)
            sandtable.step()
            """
        )
    )
    assert by_name["triton::kernel"].signature.work.flops == 40


BUILD = """
import sandtable, torch
from torch.utils import cpp_extension

softmax = cpp_extension.load(name="scaled_upper_triang_masked_softmax_cuda", sources=["softmax.cpp", "softmax.cu"])
import scaled_upper_triang_masked_softmax_cuda
assert scaled_upper_triang_masked_softmax_cuda is softmax
scores = torch.ones(4, 64, 64, device="cuda", dtype=torch.float16)
assert softmax.forward(scores, 0.5).shape == scores.shape
built = cpp_extension.load_inline("my_extension", cpp_sources="", cuda_sources="__global__", functions=["scale"])
assert built.scale(scores, factor=2.0).shape == scores.shape
try:
    built.other(scores)
except RuntimeError as error:
    assert "@sandtable.cost('my_extension.other')" in str(error)
else:
    raise AssertionError("nobody described it")
sandtable.step()
"""


def test_extensions_of_cuda_sources_are_not_built(run: Any):
    done = run(BUILD, costs=COSTS)
    operators = [op.signature.op for op in done.trace.rank(0).operators()]
    assert "apex::scaled_upper_triang_masked_softmax" in operators
    assert "my_extension::scale" in operators
    assert done.error is None


OPERATORS = """
// m.def("not_declared");
#include <torch/extension.h>
std::vector<at::Tensor> split(const torch::Tensor& x, int64_t parts) {
  return {x};
}
void add_in_place(torch::Tensor &x, c10::optional<torch::Tensor> y, double factor);
TORCH_LIBRARY(my_operators, m) {
  m.def("scale(Tensor x, float factor) "
        "-> Tensor");
  m.def("split", &split);
  m.def("add_in_place", TORCH_FN(add_in_place));
}
TORCH_LIBRARY_IMPL(my_operators, CUDA, m) { m.impl("scale", &scale); }
"""
USE_OPERATORS = """
import sandtable, torch
from torch.utils import cpp_extension

assert cpp_extension.load(name="built", sources=["operators.cpp", "kernel.cu"], is_python_module=False) is None
scale = torch.ops.my_operators.scale
x = torch.ones(64, device="cuda", requires_grad=True)
scale(x, 2.0).sum().backward()
assert x.grad.shape == x.shape
assert [part.shape[0] for part in torch.ops.my_operators.split(x.detach(), 2)] == [32, 32]

@torch.jit.script
def in_torchscript(x: torch.Tensor):
    torch.ops.my_operators.add_in_place(x, None, 1.5)
    return x

if CALL:
    in_torchscript(x.detach())
sandtable.step()
"""
OPERATOR_COSTS = """
import sandtable, torch

@sandtable.cost("my_operators.scale", backward=2)
def scale(x, factor):
    return sandtable.Kernel(outputs=torch.empty_like(x), bytes=10 * x.nbytes)

@sandtable.cost("my_operators.split")
def split(x, parts):
    return sandtable.Kernel(outputs=[torch.empty_like(part) for part in x.chunk(parts)])
"""


def test_operators_of_cuda_sources_are_described(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "operators.cpp").write_text(OPERATORS)
    by_name = _described(run(USE_OPERATORS.replace("CALL", "False"), costs=OPERATOR_COSTS))
    assert list(by_name) == ["my_operators::scale", "my_operators::scale_backward", "my_operators::split"]
    assert by_name["my_operators::scale_backward"].signature.work.bytes_read == 20 * 256


def test_an_operator_that_nobody_described_is_named_though_torchscript_calls_it(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "operators.cpp").write_text(OPERATORS)
    finding = run(USE_OPERATORS.replace("CALL", "True"), costs=OPERATOR_COSTS).findings[0]
    assert "my_operators.add_in_place(float32[64], None, 1.5) is compiled code" in finding.evidence[0].text
    assert "@sandtable.cost('my_operators.add_in_place')" in finding.remedy


SHAPELESS = """
import sandtable, torch

library = torch.library.Library("my_library", "DEF")
library.define("pair(Tensor x) -> Tensor")
sandtable.cost("my_library.pair")(DESCRIPTION)
assert torch.ops.my_library.pair(torch.ones(4, device="cuda")).shape == (2, 4)
sandtable.step()
"""


def test_an_operator_without_a_shape_is_described_or_shown_with_the_remedy(run: Any):
    described = SHAPELESS.replace("DESCRIPTION", "lambda x: sandtable.Kernel(outputs=x.new_empty(2, 4), flops=5)")
    assert _described(run(described))["my_library::pair"].signature.work.flops == 5
    script = "\n".join(line for line in SHAPELESS.splitlines() if "DESCRIPTION" not in line)
    assert "@sandtable.cost('my_library.pair')" in run(script).findings[0].remedy


BUILT = """
import sandtable, torch, types
from torch.utils import cpp_extension

cpp_extension._jit_compile = lambda name, *args, **options: types.ModuleType(name)  # in the place of a compiler
built = cpp_extension.load(name="my_extension", sources=["extension.cpp"])
assert built.scale(torch.ones(4, device="cuda"), 2.0).shape == (4,)
sandtable.step()
"""


def test_a_function_of_an_extension_that_is_built_is_described(run: Any):
    assert list(_described(run(BUILT, costs=COSTS))) == ["my_extension::scale"]
