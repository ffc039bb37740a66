/* abi.h: argument structs and entry points. The C compiler and Python (cffi) both read this file.
 *
 * It has only declarations, integer #defines and includes of .def files, because abi.py and cffi read nothing else.
 * Sizes and strides are in elements, int64_t. The plan sets the pointers; a kernel writes only to the addresses that
 * the plan gives and allocates nothing. kernels.def gives the size of a kernel's scratch. */

#define INGOT_MAX_RANK 12
#define INGOT_PANEL 32        /* columns of a packed panel, on every instruction set */
#define INGOT_K_BLOCK 256     /* k of a product is summed in blocks from zero; block sums are added in order */
#define INGOT_MATMUL_DEPTH 256 /* elements of k that matmul_f32 packs at a time: whole blocks */
#define INGOT_KV_TILE 512     /* columns of a tile of attention_f32_online and attention_bf16_tiles */
#define INGOT_CACHE_BLOCK 64  /* positions in a block of a key/value cache */
#define INGOT_CACHE_CHUNK 256 /* positions that share one partial softmax; partial results are added in order */
#define INGOT_WINOGRAD_CHANNELS 64 /* most channels for which the intermediates of a few tiles stay in the L1 cache */
#define INGOT_CONV_PIXELS 60  /* output pixels whose windows a convolution gathers at once (im2col) */
#define INGOT_TILE_PIXELS 1024 /* output pixels that conv2d_bf16_tiles computes at once; up to one row more */
#define INGOT_TILE_RUNS 64    /* contiguous pieces of a window that conv2d_bf16_tiles accepts */
#define INGOT_CONV_K 1536     /* elements of a window that a convolution gathers at once */
#define INGOT_SPLIT_ROWS 32   /* most rows whose products are summed together with split sums */
#define INGOT_CONV_PAIRS 36   /* pairs of output pixels that conv2d_f32_lines transforms at once */
#define INGOT_EXPERT_ROWS 48  /* rows that an expert product gathers at once */
#define INGOT_EXPERT_PAD 16   /* padding in floats between gathered rows, so that their stride is no power of two */
#define INGOT_ATTENTION_ROWS 24   /* rows of q that are multiplied with the same keys and values */
#define INGOT_ATTENTION_BLOCKS 16 /* row blocks that share a packed tile of keys and values, with several tiles */
#define INGOT_ATTENTION_FEW 4     /* with at most this many rows, this many panels are multiplied together */
#define INGOT_ATTENTION_PAD 16    /* padding in floats between rows of scores, so that rows are not 4096 bytes apart */
#define INGOT_ATTENTION_GRADIENT_ROWS 60 /* rows of q whose attention weights are in scratch together for gradients */
#define INGOT_CACHED_PAIRS 24     /* (row, head) pairs of q that read the same keys and values */
#define INGOT_CACHED_UNITS 8      /* units of such pairs that share a chunk of widened keys and values */
#define INGOT_CACHE_GROUP 32      /* dims of a head that share a scale in a cache of 4 bits */
#define INGOT_QUANT_BLOCK 32      /* elements of k in one quantization block of a panel, with a scale for each column */
#define INGOT_QUANT_WIDE 128      /* elements of k that share a scale in panels of larger groups */
#define INGOT_QUANT_LONGEST 33554432 /* the same in panels with one scale a row: longer than nearly every row */
#define INGOT_ROUND_GROUP 256     /* elements of a row that share a scale in int8; a multiple of both above */
#define INGOT_QUANT_ROWS 96       /* rows whose sums are held while a panel of quantized weights is read */
#define INGOT_INTERLEAVED_PIXELS 28     /* output pixels that an integer depthwise convolution computes together */
#define INGOT_INTERLEAVED_CHANNELS 64   /* channels that it computes together */
#define INGOT_INTEGER_PRODUCTS 32768  /* most products in a sum, so that its partial sums fit in 32 bits */
#define INGOT_REDUCE_CHUNK 4096 /* other reductions: 16 lanes over chunks of this many; chunks are added in order */

#define INGOT_PROBE_LANES 32    /* floats in the result of one task of a probe: two cache lines */
#define INGOT_PROBE_GRAIN 512   /* floats that a read probe reads at a time */

#define INGOT_FUSED_MEMORY 16   /* most tensors that a fused program reads and writes */
#define INGOT_FUSED_SLOTS 32    /* most slots of a fused program */
#define INGOT_FUSED_OPS 32      /* most ops of a fused program */
#define INGOT_FUSED_ROWS 4      /* rows that its reductions read from memory together */
#define INGOT_FUSED_SLOT 0
#define INGOT_FUSED_SLOT_ROW 1
#define INGOT_FUSED_SLOT_COLUMN 2

/* Result types of the integer epilogue: the exact sums, floats, or requantized integers of 8 bits. */
#define INGOT_INTEGER_I32 0
#define INGOT_INTEGER_F32 1
#define INGOT_INTEGER_I8 2
#define INGOT_INTEGER_U8 3

