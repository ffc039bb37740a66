"""`python wasi.py --dir FOLDER PROGRAM ARGUMENTS`: what the command `wasmtime` does, which the package has not. Runs it
with the files of the folder, and exits as it does.
"""

import sys

from wasmtime import Engine, ExitTrap, Linker, Module, Store, WasiConfig

if __name__ == "__main__":
    option, folder, *words = sys.argv[1:]
    if option != "--dir":
        sys.exit(f"wasi.py: got {option!r}, expected --dir")
    engine = Engine()
    store, linker = Store(engine), Linker(engine)
    linker.define_wasi()
    world = WasiConfig()
    world.argv = words
    world.inherit_stdout()
    world.inherit_stderr()
    world.preopen_dir(folder, folder)
    store.set_wasi(world)
    instance = linker.instantiate(store, Module.from_file(engine, words[0]))
    try:
        instance.exports(store)["_start"](store)
    except ExitTrap as end:
        sys.exit(end.code)
