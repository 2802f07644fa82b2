"""Benchmarks: `python -m benchmarks.NAME` from the root prints one JSON line last."""
