"""The gRPC service: handlers of the RPCs, and conversion of bytes."""
