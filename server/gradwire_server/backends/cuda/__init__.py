"""CUDA kernels with the bits of `numpy_cpu`, and their backend `cuda`.

From a plan to launches (pure functions, without a GPU or a driver):

- dispatch.py     a plan's program: the choice and the order of kernels
- launches.py     a launch of each kernel: its tables, its grid, its arguments in order
- programs.py     the values: Program, Launch, Buffer, and every kernel by name
- build.py        compiles them with NVRTC and caches cubins
- *.cu            the kernels, each with its formula, on numbers.cuh

From host arrays to launches:

- device.py       protocol of a device; tests have a simulated one
- cupy_device.py  the current CUDA device; this module and build.py import cupy, when called
- staging.py      streams with pinned buffers, and the queue of calls for them
- backend.py      plans and tensors on those
"""
