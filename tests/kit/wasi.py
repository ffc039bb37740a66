"""`python wasi.py PROGRAM.wasm ARGUMENTS`: runs it with the files of this folder, and exits as it does."""

import sys

from wasmtime import Engine, ExitTrap, Linker, Module, Store, WasiConfig

if __name__ == "__main__":
    engine = Engine()
    store, linker = Store(engine), Linker(engine)
    linker.define_wasi()
    world = WasiConfig()
    world.argv = sys.argv[1:]
    world.inherit_stdout()
    world.inherit_stderr()
    world.preopen_dir(".", ".")
    store.set_wasi(world)
    instance = linker.instantiate(store, Module.from_file(engine, sys.argv[1]))
    try:
        instance.exports(store)["_start"](store)
    except ExitTrap as end:
        sys.exit(end.code)
