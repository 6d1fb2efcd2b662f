"""WHEN: at which steps ranks exchange, and whether gradients or weights."""
