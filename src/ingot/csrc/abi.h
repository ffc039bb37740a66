/* abi.h: argument structs and entry points; the one description, read by the C compiler and by Python (cffi).
 *
 * Only declarations, integer #defines and lines for the rows of elementwise.def: abi.py and cffi read nothing else.
 * Sizes and strides are in elements, int64_t. Pointers are filled from the plan; a kernel writes exactly where the plan
 * said and allocates nothing. Scratch is as large as kernels.def says. */

#define INGOT_MAX_RANK 12
#define INGOT_PANEL 32        /* columns of a packed panel, on every instruction set */
#define INGOT_K_BLOCK 256     /* a product-sum over k runs in blocks of this many, each from zero, added in order */
#define INGOT_MATMUL_DEPTH 256 /* elements of k that matmul_f32 packs at a time: whole blocks */
#define INGOT_KV_TILE 512     /* columns of a tile of attention_f32_online and attention_bf16_tiles */
#define INGOT_CACHE_BLOCK 64  /* positions in a block of a cache of keys and values */
#define INGOT_CACHE_CHUNK 256 /* positions whose scores are a softmax of their own; such results are added in order */
#define INGOT_WINOGRAD_FEW 64 /* the most channels of which what becomes of a few tiles stays in the first cache */
#define INGOT_CONV_PIXELS 60  /* output pixels whose windows a convolution gathers at once */
#define INGOT_TILE_PIXELS 1024 /* output pixels that conv2d_bf16_tiles computes at once, or less than a line more */
#define INGOT_TILE_RUNS 64    /* and the pieces of a window that it takes */
#define INGOT_CONV_K 1536     /* and the elements of a window that it gathers at once */
#define INGOT_SPLIT_ROWS 32   /* rows whose products are summed together where sums are apart, at most */
#define INGOT_CONV_PAIRS 36   /* pairs of output pixels that conv2d_f32_lines transforms at once */
#define INGOT_EXPERT_ROWS 48  /* rows that a product with one of several matrices gathers at once */
#define INGOT_EXPERT_PAD 16   /* floats between gathered rows, whose stride is then no power of two */
#define INGOT_ATTENTION_ROWS 24   /* of q that are multiplied with the same keys and values */
#define INGOT_ATTENTION_BLOCKS 16 /* blocks that share a packed tile of keys and values, when there are several tiles */
#define INGOT_ATTENTION_FEW 4     /* with so few rows this many panels are multiplied together */
#define INGOT_ATTENTION_PAD 16    /* floats between rows of scores, which are then not 4096 bytes apart */
#define INGOT_ATTENTION_GRADIENT_ROWS 60 /* of q whose weights lie in scratch together when gradients are computed */
#define INGOT_CACHED_PAIRS 24     /* pairs of a row and a head of q that read the same keys and values */
#define INGOT_CACHED_UNITS 8      /* units of such pairs that share a chunk of widened keys and values */
#define INGOT_CACHE_GROUP 32      /* dims of a head that share a step in a cache of 4 bits */
#define INGOT_QUANT_BLOCK 32      /* elements of k whose codes lie together in a panel, with a scale for each column */
#define INGOT_QUANT_WIDE 128      /* elements of k that share a scale in panels of larger groups */
#define INGOT_QUANT_LONGEST 33554432 /* and in panels of whole rows, of which hardly any is as long */
#define INGOT_ROUND_GROUP 256     /* elements of a row that are rounded to int8 by one step, a multiple of those */
#define INGOT_QUANT_ROWS 96       /* rows whose sums wait beside a panel of codes */
#define INGOT_INTERLEAVED_PIXELS 28     /* output pixels of a depthwise convolution of integers that go together */
#define INGOT_INTERLEAVED_CHANNELS 64   /* and their channels */
#define INGOT_INTEGER_TAPS 32768  /* products of a sum, whose parts then fit in 32 bits */
#define INGOT_REDUCE_CHUNK 4096 /* other reductions: 16 lanes over chunks of this many, chunk results in order */

#define INGOT_PROBE_LANES 32    /* floats of a part's result of a probe: two cache lines */
#define INGOT_PROBE_GRAIN 512   /* floats that a probe of reading takes at a time */

#define INGOT_FUSED_MEMORY 16   /* tensors that a fused program reads and writes, at most */
#define INGOT_FUSED_SLOTS 32    /* its slots */
#define INGOT_FUSED_OPS 32      /* its ops */
#define INGOT_FUSED_ROWS 4      /* rows that its reductions take through memory together */
#define INGOT_FUSED_SLOT 0
#define INGOT_FUSED_SLOT_ROW 1
#define INGOT_FUSED_SLOT_COLUMN 2

