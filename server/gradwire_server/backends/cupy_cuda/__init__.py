"""The backend `cuda`: programs of `backends.cuda` on a device, through CuPy.

- device.py       what the backend asks of a device; tests have one that is simulated
- cupy_device.py  the real one; it alone imports cupy, and only when it is made
- memory.py       device memory within a limit
- slots.py        a stream with its memory, which one call uses at a time
- backend.py      plans and tensors on those

A device that is lost stays lost until the process is replaced: a server has `device_process` for
that. Not here yet: copies of one call overlap with its kernels, and not only with those of others.
"""
