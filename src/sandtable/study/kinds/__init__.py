"""Ways to train one model on several workers: a file for each, all driven by the same loop with the same clock.

Nothing is imported here: a worker loads only the kind it needs, and there may be sixty of them.
"""
