"""How fast is the f32 product with a constant matrix, compared with OpenBLAS and torch on one instruction set?

Each engine multiplies activations of 16 to 1024 rows with weights that it may pack before. `--isa avx2`, the default,
holds every engine to AVX2; `--isa best` lets each choose. The table has GFLOP/s: two operations for each multiply-add.
"""