/* The activations that an epilogue may apply. */
enum {
  INGOT_ACT_none,
  #define ACTIVATION(op, cost, expression) INGOT_ACT_##op,
  #include "elementwise.def"
};

/* Operand layouts of a tile: floats with a by rows or by columns; pairs of bf16 (two elements of k); rows of f16. */
enum {
  INGOT_TILE_FLOATS,
  INGOT_TILE_COLUMNS,
  INGOT_TILE_PAIRS,
  INGOT_TILE_HALVES,
};

/* The element types of casts. */
enum {
  INGOT_DTYPE_none,
  #define PLAIN(name, type) INGOT_DTYPE_##name,
  #define WHOLE(name, type, low, high) INGOT_DTYPE_##name,
  #define SMALL(name, bits, is_signed) INGOT_DTYPE_##name,
  #define FLAG(name) INGOT_DTYPE_##name,
  #define CODED(name, type, b, m, e, l, i, q) INGOT_DTYPE_##name,
  #define POWER(name) INGOT_DTYPE_##name,
  #include "dtypes.def"
};

#define INGOT_ROUND_up 0       /* rounding to f8e8m0: to the next power, to the one before, to the nearest */
#define INGOT_ROUND_down 1
#define INGOT_ROUND_nearest 2

/* The operation that combines a scatter's update with the element at its destination. */
#define INGOT_MERGE_none 0
#define INGOT_MERGE_add 1
#define INGOT_MERGE_mul 2
#define INGOT_MERGE_max 3
#define INGOT_MERGE_min 4

#define INGOT_FFT_RADIX 61      /* the largest prime factor of a transform's length */
#define INGOT_FFT_PASSES 32     /* most passes of a transform */
#define INGOT_FFT_LINES 16      /* most lines whose elements are interleaved */
#define INGOT_FFT_PLAIN 0       /* a complex transform; the output is the first elements of the result */
#define INGOT_FFT_SPLIT 1       /* real elements, in pairs as complex numbers; the output is half of their spectrum */
#define INGOT_FFT_JOIN 2        /* the inverse of INGOT_FFT_SPLIT */
#define INGOT_FFT_MIRROR 3      /* the input is half of the spectrum of an odd number of real elements */

#define INGOT_SAMPLE_NAN 1         /* a logit is NaN */
#define INGOT_SAMPLE_INFINITE 2    /* a logit is +inf, or became +inf by a bias or a penalty */
#define INGOT_SAMPLE_NONE 3        /* every logit is -inf or masked */

#define INGOT_GATE_FIRST 1  /* which half of the columns the activation is applied to */
#define INGOT_GATE_SECOND 2

#define INGOT_MASK_NONE 0
#define INGOT_MASK_BOOL 1     /* uint8_t, nonzero: the score is kept */
#define INGOT_MASK_FLOAT 2    /* float, added to the scaled score */

/* The ops of a fused program. Reductions go over a row and give one element; the others are element-wise, except pivot.
 * squares: the sum of (a - (b + c))^2. offset: the mean of a - b. pivot: a number among a row's elements (norm_pivot).
 * norm_scale: 1 / sqrt(variance + alpha), where a is the sum of `beta` squares around b + c. narrow: convert to bf16,
 * the dtype of its result in memory. quantize, dequantize: to and from integers of 8 bits in memory; alpha is the
 * scale, beta the zero point. normalise: (a - (b + f)) c d + e, where b, c and f have one element a row. */
enum {
  INGOT_FUSED_OP_sum = 1,
  INGOT_FUSED_OP_mean,
  INGOT_FUSED_OP_max,
  INGOT_FUSED_OP_min,
  INGOT_FUSED_OP_squares,
  INGOT_FUSED_OP_offset,
  INGOT_FUSED_LAST_REDUCTION = INGOT_FUSED_OP_offset,
  INGOT_FUSED_OP_pivot,
  INGOT_FUSED_OP_copy,
  INGOT_FUSED_OP_narrow,
  INGOT_FUSED_OP_quantize_u8,
  INGOT_FUSED_OP_quantize_i8,
  INGOT_FUSED_OP_dequantize_u8,
  INGOT_FUSED_OP_dequantize_i8,
  INGOT_FUSED_OP_norm_scale,
  INGOT_FUSED_OP_normalise,
  #define UNARY(op, cost, expression) INGOT_FUSED_OP_##op,
  #define BINARY(op, cost, expression) INGOT_FUSED_OP_##op,
  #include "elementwise.def"
};

/* The first invalid run-time index of a run. code 0: none; 1: index outside [-limit, limit); 2: index outside [0,
 * limit); INGOT_STOPPED: the run was stopped before `step` was complete. */
#define INGOT_STOPPED 3
typedef struct { int32_t code; int32_t step; int64_t index; int64_t limit; } ingot_fault;

/* Unary, binary, ternary, cast and copy. The innermost dim is last; a stride may be 0 (broadcast) or negative
 * (flip). */
