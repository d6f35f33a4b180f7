"""The gRPC service: a handler for each RPC, and conversion between bytes and values."""
