"""Checkpoints on disk: what lies there, what must lie there, and what is wrong with it. Reads files, no tensors."""
