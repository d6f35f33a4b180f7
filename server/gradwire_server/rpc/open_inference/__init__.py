"""The Open Inference Protocol (KServe V2, as Triton speaks it), by the path of Evaluate."""
