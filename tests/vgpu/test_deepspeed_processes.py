"""DeepSpeed's optimizers in processes of their own start none; their updates take time beside the rank."""

import textwrap
from pathlib import Path

import pytest

from sandtable import LaunchOptions, Rehearsal, rehearse

MODULES = {
    "runtime/superoffload/superoffload_utils.py": """
        class SuperOffloadCPUOptimizer:
            def __init__(self, *args, **options):
                raise AssertionError("this would start a process")
        """,
    "runtime/zenflow/zenflow_utils.py": """
        def start_optimizer_process(optimizer):
            raise AssertionError("this would start a process")
        """,
    "runtime/engine.py": """
        class DeepSpeedEngine:
            def __init__(self, parameter, is_boundary=lambda number: True):
                self.parameter, self.is_boundary, self.number = parameter, is_boundary, 0

            def step(self):
                self.number += 1
                if self.is_boundary(self.number):
                    self._take_model_step()

            def _take_model_step(self):
                self.parameter.data.add_(self.parameter.grad)
        """,
}
SIZE = 1 << 26
UPDATE_NS = (4 + 3 + 2) * 4 * SIZE * 1e9 / (0.45 * 409.6e9)
"""Parameters, gradients and two states are read, all but the gradients written, and one tensor is copied first."""


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that rehearses a script beside a package that looks like DeepSpeed."""
    for name, text in MODULES.items():
        path = tmp_path / "deepspeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        for folder in (path.parent, path.parent.parent):
            (folder / "__init__.py").write_text("")

    def run(body: str, *, steps: int = 1) -> Rehearsal:
        script = tmp_path / "train.py"
        script.write_text("import sandtable, torch\n" + textwrap.dedent(body))
        return rehearse(script, cluster="dgx-a100", steps=steps, options=LaunchOptions(ranks_per_node=1))

    return run


SUPEROFFLOAD = f"""
from deepspeed.runtime.superoffload.superoffload_utils import SuperOffloadCPUOptimizer

parameters, gradients = (torch.empty({SIZE}) for _ in range(2))
weight = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
optimizer = SuperOffloadCPUOptimizer({{}}, 0.8, {SIZE}, True)
optimizer.async_step(0, 3, parameters, gradients, lr=1e-3)
assert optimizer.get_result() is None
for _ in range(NUM_PRODUCTS):
    weight @ weight
result = optimizer.get_result("adam_step")
assert result["sub_group_id"] == 3 and result["updated_param"] is parameters
assert optimizer.get_result() is None
torch.ones(8, device="cuda").sum()
sandtable.step()
"""


def test_superoffload_updates_beside_the_card_and_the_rank_waits_for_the_rest(run):
    short = run(SUPEROFFLOAD.replace("NUM_PRODUCTS", "1"))
    assert short.error is None
    assert short.timeline.step_ns == pytest.approx(UPDATE_NS, rel=0.05), "the product is done meanwhile"
    assert short.summary.memory[0].use.host_bytes == (2 + 1 + 2) * 4 * SIZE, "the script's two, a buffer, two states"
    assert run(SUPEROFFLOAD.replace("NUM_PRODUCTS", "20")).timeline.step_ns > 2 * UPDATE_NS, "the card takes longer"


def test_zenflow_updates_all_groups_and_waits_for_the_last(run):
    rehearsal = run(
        f"""
        from types import SimpleNamespace
        from deepspeed.runtime.zenflow.zenflow_utils import start_optimizer_process

        partition = torch.nn.Parameter(torch.empty({SIZE}))
        partition.overlap_grad = [torch.empty({SIZE}), torch.empty({SIZE})]
        inner = SimpleNamespace(param_groups=[{{"params": [partition]}}])
        optimizer = SimpleNamespace(zf_stage3=False, optimizer=inner)
        start_optimizer_process(optimizer)
        optimizer.zf_op.zenflow_adam_submit(optimizer.zf_ctrl.data_ptr(), 1, 1, [1e-3], [0.9], [0.99])
        assert optimizer.zf_op.zenflow_adam_wait(optimizer.zf_ctrl.data_ptr(), 60)
        partition.stale_param.data.to("cuda")
        sandtable.step()
        """
    )
    assert rehearsal.error is None
    copy_ns = 4 * SIZE * 1e9 / 25e9
    assert rehearsal.timeline.step_ns == pytest.approx(UPDATE_NS + copy_ns, rel=0.1)


def test_a_step_is_one_of_the_engine_where_no_optimizer_of_torch_steps(run):
    rehearsal = run(
        """
        from deepspeed.runtime.engine import DeepSpeedEngine

        weight = torch.nn.Parameter(torch.ones(256, 256, device="cuda"))
        states = torch.optim.AdamW([weight])  # DeepSpeed keeps it, and has a process step in its place
        engine = DeepSpeedEngine(weight, is_boundary=lambda number: number % 2 == 0)
        for _ in range(20):
            (weight @ weight).sum().backward()
            engine.step()
        """,
        steps=3,
    )
    assert rehearsal.error is None
    products = [op for op in rehearsal.trace.rank(0).operators() if op.signature.op == "aten::mm"]
    assert len(products) == 3 * 2 * 3 + 1, "three steps of two passes with three products each, and where it stops"
