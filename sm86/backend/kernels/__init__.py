"""The operations, one per module: a plain-torch reference first, the GPU form (Triton) beside it.

A GPU form can be exchanged without touching its callers: the wrapper picks it for CUDA tensors and
the reference for everything else, and the tests hold every form to the reference.
"""