/* What sums of integers become: they themselves, floats, or these as integers of 8 bits. */
#define INGOT_INTEGER_I32 0
#define INGOT_INTEGER_F32 1
#define INGOT_INTEGER_I8 2
#define INGOT_INTEGER_U8 3

/* The ops that an epilogue may apply to sums. */
enum {
  INGOT_ACT_none,
  #define ACTIVATION(op, cost, expression) INGOT_ACT_##op,
  #include "elementwise.def"
};

/* What a tile reads: floats, for an a by rows or by columns; two elements of k as pairs of bf16, or as rows of f16. */
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

#define INGOT_ROUND_up 0       /* to f8e8m0: the next power, the one before, the nearest */
#define INGOT_ROUND_down 1
#define INGOT_ROUND_nearest 2

/* What an update does to the element that it meets. */
#define INGOT_MERGE_none 0
#define INGOT_MERGE_add 1
#define INGOT_MERGE_mul 2
#define INGOT_MERGE_max 3
#define INGOT_MERGE_min 4

#define INGOT_FFT_RADIX 61      /* the largest prime factor of a length that a transform takes apart */
#define INGOT_FFT_PASSES 32     /* its passes, at most */
#define INGOT_FFT_LINES 16      /* its lines whose elements lie side by side, at most */
#define INGOT_FFT_PLAIN 0       /* what it reads is what it transforms, what it makes is the beginning of that */
#define INGOT_FFT_SPLIT 1       /* it transforms pairs of real elements, and makes half of these elements' spectrum */
#define INGOT_FFT_JOIN 2        /* the way back */
#define INGOT_FFT_MIRROR 3      /* it reads half of the spectrum of an odd number of real elements */

#define INGOT_SAMPLE_NAN 1         /* a logit is NaN */
#define INGOT_SAMPLE_INFINITE 2    /* a logit, or what a bias or penalty made of it, is +inf */
#define INGOT_SAMPLE_NONE 3        /* every logit is -inf or masked */

#define INGOT_GATE_FIRST 1  /* the half of the columns that the activation is applied to */
#define INGOT_GATE_SECOND 2

#define INGOT_MASK_NONE 0
#define INGOT_MASK_BOOL 1     /* uint8_t, nonzero keeps */
#define INGOT_MASK_FLOAT 2    /* float, added to the scaled score */

/* The ops of a fused program. Reductions go over a row and give one element; the rest are element-wise, but for pivot.
 * squares: the sum of (a - (b + c))^2. offset: the mean of a - b. pivot: a number among a row's elements (norm_pivot).
 * norm_scale: 1 / sqrt(variance + alpha), a being the sum of `beta` squares around b + c. narrow: to bf16, which its
 * result in memory is. quantize, dequantize: to and from integers of 8 bits in memory; alpha is the scale, beta the
 * zero point. normalise: (a - (b + f)) c d + e, where b, c and f have one element a row. */
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

/* The first bad run-time index of a run. code 0: none; 1: index outside [-limit, limit); 2: outside [0, limit). Or
 * code INGOT_STOPPED: the run ended before `step` was done, because it was told to. */
#define INGOT_STOPPED 3
typedef struct { int32_t code; int32_t step; int64_t index; int64_t limit; } ingot_fault;

/* Unary, binary, ternary, cast and copy. Innermost dim last; a stride may be 0 (broadcast) or negative (flip). */
typedef struct {
  const void *a; const void *b; const void *c; void *out;
  float alpha; float beta;                 /* the op's float attributes, in signature order */
  int32_t from; int32_t to;                /* of a cast: INGOT_DTYPE_* */
  int32_t saturate; int32_t rounding;      /* of a cast to narrow floats: whether what is too large becomes the largest;
                                              INGOT_ROUND_* */
  int32_t rank;
  int64_t shape[12];
  int64_t a_strides[12]; int64_t b_strides[12]; int64_t c_strides[12]; int64_t out_strides[12];
} elementwise_args;

