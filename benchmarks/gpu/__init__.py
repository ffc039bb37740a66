"""Which share of a GPU does a language model get?

Of the bandwidth of a copy, of the best product of f32 and of the peak of multiply-adds, which shaders reach at best on
the adapter; INGOT_WGPU_ADAPTER names one where there are several. The model is that of `benchmarks/llm` in bf16. On an
adapter that is no GPU a small model is measured: the shares then show only that this program works.
"""
