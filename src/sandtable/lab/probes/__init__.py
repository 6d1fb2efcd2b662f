"""Measurements that need torch: separate programs, which `lab` starts and never imports."""