typedef struct {
  const void *a; const void *b; const void *c; void *out;
  float alpha; float beta;                 /* the op's float attributes, in signature order */
  int32_t from; int32_t to;                /* of a cast: INGOT_DTYPE_* */
  int32_t saturate; int32_t rounding;      /* of a cast to a low-precision float: whether overflow becomes the
                                              largest number; INGOT_ROUND_* */
  int32_t rank;
  int64_t shape[12];
  int64_t a_strides[12]; int64_t b_strides[12]; int64_t c_strides[12]; int64_t out_strides[12];
} elementwise_args;

/* A program of element-wise ops and row reductions over [outer, rows, cols], run one fused_rows x fused_cols tile at a
 * time. Op i: out[i] = code[i](a[i], b[i], ...), with the scalars alpha[i] and beta[i].
 *
 * An operand is the number of a tensor in memory, or INGOT_FUSED_MEMORY + the number of a slot, or -1: none. A slot is
 * scratch for the values of one tile (INGOT_FUSED_SLOT), of whole rows (INGOT_FUSED_SLOT_ROW), or for one element a row
 * (INGOT_FUSED_SLOT_COLUMN). An element in memory is at memory[m] + outer * outer_strides[m] + row * row_strides[m] +
 * col * col_steps[m]; col_steps are 0 or 1. Several segments: the ops of a segment go through all tiles of a row before
 * the ops of the next segment, which may read the results of its reductions. Without reductions there is one segment,
 * and tasks also divide the tiles of a row. fused_cols is a multiple of 16; with reductions it also divides
 * INGOT_REDUCE_CHUNK, unless it is all of cols. scratch: num_tasks slots of scratch_stride floats; slot s begins at
 * slot_offsets[s]. A tile slot is fused_rows rows of fused_cols floats; a row slot is fused_rows rows of cols floats
 * rounded up to a multiple of 16; a column slot holds fused_rows floats rounded up to a multiple of 16, and 16 for each
 * row. */
typedef struct {
  const void *memory[16]; float *scratch;  /* also written */
  int64_t outer; int64_t rows; int64_t cols; int64_t fused_rows; int64_t fused_cols;
  int64_t outer_strides[16]; int64_t row_strides[16]; int64_t col_steps[16];
  int64_t slot_offsets[32]; int64_t scratch_stride;
  int32_t slot_kinds[32];
  int32_t op_count; int32_t segment_count;
  int32_t segment[32]; int32_t code[32]; int32_t out[32];
  int32_t a[32]; int32_t b[32]; int32_t c[32]; int32_t d[32]; int32_t e[32]; int32_t f[32];
  float alpha[32]; float beta[32];
} fused_args;

/* out[outer] = reduce(x[outer, reduced]); out is contiguous in the order of outer. */
typedef struct {
  const void *x; void *out;
  int32_t outer_rank; int32_t reduced_rank;
  int64_t outer_shape[12]; int64_t outer_strides[12];
  int64_t reduced_shape[12]; int64_t reduced_strides[12];
} reduce_args;

/* out[i] = sum over k of a[i, k] b[i, k], in order; a stride may be 0. Integers wrap. */
typedef struct {
  const void *a; const void *b; void *out;
  int32_t rank;
  int64_t shape[12];
  int64_t a_strides[12]; int64_t b_strides[12]; int64_t out_strides[12];
  int64_t k; int64_t a_k_stride; int64_t b_k_stride;
} product_args;

/* out[o, i, j] = the sum or product of x[o, 0..i, j]; x and out are [outer, count, inner], row-major. */
typedef struct { const void *x; void *out; int64_t outer; int64_t count; int64_t inner; } running_args;

/* out[i] = the determinant of x[i, 0..n, 0..n], row-major. scratch: num_tasks slots of scratch_stride floats. */
typedef struct {
  const void *x; void *out; float *scratch;
  int64_t count; int64_t n; int64_t scratch_stride;
} det_args;

/* Rows of `cols` adjacent elements. weight and bias: [cols] or null. */
typedef struct {
  const float *x; const float *weight; const float *bias; float *out;
  int64_t rows; int64_t cols; int64_t x_stride; int64_t out_stride;
  float eps;
} norm_args;

/* Layer norm of interleaved rows: element j of row r of item i is at i * strides[0] + j * strides[1] + r. */
typedef struct {
  const float *x; float *out;
  int64_t outer; int64_t rows; int64_t cols; int64_t x_strides[2]; int64_t out_strides[2];
  float eps;
} norm_columns_args;

/* softmax and log_softmax over rows of `cols` adjacent elements. */
typedef struct {
  const float *x; float *out;
  int64_t rows; int64_t cols; int64_t x_stride; int64_t out_stride;
} softmax_args;

/* The k largest or smallest of rows of `cols` adjacent elements: out[rows, k] and indices[rows, k], both row-major. */
typedef struct {
  const void *x; void *out; int64_t *indices;
  int64_t rows; int64_t cols; int64_t k; int64_t x_stride; int32_t largest;
} topk_args;

