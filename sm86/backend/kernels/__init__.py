"""The operations, one per module: a plain-torch `reference` first, the GPU form `launch` (Triton) beside it.

Both take the same arguments and write the same outputs, so a GPU form can be exchanged alone:
the tests hold every form to its reference, and the hooks call `launch` only.
"""
