"""Entry of all benchmarks: python -m benchmarks NAME [arguments]."""

from __future__ import annotations

import sys
from importlib import import_module

# Name, module and meaning; `python -m benchmarks NAME --help` tells more.
NAMES: dict[str, tuple[str, str]] = {
    "compare": ("compare.command", "this tree against the baseline commit, row by row"),
    "wire": ("wire.stages", "small calls, large calls and streams beside bare gRPC servers"),
    "many": ("many", "evaluate_many of tiny tensors against calls of evaluate"),
    "async-lag": ("async_lag", "lag of an event loop while AsyncClient streams"),
    "overload": ("overload.run", "three times the peak load: goodput, latencies, refusals"),
    "memory": ("memory", "memory of server and client while 2 GiB stream"),
    "start": ("start", "time to readiness, and the first request of a fresh server"),
    "telemetry": ("telemetry", "cost of metrics, traces and scrapes"),
    "tls": ("tls", "cost of TLS and tokens"),
    "compute": ("compute.table", "LocalClient against PyTorch, oneDNN and a copy loop"),
    "compute-fixed": ("compute.fixed", "fixed cost of a tiny LocalClient call"),
    "compute-growth": ("compute.growth", "cost of a gradient by its size"),
    "compute-targets": ("compute.targets", "checks a JSON file of compute against its targets"),
    "compute-plot": ("compute.plot", "draws JSON files of compute and compute-growth"),
    "gpu": ("gpu.run", "CUDA kernels against a copy and PyTorch; calls from host memory"),
    "gpu-plot": ("gpu.plot", "draws a JSON file of gpu"),
    "scale": ("scale.split", "one evaluation by 1, 2 and 4 servers"),
    "scale-model": ("scale.model", "the model of docs/scaling-out.md, formula and simulation"),
    "scale-ray": ("scale.replicas", "a replica on Ray against a plain server; needs root"),
    "shared": ("shared", "shared memory beside a stream and LocalClient, on one machine"),
    "peers": ("peers", "Triton, a bare grpc.aio server and PyTorch under the same load"),
}


def main(argv: list[str]) -> int:
    """Run the named benchmark, or list all of them."""
    if argv and argv[0] in NAMES:
        status: int = import_module(f"benchmarks.{NAMES[argv[0]][0]}").main(argv[1:])
        return status
    print("python -m benchmarks NAME [arguments]\n")
    for name, (_, meaning) in NAMES.items():
        print(f"  {name:17}{meaning}")
    return 0 if not argv else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
