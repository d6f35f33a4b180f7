"""Benchmark of gradwire beside Triton, a bare grpc.aio server and PyTorch."""

from __future__ import annotations

from benchmarks.peers.command import main

__all__ = ["main"]
