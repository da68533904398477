"""The native rebuild: vLLM's kernel libraries compiled for SM 8.6 from its source distribution."""
