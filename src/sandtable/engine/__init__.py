"""The engine: how long the recorded work takes on a cluster."""