/* A program of element-wise ops and row reductions over [outer, rows, cols], run for one strip of fused_rows x
 * fused_cols after the other. Op i: out[i] = code[i](a[i], b[i], ...), alpha and beta being its scalars.
 *
 * A place is a tensor in memory, or INGOT_FUSED_MEMORY + the number of a slot: scratch that holds a value of one strip
 * (INGOT_FUSED_SLOT), of whole rows (INGOT_FUSED_SLOT_ROW), or one element a row (INGOT_FUSED_SLOT_COLUMN). -1: none.
 * In memory an element lies at memory[m] + outer * outer_strides[m] + row * row_strides[m] + col * col_steps[m], the
 * last being 0 or 1. Several segments: the ops of one go through all strips of a row before those of the next, which
 * may read the results of its reductions. Without reductions there is one segment, and parts share the strips of a
 * row too. fused_cols is a multiple of 16 and, with reductions, divides INGOT_REDUCE_CHUNK where it is less than
 * cols. scratch: parts slots of scratch_stride floats, in which slot s begins at slot_offsets[s]. fused_rows rows of
 * it hold fused_cols floats each; of whole rows, cols rounded up to a multiple of 16; a column slot holds fused_rows
 * floats rounded up to a multiple of 16, and 16 for each row. */
typedef struct {
  const void *memory[16]; float *scratch;  /* results are written */
  int64_t outer; int64_t rows; int64_t cols; int64_t fused_rows; int64_t fused_cols;
  int64_t outer_strides[16]; int64_t row_strides[16]; int64_t col_steps[16];
  int64_t slot_offsets[32]; int64_t scratch_stride;
  int32_t slot_kinds[32];
  int32_t op_count; int32_t segment_count;
  int32_t segment[32]; int32_t code[32]; int32_t out[32];
  int32_t a[32]; int32_t b[32]; int32_t c[32]; int32_t d[32]; int32_t e[32]; int32_t f[32];
  float alpha[32]; float beta[32];
} fused_args;

/* out[outer] = reduce(x[outer, reduced]); out is contiguous in outer order. */
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

/* out[o, i, j] = the sum or product of x[o, 0..i, j], all of [outer, count, inner], row-major. */
typedef struct { const void *x; void *out; int64_t outer; int64_t count; int64_t inner; } running_args;

/* out[i] = the determinant of x[i, 0..n, 0..n], row-major. scratch: parts slots of scratch_stride floats. */
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

/* Rows that lie side by side: element j of row r of an item i is at i * strides[0] + j * strides[1] + r. */
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

/* The k best of rows of `cols` adjacent elements: out[rows, k] and indices[rows, k], both row-major. */
typedef struct {
  const void *x; void *out; int64_t *indices;
  int64_t rows; int64_t cols; int64_t k; int64_t x_stride; int32_t largest;
} topk_args;

/* dst = scale * src packed in panels of 32 columns, [ceil(n / 32)][k][32], zero-padded; element (i, j) of the k x n
 * matrix lies at src + i * k_stride + j * n_stride. pack_bf16: both are bf16, and a panel is [ceil(k / 2)][32][2],
 * elements 2i and 2i + 1 of a column side by side; there is no scale. pack_f16: both are f16, a panel is [k][32], zeros
 * making k even, and there is no scale. second: NULL, or another matrix that lies like
 * src: then a panel is 16 columns of src and the same 16 of second, and n, a multiple of 16, counts those of one.
 * pack_int8, pack_int4: src has codes, a byte each, and the f16 at scales + i / group * scale_k_stride + j *
 * scale_n_stride is the scale of element (i, j); second_scales are those of second. Codes ^ flip stand for
 * (code - 128) * scale, or (code - 8) * scale. pairs: src has two codes of 4 bits in a byte, the first in the low bits,
 * n_stride counts bytes, and k is even. A panel is [ceil(k / 32)] blocks of codes and 32 scales behind them:
 * codes [8][32][4], four elements of a column side by side; those of 4 bits [4][32][4], whose upper halves are the
 * elements 16 further on. pack_int8_zp, pack_int4_zp: (code - zero) * scale, and zeros, bytes that lie as scales
 * do, are codes too; a block has 32 of them at its end, those of 4 bits 16 times as large. _128: `group` is a multiple
 * of INGOT_QUANT_WIDE, or k; the codes of so many elements, of those that are left at the end, lie one block after the
 * other, and then come their scales, and their zeros. _row: the same with INGOT_QUANT_LONGEST. _f32: scales are f32.
 * pack_q4_0 and so on: src has rows of blocks of that type of GGUF files, n_stride bytes apart, and k counts elements.
 * q4_0, q8_0: panels of pack_int4 and pack_int8. Of the others a panel is as large as the blocks; see blocks.h.
 * pack_bytes: src has bytes, and a panel those ^ flip, [ceil(k / 4)][32][4], four elements of a column side by side. */
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

