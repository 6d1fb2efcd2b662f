"""Training leaves the compiler unloaded, but it remains available."""

import subprocess
import sys

PROGRAM = """
import sys, torch
from sandtable.study.lean import leave_out_compiler
leave_out_compiler()
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
optimizer.zero_grad()
print("sympy" in sys.modules)
print(torch._dynamo.is_compiling(), type(sys.modules["torch._dynamo"]).__name__)
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_optimizer_runs_without_the_compiler_which_is_there_when_asked_for() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert answer.stdout.split("\n")[:3] == ["False", "False module", "2.0"], answer.stderr
