"""What a process costs, and whether it computes."""

import subprocess
import sys
import time

from sandtable.vgpu.processes import wants_core

WAITS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def _ever_wants_core(program: str) -> bool:
    """Return whether a process that waits for `program` wants a core, once all of it has started."""
    with subprocess.Popen([sys.executable, "-c", WAITS, program]) as process:
        time.sleep(0.5)
        try:
            return any(wants_core(process.pid) for _ in range(5))
        finally:
            process.kill()


def test_a_process_computes_while_a_program_that_it_waits_for_does():
    assert _ever_wants_core("import time\nend = time.time() + 5\nwhile time.time() < end: pass")


def test_a_process_that_waits_for_one_that_sleeps_does_not():
    assert not _ever_wants_core("import time; time.sleep(5)")