/* c[m, n] = activation(alpha * a[m, k] @ b[k, n] + bias[n]) + residual[m, n]; where residual_first is set, the
 * activation is applied to the whole sum instead. act_alpha, act_beta: the activation's float attributes. b is packed:
 * panel p holds columns 32p..32p+31 as [k][32], zero-padded. bias and residual may be null; so may c, where only
 * rounded, c as bf16, is wanted, or that. slopes[n], or null: the activation is then that of v_prelu.
 * _f32_bf16, _f32_f16: b is bf16, in the panels of pack_bf16, or f16 in those of pack_f16; its elements become floats:
 * bits are those of f32 panels.
 * gemm_bf16: so are a's elements, and its rows begin at multiples of 4 bytes; k is even. A sum takes the products of a
 * pair one after the other, the second first, each rounded as a fused multiply-add, with denormals as zeros; pairs are
 * summed in blocks of INGOT_K_BLOCK. A rounded denormal may become zero, and a NaN keep its sign and upper bits.
 * apart: instead, of each 16 pairs the products of first elements are summed in one chain from zero, those of second
 * elements in another, rounded like this; what both add up to is added to the sum.
 * gemm_int8, gemm_i24_int8, gemm_q4_k, gemm_f32_int8 and so on: b has panels of codes; gemm_quant.c and gemm_decoded.c
 * say more.
 * gemm_f32_int8_transposed and so on: b has those of a matrix [n, k], k being its columns, and is multiplied
 * transposed.
 * _gated: c[m, n] = activation(gate) * up, where gate and up are the halves (gate: which is which) of
 * alpha * a[m, k] @ b[k, 2n] + bias[2n]; n is a multiple of 16, panel p of b holds columns 16p..16p+15 and
 * n+16p..n+16p+15, and there is no residual. */
typedef struct {
  const void *a; const void *b; const float *bias; const float *slopes; const float *residual; float *c;
  uint16_t *rounded;
  int64_t m; int64_t n; int64_t k;
  int64_t a_stride; int64_t residual_stride; int64_t c_stride; int64_t rounded_stride;
  float alpha; float act_alpha; float act_beta; int32_t activation; int32_t residual_first; int32_t gate;
  int32_t split_sums; int32_t chunks;
} gemm_args;

/* gemm's c for each of a batch, with a b that is not constant: it is packed into scratch, per part. Batch strides may
 * be 0. bias: [n] or null; residual has c's shape, or is null, and may be c, but in matmul_f32 with a k above
 * INGOT_MATMUL_DEPTH, whose sums wait in c. scratch: parts slots of scratch_stride floats.
 * matmul_f32_bf16: b is bf16; bits are those of matmul_f32 with the same numbers.
 * matmul_tn_f32: a lies as [k, m], its rows of m adjacent elements a_stride apart. continues: sums begin with the
 * residual, as if it were what earlier elements of k came to; otherwise the residual may not be c. scratch: a block of
 * a panel, and [m][32]. */
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

/* out[r, s, n] = experts[chosen[r, s]][n, k] @ x[r, s, k]. experts: `count` matrices, one after another, each packed
 * as gemm's b (its n being columns). x_strides: row, slot; the last dim is adjacent. chosen and out are row-major.
 * scratch: parts slots of scratch_stride floats. */
typedef struct {
  const float *x; const int64_t *chosen; const void *experts; float *out; float *scratch; ingot_fault *fault;
  int64_t rows; int64_t slots; int64_t n; int64_t k; int64_t count;
  int64_t x_strides[2];
  int64_t scratch_stride; int32_t step; int32_t chunks;
} expert_args;

/* out = softmax(scale * q @ k^T + mask) @ v; head h of q reads head h / (heads / kv_heads) of k and v.
 * Strides are [batch, head, row]; the last dim is adjacent. Row i attends to columns <= i + causal_offset when causal.
 * A row whose scores are all -inf gives zeros when `safe`, else NaN, and every row of NaN zeros when `zero_nan`.
 * rounds: out is bf16. attention_f32 keeps whole rows of scores, attention_f32_online tiles of INGOT_KV_TILE.
 * attention_bf16 and its _online: q, k and v are bf16, their rows begin at multiples of 4 bytes where they are q's and
 * k's, and head_dim is even; products are gemm_bf16's, with weights rounded to bf16, the rest is f32.
 * attention_bf16_tiles: the same, by tiles of INGOT_KV_TILE, with products whose sums are apart.
 * attention_dropout_f32 and its _online: as attention_f32, of weights that meet v with zeros among them, and the others
 * times kept, as dropout_args has it of their places in [batch, heads, q_len, kv_len]. step and what follows is theirs.
 * scratch: parts slots of scratch_stride floats. */
