"""The backend `cuda`: programs of `backends.cuda` on a device, through CuPy.

- device.py       what the backend asks of a device; tests have one that is simulated
- cupy_device.py  the real one; it alone imports cupy, and only when it is made
- cuda_errors.py  which of CUDA's errors last
- calls.py        what one call asks for, by outer slices
- parts.py        how calls are cut into parts, and bytes into pieces
- waiting.py      calls that wait for a stream; equal small ones are computed together
- turns.py        calls that take memory, one at a time
- taking.py       what a call takes: its parts, tables, slabs, and further streams
- memory.py       device memory within a limit
- kept.py         programs of recent plans, and their tables on the device
- slots.py        a stream with its memory, which one call uses at a time
- copies.py       copies of one stream, through two halves of pinned memory
- registered.py   memory of the host that needs none of that
- backend.py      plans and tensors on those

A device that is lost stays lost until the process is replaced, as a worker is by its supervisor.
"""
