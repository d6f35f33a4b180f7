"""The backend `cuda`: programs of `backends.cuda` on a device, through CuPy.

- device.py       what the backend asks of a device; tests have one that is simulated
- cupy_device.py  the real one; it alone imports cupy, and only when it is made
- memory.py       device memory within a limit
- slots.py        a stream with its memory, which one call uses at a time
- backend.py      plans and tensors on those

Not here yet: a device that is lost stays lost until the process is replaced; copies of one call do
not overlap with its kernels, only with those of other calls; one device serves all.
"""