typedef struct {
  const float *q; const float *k; const float *v; const void *mask; float *out; float *scratch;
  int64_t batch; int64_t heads; int64_t kv_heads; int64_t q_len; int64_t kv_len; int64_t head_dim; int64_t v_dim;
  int64_t q_strides[3]; int64_t k_strides[3]; int64_t v_strides[3]; int64_t out_strides[3];
  int64_t mask_strides[4];                 /* batch, head, row, column */
  int64_t scratch_stride; int64_t causal_offset;
  float scale; int32_t causal; int32_t safe; int32_t zero_nan; int32_t mask_kind; int32_t rounds;
  const double *step; const double *part; int64_t seed; int64_t stream; int64_t threshold; float kept;
} attention_args;

/* Rows of x written into a cache of keys, [total_blocks][kv_heads][dim][64], or of values, [..][64][dim]: row r of x is
 * position p = positions[r] of sequence s = owners[r], which lies in slot p % 64 of block
 * blocks[s * blocks_each + p / 64]. In order, so that the last of rows with one place stays; a row with an index
 * outside is left out. x_strides: row, head; the last dim is adjacent. An int8 cache has f32 scales
 * [total_blocks][kv_heads][64]. One of int4 is [total_blocks][kv_heads][dim / 2][64], or [..][64][dim / 2]: dims go in
 * groups of INGOT_CACHE_GROUP, of which the last may be less; a byte holds dim i of a group's first half, and above it
 * that of its second. Its scales are f16, [total_blocks][kv_heads][2 * groups][64]: of each group a step and a least
 * number, which code 0 stands for. dim is even. */
typedef struct {
  const float *x; void *cache; void *scales;
  const int32_t *positions; const int32_t *owners; const int32_t *blocks; ingot_fault *fault;
  int64_t rows; int64_t kv_heads; int64_t dim; int64_t x_strides[2];
  int64_t total_blocks; int64_t sequences; int64_t blocks_each;
  int32_t step;
} append_args;

/* out = softmax(cap(scale * q @ keys)) @ values over the positions that a row sees: at most `window` of its sequence
 * (0: all), its own the last. cap(s) = softcap * tanh(s / softcap), or s where softcap is 0. Head h of q reads head
 * h / (heads / kv_heads). Caches and places are append's; strides are row, head, and the last dim is adjacent. A row
 * with an index outside gives zeros. scratch: parts slots of scratch_stride floats. */
typedef struct {
  const float *q; const void *keys; const void *values; const void *key_scales; const void *value_scales; float *out;
  const int32_t *positions; const int32_t *owners; const int32_t *blocks; ingot_fault *fault; float *scratch;
  int64_t rows; int64_t heads; int64_t kv_heads; int64_t head_dim; int64_t v_dim;
  int64_t q_strides[2]; int64_t out_strides[2];
  int64_t total_blocks; int64_t sequences; int64_t blocks_each; int64_t window; int64_t scratch_stride;
  float scale; float softcap;
  int32_t step; int32_t chunks;
} cached_attention_args;

/* x with pairs (i, i + half) rotated: out = x * cos + rotate_half(x) * sin, over the last dim.
 * Strides are [batch, head, row]; cos and sin strides likewise, last dim adjacent. */
typedef struct {
  const float *x; const float *cos; const float *sin; float *out;
  int64_t batch; int64_t heads; int64_t rows; int64_t head_dim;
  int64_t x_strides[3]; int64_t cos_strides[3]; int64_t sin_strides[3]; int64_t out_strides[3];
} rotary_args;

/* out[outer, i, inner] = table[outer, indices[i], inner]; a negative index counts from the end. _panels: table is a
 * packed matrix (gemm's b, transposed), row r of it lying in column r. _bf16: its elements are bf16, and out's are
 * f32; _int8, _int4, with _128, _row, _zeros or without: codes and scales; _q4_k and so on: blocks, whose numbers are
 * rounded step by step as their type is defined. index_bytes: 4 or 8, heeded by these. */