/* dst = scale * src, packed in panels of 32 columns, [ceil(n / 32)][k][32], zero-padded; element (i, j) of the k x n
 * matrix is at src + i * k_stride + j * n_stride. second: NULL, or another matrix with the layout of src: then a panel
 * is 16 columns of src and the same 16 of second, and n, a multiple of 16, is the width of one of them.
 * pack_bf16: src and dst are bf16; a panel is [ceil(k / 2)][32][2] with elements 2i and 2i + 1 of a column adjacent.
 * pack_f16: both are f16; a panel is [k][32], with k padded to an even number. Both have no scale.
 * pack_int8, pack_int4: src has quantized values, a byte each; the scale of element (i, j) is the f16 at scales + i /
 * group * scale_k_stride + j * scale_n_stride; second_scales are those of second. An element is ((q ^ flip) - 128) *
 * scale, or ((q ^ flip) - 8) * scale. pairs: a byte of src has two values of 4 bits, the first in the low bits;
 * n_stride is in bytes, and k is even. A panel is [ceil(k / 32)] blocks of quantized values, each followed by 32
 * scales: 8 bits as [8][32][4], with four elements of a column adjacent; 4 bits as [4][32][4], with element i + 16 in
 * the upper half of the byte of element i. pack_int8_zp, pack_int4_zp: an element is (q - zero point) * scale; zeros
 * has the layout of scales, with a byte each; a block ends with 32 zero points, which for 4 bits are multiplied by 16.
 * _128: `group` is a multiple of INGOT_QUANT_WIDE, or k; the blocks of so many elements, or of the remaining elements,
 * follow one another, then come their scales and zero points. _row: the same with INGOT_QUANT_LONGEST. _f32: scales are
 * f32.
 * pack_q4_0 and so on: src has rows of GGUF blocks of that type, n_stride bytes apart, and k is in elements. q4_0,
 * q8_0: the panels of pack_int4 and pack_int8. Panels of other types: see blocks.h.
 * pack_bytes: src has bytes; a panel has these bytes ^ flip as [ceil(k / 4)][32][4], with four elements of a column
 * adjacent. */
typedef struct {
  const void *src; const void *second; void *dst;
  const void *scales; const void *second_scales; const void *zeros; const void *second_zeros;
  int64_t n; int64_t k; int64_t k_stride; int64_t n_stride;
  int64_t group; int64_t scale_k_stride; int64_t scale_n_stride;
  float scale; int32_t flip; int32_t pairs;
} pack_args;

#include "quantized_args.def"
#include "training_args.def"
#include "image_args.def"
#include "state_args.def"

/* c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias[n]) + residual[m, n]; with residual_first, the activation is
 * applied after the residual is added. act_alpha, act_beta: the activation's float attributes. b is packed: panel p
 * holds columns 32p..32p+31 as [k][32], zero-padded. bias and residual may be null. c may be null where only rounded,
 * the result as bf16, is wanted; rounded may be null. slopes[n], or null: the activation is then v_prelu.
 * _f32_bf16, _f32_f16: b is bf16 in the panels of pack_bf16, or f16 in the panels of pack_f16. Its elements are widened
 * to floats; results have the bits of f32 panels.
 * gemm_bf16: a is bf16 too; rows of a begin at multiples of 4 bytes, and k is even. A sum adds the two products of a
 * pair one after the other, the second first, each rounded as a fused multiply-add with denormals as zeros; pairs are
 * summed in blocks of INGOT_K_BLOCK. A rounded denormal may become zero; a NaN may keep its sign and upper bits. With
 * split_sums, the products of even elements of each 16 pairs are summed in one chain from zero and those of odd
 * elements in another, with the same rounding; the total of both is added to the sum.
 * gemm_int8, gemm_i24_int8, gemm_q4_k, gemm_f32_int8 and so on: b has panels of quantized weights; see gemm_quant.c and
 * gemm_decoded.c. gemm_f32_int8_transposed and so on: b has the panels of a matrix [n, k], whose columns are k, and is
 * multiplied transposed.
 * _gated: c[m, n] = activation(gate) * up, where gate and up are the halves (gate: INGOT_GATE_*) of alpha * a[m, k] @
 * b[k, 2n] + bias[2n]; n is a multiple of 16, panel p of b holds columns 16p..16p+15 and n+16p..n+16p+15, and there is
 * no residual. */
typedef struct {
  const void *a; const void *b; const float *bias; const float *slopes; const float *residual; float *c;
  uint16_t *rounded;
  int64_t m; int64_t n; int64_t k;
  int64_t a_stride; int64_t residual_stride; int64_t c_stride; int64_t rounded_stride;
  float alpha; float act_alpha; float act_beta; int32_t activation; int32_t residual_first; int32_t gate;
  int32_t split_sums; int32_t chunks;
} gemm_args;

