"""Fused kernels that many packages have: norms, rotary embeddings, losses and activations, each in one launch."""