typedef struct {
  const void *table; const void *indices; void *out; ingot_fault *fault;
  int64_t outer; int64_t limit; int64_t inner; int64_t count;
  int32_t step; int32_t item_bytes; int32_t index_bytes;
} gather_args;

/* out[i] = x[i], an index below `limit`, counted from the front; only with `wraps` may x[i] be negative. index_bytes: 4
 * or 8, of both. */
typedef struct {
  const void *x; void *out; ingot_fault *fault;
  int64_t count; int64_t limit;
  int32_t step; int32_t index_bytes; int32_t wraps;
} checked_index_args;

/* out[outer, i, inner] = the sum over taps t, in order, of weights[i, t] * x[outer, indices[i, t], inner]. */
typedef struct {
  const float *x; const int64_t *indices; const float *weights; float *out; ingot_fault *fault;
  int64_t outer; int64_t limit; int64_t inner; int64_t count; int64_t taps;
  int32_t step;
} resample_args;

/* out[i...] = x[i... with indices[i...] at `axis`]; x strided, indices and out contiguous, of `shape`. */
typedef struct {
  const void *x; const void *indices; void *out; ingot_fault *fault;
  int32_t rank; int32_t axis; int32_t step; int32_t item_bytes;
  int64_t shape[12]; int64_t x_strides[12];
  int64_t limit;
} gather_elements_args;

/* out[i... with indices[i...] at `axis`] = updates[i...], or that merged with what is there, in row-major order; all of
 * `shape`, updates contiguous. index_bytes: 4 or 8. merge: INGOT_MERGE_*. _f32: merged as doubles, rounded once; up to
 * `together` lines along the axis are in scratch at a time. scratch: parts slots of scratch_stride floats. */
typedef struct {
  const void *indices; const void *updates; void *out; float *scratch; ingot_fault *fault;
  int32_t rank; int32_t axis; int32_t step; int32_t item_bytes; int32_t index_bytes; int32_t merge;
  int64_t shape[12]; int64_t index_strides[12]; int64_t out_strides[12];
  int64_t limit; int64_t together; int64_t scratch_stride;
} scatter_args;

/* out[batch, channels, points] = x[batch, channels, height, width] at grid[batch, points, 2], whose points are
 * columns, then rows, from -1 to 1. Strides are [batch, channel, row, column] of x and [batch, channel, point] of out.
 * linear: or else the nearest element; border: the outer elements go on for ever, or else zeros do. */
typedef struct {
  const float *x; const float *grid; float *out;
  int64_t batch; int64_t channels; int64_t height; int64_t width; int64_t points;
  int64_t x_strides[4]; int64_t out_strides[3];
  int32_t linear; int32_t border; int32_t align_corners;
} grid_args;

/* Discrete Fourier transforms of `length` elements of each line, inverse ones without their divisor, by which results
 * are divided. Lines are [shape], and begin at strides; elements of one are a step apart. Of each line `read` elements
 * are read, and `made` are written; imaginary may be null for zeros, out_imaginary for what is not wanted.
 * form: INGOT_FFT_*. radices: 2, 4 and odd numbers up to INGOT_FFT_RADIX, whose product is `length`; factors: what
 * passes multiply by, as fft.c has it; those of forms SPLIT and JOIN begin at roots_at. block: lines that go together,
 * 1 or INGOT_FFT_LINES. scratch: parts slots of scratch_stride floats. */
typedef struct {
  const void *real; const void *imaginary; void *out_real; void *out_imaginary; const void *factors; float *scratch;
  int32_t rank; int32_t form; int32_t inverse; int32_t pass_count;
  int64_t shape[12]; int64_t real_strides[12]; int64_t imaginary_strides[12];
  int64_t out_real_strides[12]; int64_t out_imaginary_strides[12];
  int64_t real_step; int64_t imaginary_step; int64_t out_real_step; int64_t out_imaginary_step;
  int64_t length; int64_t read; int64_t made; int64_t divisor; int64_t block; int64_t roots_at;
  int64_t radices[32]; int64_t scratch_stride;
} fft_args;

/* out[rows, target_count] = the votes of the leaves that rows of x reach, each weight divided by `divisor`: their sums,
 * or by merge, an INGOT_MERGE_min or INGOT_MERGE_max, one of them, with voted[rows, target_count] to remember where
 * there is one. splits[node_count], leaves[leaf_count][2], weights and targets[vote_count], roots[tree_count] and
 * members[member_count] are the tables of the op tree_ensemble. nodes[node_count][4]: of its nodes 16 times the feature
 * plus the comparison, plus 8 where NaN holds; what follows where it holds and where not; the bits of a split of f32.
 * sets[node_count][2]: the range of members. */
