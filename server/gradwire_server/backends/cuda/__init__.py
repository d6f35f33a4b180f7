"""CUDA kernels with the bits of `numpy_cpu`, and the programs that launch them.

A plan becomes machine code in these modules:

- dispatch.py   a plan's program: the choice and the order of kernels
- launches.py   a launch of each kernel: its tables, its grid, its arguments in order
- geometry.py   grids, strips and tiles of launches, and tables of maps
- programs.py   the values: Program, Launch, Buffer, Kernel
- kernels.py    every kernel there is, by name
- build.py      compiles them; the one module here that imports cupy, and only when it is called
- *.cu          the kernels, each with its formula, on numbers.cuh

All but build.py are functions of values: they need neither a GPU nor a driver.
"""
