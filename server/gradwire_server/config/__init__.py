"""Settings of the server, its addresses, and the limits of its container."""
