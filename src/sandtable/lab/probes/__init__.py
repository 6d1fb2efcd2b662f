"""Measurements that need torch: programs for processes of their own, started by the room and never imported by it."""