/* gemm for each matrix of a batch, with an activation as b: each task packs b into its scratch. Batch strides may be 0.
 * bias: [n] or null. residual has c's shape or is null; it may be c, except in matmul_f32 with k above
 * INGOT_MATMUL_DEPTH, which accumulates sums in c. scratch: num_tasks slots of scratch_stride floats.
 * matmul_f32_bf16: b is bf16; bits are those of matmul_f32 with the same numbers.
 * matmul_tn_f32: a is stored as [k, m]; its rows of m adjacent elements are a_stride apart. continues: sums begin with
 * the residual, as if it were the sum over earlier elements of k; otherwise the residual may not be c. scratch: a block
 * of a panel, and [m][32]. */
typedef struct {
  const float *a; const float *b; const float *bias; const float *residual; float *c; float *scratch;
  int32_t batch_rank;
  int64_t batch_shape[12]; int64_t a_batch_strides[12]; int64_t b_batch_strides[12];
  int64_t residual_batch_strides[12]; int64_t c_batch_strides[12];
  int64_t m; int64_t n; int64_t k;
  int64_t a_stride; int64_t b_k_stride; int64_t b_n_stride; int64_t residual_stride; int64_t c_stride;
  int64_t scratch_stride;
  float alpha; float act_alpha; float act_beta; int32_t activation; int32_t residual_first; int32_t continues;
} matmul_args;

/* Mixture of experts: out[r, s, n] = experts[chosen[r, s]][n, k] @ x[r, s, k]. experts: `count` matrices, contiguous,
 * each packed as gemm's b (its n being columns). x_strides: row, slot; the last dim is adjacent. _bf16: x is bf16, its
 * strides count pairs, and k is even; sums are those of gemm_bf16 without split sums. chosen and out are row-major.
 * scratch: num_tasks slots of scratch_stride floats. */
typedef struct {
  const float *x; const int64_t *chosen; const void *experts; float *out; float *scratch; ingot_fault *fault;
  int64_t rows; int64_t slots; int64_t n; int64_t k; int64_t count;
  int64_t x_strides[2];
  int64_t scratch_stride; int32_t step; int32_t chunks;
} expert_args;

/* out = softmax(scale * q @ k^T + mask) @ v; head h of q reads head h / (heads / kv_heads) of k and v. Strides are
 * [batch, head, row]; the last dim is adjacent. causal: row i attends to columns <= i + causal_offset. A row whose
 * scores are all -inf gives zeros when `safe`, else NaN; with `zero_nan` every row of NaN gives zeros. rounds: out is
 * bf16. attention_f32 stores whole rows of scores, attention_f32_online tiles of INGOT_KV_TILE (online softmax).
 * attention_bf16 and attention_bf16_online: q, k and v are bf16, rows of q and k begin at multiples of 4 bytes, and
 * head_dim is even. Products are gemm_bf16's, with attention weights rounded to bf16; all else is f32.
 * attention_bf16_tiles: the same with tiles of INGOT_KV_TILE and products with split sums.
 * attention_dropout_f32 and its _online: dropout of the attention weights, as dropout_args defines it for their indices
 * in [batch, heads, q_len, kv_len]; step, part, seed, stream, threshold and kept are the fields of dropout_args.
 * scratch: num_tasks slots of scratch_stride floats. */
typedef struct {
  const float *q; const float *k; const float *v; const void *mask; float *out; float *scratch;
  int64_t batch; int64_t heads; int64_t kv_heads; int64_t q_len; int64_t kv_len; int64_t head_dim; int64_t v_dim;
  int64_t q_strides[3]; int64_t k_strides[3]; int64_t v_strides[3]; int64_t out_strides[3];
  int64_t mask_strides[4];                 /* batch, head, row, column */
  int64_t scratch_stride; int64_t causal_offset;
  float scale; int32_t causal; int32_t safe; int32_t zero_nan; int32_t mask_kind; int32_t rounds;
  const double *step; const double *part; int64_t seed; int64_t stream; int64_t threshold; float kept;
} attention_args;

/* Write rows of x into a paged cache of keys, [total_blocks][kv_heads][dim][64], or of values, [..][64][dim]: row r of
 * x is position p = positions[r] of sequence s = owners[r], stored in slot p % 64 of block blocks[s * blocks_each + p /
 * 64]. Rows are written in order, so the last of several rows with one slot remains; a row with an invalid index is
 * skipped. x_strides: row, head; the last dim is adjacent. An int8 cache has f32 scales [total_blocks][kv_heads][64].
 * An int4 cache is [total_blocks][kv_heads][dim / 2][64], or [..][64][dim / 2], and dim is even: dims form groups of
 * INGOT_CACHE_GROUP, of which the last may be smaller; a byte holds dim i of the group's first half in its low bits,
 * and dim i of the second half above. Its scales are f16, [total_blocks][kv_heads][2 * groups][64]: for each group a
 * scale and a min, the value of the smallest quantized weight. */
