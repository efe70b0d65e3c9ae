"""The eviction core: which cached tokens a decoder keeps. Knows tensors and models; no files, no benchmarks."""
