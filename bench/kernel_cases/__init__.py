"""Published times of single kernels, as operators that the cost model prices; see bench/kernels.py."""
