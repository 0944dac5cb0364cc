"""Reads and writes files with shared buffers that another node holds: buffers.py LIBRARY FOLDER"""

import ctypes
import os
import sys

library = ctypes.CDLL(sys.argv[1])
library.trellis_base.restype = ctypes.c_void_p
for name in ["trellis_base", "trellis_node", "trellis_leave"]:
    getattr(library, name).argtypes = [ctypes.c_void_p]
library.trellis_barrier.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
library.trellis_last_error.restype = ctypes.c_char_p


def good(status):
    if status != 0:
        sys.exit(library.trellis_last_error().decode())


cluster = ctypes.c_void_p()
good(library.trellis_join(None, ctypes.byref(cluster)))
SIZE = 40 * 4096 + 5
content = bytes(number * 7 % 251 for number in range(SIZE))
memory = memoryview((ctypes.c_ubyte * SIZE).from_address(library.trellis_base(cluster))).cast("B")
path = os.path.join(sys.argv[2], "content")

if library.trellis_node(cluster) == 0:
    with open(path, "wb") as file:
        file.write(content)
    memory[:] = bytes(SIZE)
good(library.trellis_barrier(cluster, 1))
if library.trellis_node(cluster) == 1:
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(memory) == SIZE
    assert memory == content
good(library.trellis_barrier(cluster, 2))
if library.trellis_node(cluster) == 0:
    with open(path + "-copy", "wb", buffering=0) as file:
        assert file.write(memory) == SIZE
    with open(path + "-copy", "rb") as file:
        assert file.read() == content
good(library.trellis_leave(cluster))
print("complete")
