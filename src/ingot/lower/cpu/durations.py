"""Estimated durations of the CPU kernels: the one table from which lowering computes the work of a step.

The work decides how many tasks and preemption chunks a step has (`Lowering._cut`), and nothing else: choices between
kernels follow the sizes of `limits.py`, so that every CPU gets the same bits. `Target` has the work that is worth a
barrier or another thread.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Durations:
    """Nanoseconds of one thread for one unit, which a field's comment names. `*_factor`: multiplies other durations.

    [AVX-512, AVX2]: the time per unit on a Zen 4 CPU (November 2026) with each instruction set, without brackets not
    measured. It is the shortest of some hundred runs of `NativeProgram.profile`, of a graph of one node whose operands
    fit into the second-level cache, divided by the units.
    """

    # One multiply-add. Of f32 in panels.
    multiply_add: float = 0.018  # [0.017, 0.018]
    multiply_add_dots: float = 0.009  # of rows of bf16 or int8, by dot products [0.0087 of bf16, none]
    multiply_add_depthwise: float = 0.03  # [0.028, 0.039]
    multiply_add_filter: float = 0.02  # of a filter's gradient [0.024, 0.026]
    multiply_add_cached: float = 0.02  # of attention over a KV cache [0.018, 0.021]
    multiply_add_integer: float = 0.005  # of bytes, summed exactly [0.005 with VNNI, 0.013]
    multiply_add_integer_depthwise: float = 0.02  # [0.013, 0.020]
    multiply_add_64: float = 1.0  # of f64 or 64-bit integers without panels [0.06, 0.06]
    multiply_add_recurrent_f64: float = 0.25  # [0.25, 0.26]
    window_factor: float = 1.1  # of a convolution, whose windows are gathered [1.05, 1.08]
    winograd_factor: float = 1.2  # of a transformed convolution: its transforms [1.15, 1.18]
    planes_factor: float = 1.3  # of a convolution without panels [4.4, 5.5 for 16 channels of 7 x 7 pixels]
    attention_gradient_factor: float = 2.5  # of attention [2.6, 2.4]

    # One element. Of the result, if the comment names no other.
    packed: float = 0.25  # of panels [0.15, 0.14]
    packed_keys: float = 0.3  # of keys and values, by attention
    packed_integer: float = 0.5  # of the right operand of a product of two activations of bytes
    rounded: float = 0.1  # to int8 [0.08 in each pass with a scale of the run, 0.19; 0.11, 0.26]
    softmax_weight: float = 0.4  # of attention
    drawn: float = 3.0  # a random number [4.0, 4.3]
    appended: float = 1.0  # to a KV cache [0.76, 0.73]
    activation: float = 1.0  # of a recurrent layer [0.6, 0.8]
    state: float = 0.1  # of a state of linear attention, in one step
    scanned: float = 0.3  # of a state of a selective scan, in one step
    activation_f64: float = 15.0  # by libm [15, 16]
    reduced: float = 0.4  # of the operand, in one pass of a norm [0.20, 0.20], softmax [0.15, 0.17] or sum [0.07, 0.07]
    cheap: float = 0.12  # of an element-wise op [relu 0.08, 0.07; add of f64 0.24, 0.27]
    costly: float = 0.8  # of a costly op of `elementwise.def` [exp 0.17, 0.32; of f64 4.1, 4.1]
    copied: float = 0.25  # [0.11, 0.10 in another order of dims]
    fused_cheap: float = 0.06  # of one op of a fused program
    fused_costly: float = 0.35  # [with three cheap ones 0.31, 0.45]
    pooled: float = 0.06  # of a window of a pooling [0.12, 0.08]
    pooled_gradient: float = 0.3  # of a window of the gradient of a max pooling [0.28, 0.29]
    fourier_pass: float = 0.35  # of one pass of a Fourier transform [0.30, 0.33; of f64 0.83, 0.81]
    gathered_element: float = 4.0  # by `gather_elements` [0.84, 0.84]
    checked_index: float = 1.0
    compared: float = 1.0  # of the tokens that n-grams are found in
    resampled: float = 0.5  # of a sample [0.09, 0.11]
    grid_sampled: float = 4.0  # [2.7, 3.0]
    scattered: float = 4.0  # of the indices
    ranked: float = 2.0  # of the operand of a topk [0.75, 0.64]
    rotated: float = 1.0  # by rotary embeddings [0.17, 0.19]
    adamw: float = 1.2  # of the parameters [0.28, 0.29]
    sgd: float = 0.5  # of the parameters [0.15, 0.14]

    # Others.
    weight_byte: float = 0.02  # a byte of weights that a product of few rows reads from memory [0.011, 0.011]
    gathered_byte: float = 0.1  # a byte that a gather moves [0.02, 0.02]
    tree_level: float = 3.0  # a row goes from one node of a tree to the next


NS = Durations()
