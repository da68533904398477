"""Traces with known totals, for tests and benchmarks."""
