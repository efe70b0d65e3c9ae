"""Benchmarks: examples in, scores out."""
