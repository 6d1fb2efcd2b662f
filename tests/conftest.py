"""Every process of the tests computes on one thread: pytest runs one worker a core, and ranks share those."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