typedef struct {
  const void *x; const void *splits; const int32_t *nodes; const int64_t *sets; const int64_t *leaves;
  const void *weights; const int64_t *targets; const int64_t *roots; const void *members; void *out; uint8_t *voted;
  ingot_fault *fault;
  int64_t rows; int64_t features; int64_t x_stride; int64_t divisor;
  int64_t node_count; int64_t leaf_count; int64_t vote_count; int64_t target_count; int64_t tree_count;
  int64_t member_count;
  int32_t step; int32_t merge;
} tree_args;

/* One direction of a recurrent layer: LSTM, GRU or plain, whose op in ops/ says what is computed. columns: `hidden` for
 * each gate. gates[steps, batch, columns] is what the input adds to them. weights: [columns, hidden], packed by rows as
 * gemm's b, 32 units of all gates after the next 32, so that the panels of a unit's gates are neighbours.
 * bias[columns], peepholes[3 * hidden] and lengths[batch] may be null. h, c, last_h and last_c: [batch, hidden], dense;
 * c and last_c are LSTM's alone. out[steps, batch, hidden]. Strides are [step, batch]; the last dim is adjacent.
 * activation: the op's, with their attributes. clip: 0 for none.
 * Each turn of the call is a step of time, or half of one where a GRU's reset gate comes before its product. state:
 * what turns leave for each other, [2][batch][hidden], for halves twice that; all parts share it.
 * The bf16 kernels multiply the state rounded to bf16, as gemm_bf16 does: rounded_h is h so, rounded what turns leave
 * of it, [2][batch][hidden], for halves half as much again; hidden is even. For the others both are null. */
typedef struct {
  const float *gates; const void *weights; const float *bias; const float *peepholes; const int64_t *lengths;
  const float *h; const float *c; float *out; float *last_h; float *last_c; float *state; ingot_fault *fault;
  const uint16_t *rounded_h; uint16_t *rounded;
  int64_t steps; int64_t batch; int64_t hidden; int64_t columns;
  int64_t gates_strides[2]; int64_t out_strides[2];
  int32_t reverse; int32_t input_forget; int32_t linear_before_reset; int32_t step;
  float clip; float act_alpha[3]; float act_beta[3]; int32_t activation[3];
} recurrent_args;

/* The same in f64. weights lie as they are; activation: sigmoid, tanh or relu. */
typedef struct {
  const double *gates; const double *weights; const double *bias; const double *peepholes; const int64_t *lengths;
  const double *h; const double *c; double *out; double *last_h; double *last_c; double *state; ingot_fault *fault;
  int64_t steps; int64_t batch; int64_t hidden; int64_t columns;
  int64_t gates_strides[2]; int64_t out_strides[2];
  int32_t reverse; int32_t input_forget; int32_t linear_before_reset; int32_t step;
  float clip; int32_t activation[3];
} recurrent_f64_args;

/* probe_fma_f32: each part does `count` fused multiply-adds on x[128]. probe_read_f32: the parts together read
 * x[count], count a multiple of INGOT_PROBE_GRAIN, `passes` times. out: parts slots of INGOT_PROBE_LANES floats. */
typedef struct { const float *x; float *out; int64_t count; int64_t passes; } probe_args;

/* Does one part of the work. In the second of several turns, or portions, part 1 of 4 is part 5, and so on. */
typedef void (*ingot_kernel)(const void *args, int32_t part, int32_t parts);

/* Draws the tokens of one sequence (sample.c); the caller owns all memory, arrays of `vocab`, NULL where not needed:
 * tokens, weights: for a temperature above 0 or log-probabilities. scores: where anything changes the logits.
 * occurrences, seen: for penalties; 1 + how often the output holds a token, 0 if neither it nor the prompt does, and
 * the tokens whose entry is not 0. mask: bit i % 32 of word i / 32 allows token i; NULL: all.
 * What the last call could have drawn: `kept` of tokens and weights; a probability is a weight over `mass`. Where
 * all_kept is set, tokens is unused and weight i is token i's.
 * logprob, top_logprobs: natural logarithms of the model's own probabilities, those of the logits as they came. */
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