typedef struct {
  const float *x; void *cache; void *scales;
  const int32_t *positions; const int32_t *owners; const int32_t *blocks; ingot_fault *fault;
  int64_t rows; int64_t kv_heads; int64_t dim; int64_t x_strides[2];
  int64_t total_blocks; int64_t sequences; int64_t blocks_each;
  int32_t step;
} append_args;

/* out = softmax(cap(scale * q @ keys) + biases) @ values over the positions that a row attends to: the last `window`
 * (0: all) of its sequence up to its own, none before the last multiple of `segment` (0: none). cap(s) = softcap *
 * tanh(s / softcap), or s where softcap is 0. sinks: an additional score of each head, without a value, or null. biases
 * [heads][blocks_each * 64], or null: element j is added to the score of position j, or, if relative, the last element
 * to that of the row's own position. Head h of q reads head h / (heads / kv_heads). Caches, positions, owners and
 * blocks are those of append_args; strides are row, head, and the last dim is adjacent. A row with an invalid index
 * gives zeros. scratch: as in attention_args. */
typedef struct {
  const float *q; const void *keys; const void *values; const void *key_scales; const void *value_scales;
  const float *sinks; const float *biases; float *out; const int32_t *positions; const int32_t *owners;
  const int32_t *blocks; ingot_fault *fault; float *scratch; int64_t rows; int64_t heads; int64_t kv_heads;
  int64_t head_dim; int64_t v_dim; int64_t q_strides[2]; int64_t out_strides[2]; int64_t total_blocks;
  int64_t sequences; int64_t blocks_each; int64_t window; int64_t segment; int64_t relative; int64_t scratch_stride;
  float scale; float softcap; int32_t step; int32_t chunks;
} cached_attention_args;

/* Rotary embedding: x with pairs (i, i + half) rotated: out = x * cos + rotate_half(x) * sin, over the last dim.
 * Strides are [batch, head, row]; cos and sin strides likewise, last dim adjacent. */
typedef struct {
  const float *x; const float *cos; const float *sin; float *out;
  int64_t batch; int64_t heads; int64_t rows; int64_t head_dim;
  int64_t x_strides[3]; int64_t cos_strides[3]; int64_t sin_strides[3]; int64_t out_strides[3];
} rotary_args;

#include "index_args.def"

/* out[batch, channels, points] = x[batch, channels, height, width] sampled at grid[batch, points, 2], whose coordinates
 * are column, then row, from -1 to 1. Strides are [batch, channel, row, column] of x and [batch, channel, point] of
 * out. linear: interpolate; else take the nearest element. border: pad with the outer elements; else with zeros. */
typedef struct {
  const float *x; const float *grid; float *out;
  int64_t batch; int64_t channels; int64_t height; int64_t width; int64_t points;
  int64_t x_strides[4]; int64_t out_strides[3];
  int32_t linear; int32_t border; int32_t align_corners;
} grid_args;

/* Discrete Fourier transforms of `length` elements of each line. All results are divided by `divisor`. Lines are
 * [shape] and begin at the strides; elements of a line are *_step apart. The first `read` elements of each line are
 * read, and `written` elements of its result are written. imaginary may be null for zeros; out_imaginary may be null
 * where it is not wanted. form: INGOT_FFT_*. radices: 2, 4 and odd numbers up to INGOT_FFT_RADIX, whose product is
 * `length`. factors: the twiddle factors in fft.c's layout; the roots of forms SPLIT and JOIN begin at roots_offset.
 * block: lines that are transformed together, 1 or INGOT_FFT_LINES. scratch: num_tasks slots of scratch_stride
 * floats. */
typedef struct {
  const void *real; const void *imaginary; void *out_real; void *out_imaginary; const void *factors; float *scratch;
  int32_t rank; int32_t form; int32_t inverse; int32_t pass_count;
  int64_t shape[12]; int64_t real_strides[12]; int64_t imaginary_strides[12];
  int64_t out_real_strides[12]; int64_t out_imaginary_strides[12];
  int64_t real_step; int64_t imaginary_step; int64_t out_real_step; int64_t out_imaginary_step;
  int64_t length; int64_t read; int64_t written; int64_t divisor; int64_t block; int64_t roots_offset;
  int64_t radices[32]; int64_t scratch_stride;
} fft_args;

/* out[rows, target_count] = the sums of the votes of the leaves that rows of x reach, each weight divided by `divisor`;
 * with merge INGOT_MERGE_min or INGOT_MERGE_max the smallest or largest vote instead, and voted[rows, target_count]
 * marks the targets that have a vote. splits[node_count], leaves[leaf_count][2], weights and targets[vote_count],
 * roots[tree_count] and members[member_count] are the tables of the op tree_ensemble. nodes[node_count][4]: 16 times
 * the feature plus the comparison, plus 8 where NaN satisfies it; the next node where the comparison holds; the next
 * where it does not; the bits of an f32 split. sets[node_count][2]: the range of members. */
