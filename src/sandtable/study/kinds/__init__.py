"""Kinds of training: one file each, all driven by the same loop and timed by the same clock.

Nothing is imported here: a worker loads only the kind it needs, and there may be sixty workers.
"""