/* One kernel and its body for each instruction set, NULL for those of other processors; args_bytes is the size of its
 * argument struct. */
typedef struct {
  const char *name; const char *args_type; int64_t args_bytes;
  ingot_kernel scalar; ingot_kernel avx2; ingot_kernel avx512; ingot_kernel neon;
} ingot_kernel_row;

/* One kernel call. parts: how many pieces it is cut into; barrier: every thread waits before it. turns: all parts are
 * done so many times, one turn after the other, so that a part reads what others wrote in the turn before.
 * portions, where there is one turn: a part is done in so many, one after the other on its thread, so that a run can
 * end in between; the kernel's arguments say so, too, and 0 is 1. */
typedef struct {
  ingot_kernel kernel; const void *args; int32_t parts; int32_t barrier; int32_t iterations; int32_t chunks;
} ingot_step;

/* A matrix to pack, and the pages of mapped files that are let go of afterwards: so many bytes from each, or 0. */
typedef struct {
  ingot_kernel kernel; const pack_args *args;
  void *pages[4]; int64_t page_bytes[4];
} ingot_packing;

/* A pointer inside an argument struct that is set at each run: *where = bindings[slot] + byte_offset. */
typedef struct { void **where; int64_t slot; int64_t byte_offset; } ingot_patch;

/* A size inside an argument struct, the address of what lies behind one, or a patch's byte_offset, that is set at each
 * run: *where = base + factor * sizes[size]. */
typedef struct { int64_t *where; int64_t size; int64_t factor; int64_t base; } ingot_resize;

/* What one context runs. threads: at most this many take part. sizes_slot: of the binding that holds a run's sizes,
 * an int64_t for each, where there are resizes. lock: of the memory that the steps use, 0 at first; NULL where no
 * other run can be in it. stop: not 0 ends a run before the next part that a thread would take, and may be set at any
 * time; NULL where none is. */
typedef struct {
  const ingot_step *steps; const ingot_patch *patches; const ingot_resize *resizes;
  ingot_fault *fault; uint32_t *lock; const int32_t *stop;
  int64_t step_count; int64_t patch_count; int64_t resize_count; int64_t sizes_slot; int32_t threads;
} ingot_program;

const ingot_kernel_row *ingot_kernels(int32_t *count);
const char *ingot_abi_hash(void);
/* A hash of bytes that finds damage; the same on every machine. data may be NULL when nbytes is 0. */
uint64_t ingot_hash(const void *data, int64_t nbytes);
/* Packs matrices one after another, each on one thread, until all are packed or taken by other calls with the same
 * `taken`, which is 0 at first. */
void ingot_pack(const ingot_packing *matrices, int64_t count, int64_t *taken);
/* The best set that this CPU runs: "scalar", "avx2", "avx512" or "neon". */
const char *ingot_best_isa(void);
/* Whether this CPU runs gemm_bf16's kernels on avx512; on the others every CPU does, slowly. */
int32_t ingot_has_bf16_dots(void);
/* The same where they sum apart, after ingot_use_amx. */
int32_t ingot_has_bf16_tiles(void);
/* Whether kernels of avx512 multiply integers by AMX from now on, with the same bits: "used", "off" where that is not
 * `wanted`, "absent" where the CPU has none, "refused" where the system forbids it. Not while a kernel runs. */
const char *ingot_use_amx(int32_t wanted);
/* 0, or the code of the fault that `fault`, which may be NULL, then tells of. Programs with one lock take turns, from
 * the first write into an argument struct to the last step; others run concurrently.
 * Two programs at once: one gets the pool, the other runs all its parts on its own thread. */
int32_t ingot_run(const ingot_program *program, void *const *bindings, ingot_fault *fault);
/* As ingot_run, with a barrier after each step; nanoseconds[i] gets the time of step i. */
int32_t ingot_run_profiled(const ingot_program *program, void *const *bindings, ingot_fault *fault,
                           int64_t *nanoseconds);
/* Draws from a row of `vocab` logits, which it leaves as they are: the token, which the sampler then counts as output,
 * or -1 and the reason in its `status`. Allocates nothing; different samplers run concurrently. */
int32_t ingot_sample(ingot_sampler *sampler, const float *logits);
/* As ingot_run, after which sampler i draws from row i of the logits that are bound at `slot`. */
int32_t ingot_run_sampled(const ingot_program *program, void *const *bindings, ingot_fault *fault, int64_t slot,
                          ingot_sampler *const *samplers, int64_t count);