typedef struct {
  const void *x; const void *splits; const int32_t *nodes; const int64_t *sets; const int64_t *leaves;
  const void *weights; const int64_t *targets; const int64_t *roots; const void *members; void *out; uint8_t *voted;
  ingot_fault *fault;
  int64_t rows; int64_t features; int64_t x_stride; int64_t divisor;
  int64_t node_count; int64_t leaf_count; int64_t vote_count; int64_t target_count; int64_t tree_count;
  int64_t member_count;
  int32_t step; int32_t merge;
} tree_args;

/* One direction of a recurrent layer: LSTM, GRU or plain RNN, as its op in ops/ defines it. columns: `hidden` for each
 * gate. gates[steps, batch, columns]: the input's contribution to the gates. weights: [columns, hidden], packed by rows
 * as gemm's b; the panels of all gates of 32 units are adjacent. bias[columns], peepholes[3 * hidden] and
 * lengths[batch] may be null. h, c, last_h and last_c: [batch, hidden], dense; only LSTM has c and last_c. out[steps,
 * batch, hidden]. Strides are [step, batch]; the last dim is adjacent. activation, act_alpha, act_beta: the op's. clip:
 * 0 for none.
 * Each iteration of the call is one time step, or half of one where a GRU applies its reset gate before its product.
 * state: the state between iterations, [2][batch][hidden], for half steps twice that; all tasks share it.
 * The bf16 kernels multiply the state rounded to bf16, as gemm_bf16 does: rounded_h is h as bf16, and rounded is the
 * state between iterations, [2][batch][hidden], for half steps half as much again; hidden is even. For the other
 * kernels both are null. */
typedef struct {
  const float *gates; const void *weights; const float *bias; const float *peepholes; const int64_t *lengths;
  const float *h; const float *c; float *out; float *last_h; float *last_c; float *state; ingot_fault *fault;
  const uint16_t *rounded_h; uint16_t *rounded;
  int64_t steps; int64_t batch; int64_t hidden; int64_t columns;
  int64_t gates_strides[2]; int64_t out_strides[2];
  int32_t reverse; int32_t input_forget; int32_t linear_before_reset; int32_t step;
  float clip; float act_alpha[3]; float act_beta[3]; int32_t activation[3];
} recurrent_args;

/* The same in f64. weights are not packed; activation: sigmoid, tanh or relu. */
typedef struct {
  const double *gates; const double *weights; const double *bias; const double *peepholes; const int64_t *lengths;
  const double *h; const double *c; double *out; double *last_h; double *last_c; double *state; ingot_fault *fault;
  int64_t steps; int64_t batch; int64_t hidden; int64_t columns;
  int64_t gates_strides[2]; int64_t out_strides[2];
  int32_t reverse; int32_t input_forget; int32_t linear_before_reset; int32_t step;
  float clip; int32_t activation[3];
} recurrent_f64_args;

/* The op linear_attention; last is its last state. decay_dim: k_dim or 1. decay and beta may be null. */
typedef struct {
  const float *q; const float *k; const float *v; const float *state; const float *decay; const float *beta;
  float *out; float *last;
  int64_t batch; int64_t steps; int64_t heads; int64_t k_dim; int64_t v_dim; int64_t decay_dim; float scale;
} linear_attention_args;

/* probe_fma_f32: each task does `count` fused multiply-adds on x[128]. probe_read_f32: the tasks together read x[count]
 * `passes` times; count is a multiple of INGOT_PROBE_GRAIN. out: num_tasks slots of INGOT_PROBE_LANES floats. */
typedef struct { const float *x; float *out; int64_t count; int64_t passes; } probe_args;

/* Compute task `task` of num_tasks. Iteration i of a step, or preemption chunk i, is the tasks i * num_tasks and up. */
typedef void (*ingot_kernel)(const void *args, int32_t task, int32_t num_tasks);

/* Draws the tokens of one sequence (sample.c). The caller owns all memory: arrays of `vocab`, NULL where not needed.
 * tokens, weights: for a temperature above 0 or log-probabilities. scores: where a bias, penalty or mask changes the
 * logits. occurrences, seen: for penalties; occurrences is 1 + how often the output holds a token, or 0 if neither
 * output nor prompt has it, and seen lists the tokens whose entry is not 0. mask: bit i % 32 of word i / 32 allows
 * token i; NULL: all are allowed. The candidates of the last call are the first `kept` of tokens and weights; a
 * probability is weight / `mass`. With all_kept, tokens is unused and weight i belongs to token i. The natural
 * logarithms of the model's own probabilities, from the unchanged logits, are logprob and top_logprobs. */
typedef struct {
  ingot_kernel kernel; const float *logits;
  const int32_t *bias_tokens; const float *biases; const uint32_t *mask;
  float *scores; float *weights; int32_t *tokens; int32_t *occurrences; int32_t *seen;
  int64_t vocab; int64_t bias_count; int64_t seen_count; int64_t kept; int64_t top_k;
  uint64_t seed; uint64_t draws; double mass;
  float temperature; float top_p; float min_p;
  float repetition_penalty; float presence_penalty; float frequency_penalty;
  int32_t wants_logprobs; int32_t top_count;
  int32_t token; int32_t status; int32_t all_kept; float logprob;
  int32_t top_tokens[20]; float top_logprobs[20];
} ingot_sampler;

