"""CUDA kernels with the bits of `numpy_cpu`, and how a plan becomes launches of them.

How a plan becomes machine code:

- dispatch.py   from a plan to a program, a list of launches: which kernels, in which order
- launches.py   one launch of each kernel: its tables, its grid, its arguments in order
- geometry.py   grids, strips and tiles
- tables.py     maps as kernels read them
- programs.py   what a program is: launches, tables, scratch memory
- kernels.py    every kernel there is, by name
- build.py      compiles them; the one module here that imports cupy, and only when it is called
- *.cu          the kernels, each with its formula, on numbers.cuh

All but build.py are functions of values: they need neither a GPU nor a driver.
"""
