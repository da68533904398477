"""Sparse MLA attention: the reference, the split policy, the CUDA kernel and the layer that vLLM calls."""
