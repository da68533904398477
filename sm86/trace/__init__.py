"""Profiler traces: from a PyTorch trace file to the time each kind of kernel takes in a decode step."""
