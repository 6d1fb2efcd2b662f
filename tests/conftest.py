"""What every process of the tests starts with: one thread to compute on, and Ctrl-C as it is on a terminal.

pytest runs one worker a core, and ranks share those. A shell lets jobs in the background ignore SIGINT, and so would
everything they start: tests that interrupt a process would wait in vain.
"""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
signal.signal(signal.SIGINT, signal.default_int_handler)
