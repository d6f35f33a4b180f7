"""gradwire on a Ray cluster: `gradwire-ray`.

Ray places actors, gives them their share of GPUs and starts them anew elsewhere. It carries no
call: each actor owns a process that is the very same server as `gradwire-server`, which callers
reach directly. So calls keep TLS, tokens, health, deadlines and back-pressure as they are, and a
fault of the server is none of Ray's, or the other way round. A server ends with the actor that owns
it, and the actor with its server: Ray then starts both anew.

One more actor, the controller, lives beside Ray's head. Once a second it asks every replica how
busy it is, sets how many there are to be (scaling.py), and tells their addresses over HTTP, which
the SDK follows: `Client("replicas+http://HOST:PORT/NAME")`. It holds up nothing when it fails:
callers go on with the list they have.
"""