/* One kernel and its function for each instruction set, NULL where the library lacks the set, or where avx2vnni uses
 * that of avx2. args_bytes: the size of its argument struct. */
typedef struct {
  const char *name; const char *args_type; int64_t args_bytes;
  #define SET(name, ...) ingot_kernel name;
  #include "instruction_sets.def"
} ingot_kernel_row;

/* One kernel call. num_tasks: the tasks that its work is divided into. barrier: all threads wait before the step.
 * iterations: all tasks are repeated so many times, so that a task can read what other tasks wrote in the iteration
 * before. chunks, with one iteration: a thread does a task in so many preemption chunks, one after the other, so that a
 * run can stop between them; the kernel's arguments have the same number; 0 means 1. */
typedef struct {
  ingot_kernel kernel; const void *args; int32_t num_tasks; int32_t barrier; int32_t iterations; int32_t chunks;
} ingot_step;

/* A matrix to pack, and the ranges of mapped files whose pages are released afterwards; page_bytes 0: none. */
typedef struct {
  ingot_kernel kernel; const pack_args *args;
  void *pages[4]; int64_t page_bytes[4];
} ingot_packing;

/* A pointer inside an argument struct that is set at each run: *where = bindings[slot] + byte_offset. */
typedef struct { void **where; int64_t slot; int64_t byte_offset; } ingot_patch;

/* An int64_t that is set at each run: *where = base + factor * sizes[size]. It is a size inside an argument struct, an
 * address that depends on a size, or a patch's byte_offset. */
typedef struct { int64_t *where; int64_t size; int64_t factor; int64_t base; } ingot_resize;

/* The program of one context. threads: the most threads that take part. sizes_slot: with resizes, the binding that
 * holds a run's sizes, an int64_t each. lock: guards the memory of the steps, 0 at first; NULL where no other run can
 * use this memory. stop: a nonzero value, set at any time, ends a run before the next task of each thread; NULL where a
 * run cannot be stopped. */
typedef struct {
  const ingot_step *steps; const ingot_patch *patches; const ingot_resize *resizes;
  ingot_fault *fault; uint32_t *lock; const int32_t *stop;
  int64_t step_count; int64_t patch_count; int64_t resize_count; int64_t sizes_slot; int32_t threads;
} ingot_program;

const ingot_kernel_row *ingot_kernels(int32_t *count);
const char *ingot_abi_hash(void);
/* A hash of bytes that detects corruption; the same on every machine. data may be NULL when nbytes is 0. */
uint64_t ingot_hash(const void *data, int64_t nbytes);
/* Pack matrices one after another, each on one thread, until all are packed or claimed by other calls with the same
 * `claimed`, which is 0 at first. */
void ingot_pack(const ingot_packing *matrices, int64_t count, int64_t *claimed);
/* The name of the best instruction set of this CPU. */
const char *ingot_best_isa(void);
int32_t ingot_has_avx2vnni(void); /* whether this CPU and this library have the set */
/* Return whether this CPU has the bf16 dot products of gemm_bf16 on avx512. Other sets emulate these, slowly. */
int32_t ingot_has_bf16_dots(void);
int32_t ingot_has_bf16_tiles(void); /* whether it has the bf16 tiles of split sums; call it after ingot_use_amx */
/* Select whether avx512 kernels multiply integers by AMX; bits are the same. Returns "used", "off" where not `wanted`,
 * "absent" where the CPU has no AMX, "refused" where the system forbids it. Do not call it while a kernel runs. */
const char *ingot_use_amx(int32_t wanted);
/* Run a program. Returns 0, or the code of the fault, which is stored in `fault` unless that is NULL. Programs with one
 * lock run one after another; others run concurrently. Of two concurrent programs one gets the thread pool; the other
 * runs all its tasks on its own thread. */
int32_t ingot_run(const ingot_program *program, void *const *bindings, ingot_fault *fault);
/* As ingot_run; times[step][thread][2] gets when each thread begins and ends its tasks of a step, in nanoseconds of
 * CLOCK_MONOTONIC. is_separate: with a barrier after each step, which its time includes. */
int32_t ingot_run_timed(const ingot_program *program, void *const *bindings, ingot_fault *fault, int64_t *times,
                        int32_t is_separate);
/* Draw a token from a row of `vocab` logits, which stay unchanged. Returns the token, which the sampler then counts as
 * output, or -1 with the reason in `status`. Allocates nothing; different samplers run concurrently. */
int32_t ingot_sample(ingot_sampler *sampler, const float *logits);
/* As ingot_run; then sampler i draws from row i of the logits that are bound at `slot`. */
int32_t ingot_run_sampled(const ingot_program *program, void *const *bindings, ingot_fault *fault, int64_t slot,
                          ingot_sampler *const *samplers, int64_t count);
