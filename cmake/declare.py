"""`python declare.py ABI_PY OUT`: abi.h parsed while the library is built; the module OUT gives its types as `ffi`."""

import runpy
import sys

import cffi
from cffi import recompiler

abi = runpy.run_path(sys.argv[1], run_name="abi")
ffi = cffi.FFI()
ffi.cdef(abi["source"]("abi.h"))
recompiler.make_py_source(ffi, "libingot", sys.argv[2])
