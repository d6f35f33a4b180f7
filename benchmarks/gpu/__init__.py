"""Benchmarks of the CUDA kernels beside a copy and PyTorch."""
