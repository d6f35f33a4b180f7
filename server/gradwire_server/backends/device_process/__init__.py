"""A device behind a process of its own, which every I/O worker of a server shares.

An error of CUDA spoils the whole process that made it. So a device belongs to a process that does
nothing else, and that can be replaced:

- server.py         that process: it applies plans for whoever connects
- backend.py        the backend of an I/O worker: it hands calls to the device that is least busy
- links.py          one device as a worker sees it: there, or away until it is replaced
- lanes.py          a connection with shared memory, for one call at a time
- plan_encoding.py  plans as bytes
- shared_memory.py  memory of two processes
- channels.py       messages between them
- jobs.py           what each side is told when it starts

Tensors lie in memory that both sides have; what goes through the socket are descriptions of a few
hundred bytes. A lane has its own socket and its own thread in the device's process, so that a call
is two switches of threads and no queue is kept twice. Whoever dies, the other side finds the socket
closed, and the system frees the memory: it has no name.

The socket at which the device's process listens belongs to the process that starts it, and outlives
it: who connects while there is none waits for the next one.
"""
