"""Tools that prove the backend: a checkpoint maker, a reference on transformers, a compiler of every kernel."""
