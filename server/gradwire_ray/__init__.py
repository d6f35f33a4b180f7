"""Replicas of gradwire-server on a Ray cluster: `gradwire-ray`.

Ray places actors, gives them their share of GPUs and starts dead ones anew (`max_restarts`). It
carries no call: each actor owns a process that is the very same server as `gradwire-server`, which
callers reach directly. So calls keep TLS, tokens, health, deadlines and back-pressure as they are.
A server ends with its actor, and an actor with its server.

One more actor, the controller, runs beside Ray's head. Replicas report to it twice a second. It
sets how many there are to be (scaling.py), and serves their addresses over HTTP, which the SDK
follows: `Client("replicas+http://HOST:PORT/NAME")`. While it is down, callers use the list they
have. It stores nothing: its successor asks Ray for the replicas' names, and they report to it.
"""
