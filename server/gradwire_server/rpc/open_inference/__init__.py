"""Open Inference Protocol (KServe V2, Triton) on the path of Evaluate."""
