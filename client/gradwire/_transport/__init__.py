"""Connections and calls over gRPC."""
