"""The decisions of both clients, without I/O: nothing here imports grpc."""
