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
    source.write_text(
        "int cudaMalloc(void**, unsigned long);\nint PyInit_cuda_only(void) { return cudaMalloc(0, 0); }\n"
    )
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
