"""KV-cache and memory arithmetic: pure functions of an envelope, a rig and a model."""
