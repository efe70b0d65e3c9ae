"""Prefill compressors: which tokens of a prompt stay before anything is decoded. Knows tensors and models."""
