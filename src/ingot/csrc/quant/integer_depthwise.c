/* integer_depthwise.c: integer depthwise convolutions. Four rows of an image are interleaved, so that a dot product
 * takes a channel's elements of one column in all four. */
#include "quant/integer_conv.h"
#include "quant/integer_dots.h"

/* Up to INGOT_INTERLEAVED_PIXELS output pixels at (y, x...) of an image, for up to INGOT_INTERLEAVED_CHANNELS from
 * `channel` on, and with `lines` 2 also those of the next row, whose filters begin one interleaved row later. outside,
 * none: a vector of padding bytes, in x's type, and of zeros. added, zeros: the terms that are added to a channel's
 * sum, and four times its w_zero. */
typedef struct {
  const integer_args *g;
  const uint8_t *image;
  int64_t y, x, lines, pixels, channel, channels;
  const uint8_t *outside, *none;
  const int32_t *added;
  const int8_t *zeros;
  uint8_t *interleaved;
} integer_rows4;

/* Columns of an image that `pixels` output pixels read. */
static inline int64_t integer_interleaved_columns(const integer_args *g, int64_t pixels) {
  return (pixels - 1) * g->stride_w + (g->kernel_w - 1) * g->dilation_w + 1;
}

/* The addresses of four rows. */
typedef struct { const uint8_t *a, *b, *c, *d; } integer_four;

/* to[16][4] = 16 bytes of each of four rows, as u8. */
static inline void integer_interleave_16(integer_four l, uint8_t flip, uint8_t *to) {
  #if !defined(ISA_avx2) && !defined(ISA_avx512)
  for (int i = 0; i < 16; i++) {
    to[4 * i] = l.a[i] ^ flip;
    to[4 * i + 1] = l.b[i] ^ flip;
    to[4 * i + 2] = l.c[i] ^ flip;
    to[4 * i + 3] = l.d[i] ^ flip;
  }
  #else
  const __m128i flips = _mm_set1_epi8((char)flip);
  const __m128i a = _mm_xor_si128(_mm_loadu_si128((const __m128i *)l.a), flips);
  const __m128i b = _mm_xor_si128(_mm_loadu_si128((const __m128i *)l.b), flips);
  const __m128i c = _mm_xor_si128(_mm_loadu_si128((const __m128i *)l.c), flips);
  const __m128i d = _mm_xor_si128(_mm_loadu_si128((const __m128i *)l.d), flips);
  const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpacklo_epi8(c, d);
  const __m128i lower = _mm_unpackhi_epi8(a, b), higher = _mm_unpackhi_epi8(c, d);
  _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi16(low, high));
  _mm_storeu_si128((__m128i *)(to + 16), _mm_unpackhi_epi16(low, high));
  _mm_storeu_si128((__m128i *)(to + 32), _mm_unpacklo_epi16(lower, higher));
  _mm_storeu_si128((__m128i *)(to + 48), _mm_unpackhi_epi16(lower, higher));
  #endif
}

static inline integer_four integer_four_at(integer_four l, int64_t i) {
  return (integer_four){l.a + i, l.b + i, l.c + i, l.d + i};
}

/* The same of 64 bytes. */
static inline void integer_interleave_64(integer_four l, uint8_t flip, uint8_t *to) {
  #if defined(ISA_avx512)
  const __m512i flips = _mm512_set1_epi8((char)flip);
  const __m512i a = _mm512_xor_si512(_mm512_loadu_si512(l.a), flips);
  const __m512i b = _mm512_xor_si512(_mm512_loadu_si512(l.b), flips);
  const __m512i c = _mm512_xor_si512(_mm512_loadu_si512(l.c), flips);
  const __m512i d = _mm512_xor_si512(_mm512_loadu_si512(l.d), flips);
  const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpacklo_epi8(c, d);
  const __m512i lower = _mm512_unpackhi_epi8(a, b), higher = _mm512_unpackhi_epi8(c, d);
  /* The quarters are a vector of 16 channels apart. */
  const __m512i q0 = _mm512_unpacklo_epi16(low, high), q1 = _mm512_unpackhi_epi16(low, high);
  const __m512i q2 = _mm512_unpacklo_epi16(lower, higher), q3 = _mm512_unpackhi_epi16(lower, higher);
  const __m512i first = _mm512_shuffle_i32x4(q0, q1, 0x44), second = _mm512_shuffle_i32x4(q2, q3, 0x44);
  const __m512i third = _mm512_shuffle_i32x4(q0, q1, 0xee), fourth = _mm512_shuffle_i32x4(q2, q3, 0xee);
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(first, second, 0x88));
  _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(first, second, 0xdd));
  _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(third, fourth, 0x88));
  _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(third, fourth, 0xdd));
  #else
  for (int i = 0; i < 64; i += 16) integer_interleave_16(integer_four_at(l, i), flip, to + 4 * i);
  #endif
}

/* One column of four rows; to[channels][4], in whole vectors of 16. */
static inline void integer_interleave_column(integer_four l, int64_t channels, uint8_t flip, uint8_t *to) {
  int64_t i = 0;
  for (; i + 64 <= channels; i += 64) integer_interleave_64(integer_four_at(l, i), flip, to + 4 * i);
  for (; i + 16 <= channels; i += 16) integer_interleave_16(integer_four_at(l, i), flip, to + 4 * i);
  if (i == channels) return;
  uint8_t some[4][16] = {{0}};
  integer_some(l.a + i, channels - i, some[0]);
  integer_some(l.b + i, channels - i, some[1]);
  integer_some(l.c + i, channels - i, some[2]);
  integer_some(l.d + i, channels - i, some[3]);
  integer_interleave_16((integer_four){some[0], some[1], some[2], some[3]}, flip, to + 4 * i);
}

/* One of the interleaved rows: its address, and the distance to the next column. */
typedef struct { const uint8_t *from, *beyond; int64_t step; } integer_interleaved_line;

static inline integer_interleaved_line integer_interleaved_line_at(const integer_rows4 *w, int64_t row) {
  const integer_args *g = w->g;
  const int64_t left = w->x * g->stride_w - g->pad_left, line = w->y * g->stride_h - g->pad_top + row * g->dilation_h;
  if (row >= g->kernel_h + w->lines - 1) return (integer_interleaved_line){w->none, w->none, 0};
  if (line < 0 || line >= g->height) return (integer_interleaved_line){w->outside, w->outside, 0};
  const uint8_t *from = w->image + line * g->x_strides[1] + left * g->x_strides[2];
  return (integer_interleaved_line){from, w->outside, g->x_strides[2]};
}

/* Gather a block's input: interleaved[ceil(kernel_h / 4)][columns][INGOT_INTERLEAVED_CHANNELS][4]. */
static inline void integer_interleave_block(const integer_rows4 *w) {
  const integer_args *g = w->g;
  const int64_t columns = integer_interleaved_columns(g, w->pixels), left = w->x * g->stride_w - g->pad_left;
  const uint8_t flip = (uint8_t)g->x_flip;
  uint8_t *to = w->interleaved;
  for (int64_t row = 0; row < g->kernel_h; row += 4) {
    const integer_interleaved_line a = integer_interleaved_line_at(w, row), b = integer_interleaved_line_at(w, row + 1);
    const integer_interleaved_line c = integer_interleaved_line_at(w, row + 2);
    const integer_interleaved_line d = integer_interleaved_line_at(w, row + 3);
    const integer_four beyond = {a.beyond, b.beyond, c.beyond, d.beyond};
    integer_four four = {a.from, b.from, c.from, d.from};
    for (int64_t i = 0; i < columns; i++, to += 4 * INGOT_INTERLEAVED_CHANNELS) {
      const int is_inside = left + i >= 0 && left + i < g->width;
      integer_interleave_column(is_inside ? four : beyond, w->channels, flip, to);
      four = (integer_four){four.a + a.step, four.b + b.step, four.c + c.step, four.d + d.step};
    }
  }
}

/* The sums of up to 16 channels from `at` on of the block; to[pixels][16]. weight: [ceil(kernel_h / 4)][kernel_w]
 * [channels in whole vectors][4] from the first channel on; first, zeros: the added terms, and w_zero; line: of those
 * of the block. */
typedef struct {
  const integer_rows4 *w;
  int64_t at, line;
  const int8_t *weight;
  const int32_t *first;
  const int8_t *zeros;
  int32_t *to;
} integer_vector;

/* name_vector(v): products are added by `dot`; attributes: those that `dot` requires. taps: the kernel's width, with
 * one group of rows, or 0 for any number of both. */
#define INTEGER_DEPTHWISE(name, attributes, dot)                                                                       \
  static inline __attribute__((always_inline)) attributes void K(name##_taps)(const int taps, const integer_vector *v, \
                                                                              int64_t lane) {                          \
    const integer_args *g = v->w->g;                                                                                   \
    const int64_t columns = integer_interleaved_columns(g, v->w->pixels), pitch = (g->channels + 15) / 16 * 64;        \
    const int64_t tap_step = g->dilation_w * 4 * INGOT_INTERLEAVED_CHANNELS;                                           \
    const int64_t step = g->stride_w * 4 * INGOT_INTERLEAVED_CHANNELS;                                                 \
    const uint8_t *from = v->w->interleaved + 4 * (v->at + lane);                                                      \
    const int8_t *weight = v->weight + 4 * lane;                                                                       \
    const integer_sums first = integer_read(v->first + lane), zeros = integer_read(v->zeros + 4 * lane);               \
    integer_sums w[3];                                                                                                 \
    INGOT_UNROLL for (int j = 0; j < taps; j++) {                                                                      \
      w[j] = integer_read(weight + j * pitch);                                                                         \
      if (v->line) w[j] = integer_moved(w[j]);                                                                         \
    }                                                                                                                  \
    for (int64_t t = 0; t < v->w->pixels; t++, from += step) {                                                         \
      integer_sums sum = first, less = integer_read(integer_nothing);                                                  \
      if (taps) {                                                                                                      \
        INGOT_UNROLL for (int j = 0; j < taps; j++) {                                                                  \
          const integer_sums a = integer_read(from + j * tap_step);                                                    \
          sum = dot(sum, a, w[j]);                                                                                     \
        }                                                                                                              \
      } else {                                                                                                         \
        const int8_t *b = weight;                                                                                      \
        for (int64_t i = 0; i < (g->kernel_h + 3) / 4; i++) {                                                          \
          for (int64_t j = 0; j < g->kernel_w; j++, b += pitch) {                                                      \
            const integer_sums a = integer_read(from + i * columns * 4 * INGOT_INTERLEAVED_CHANNELS + j * tap_step);   \
            sum = dot(sum, a, integer_read(b));                                                                        \
            less = dot(less, a, zeros);                                                                                \
          }                                                                                                            \
        }                                                                                                              \
      }                                                                                                                \
      integer_write(v->to + t * 16 + lane, taps ? sum : integer_less(sum, less));                                      \
    }                                                                                                                  \
  }                                                                                                                    \
  static attributes void K(name##_vector)(const integer_vector *v) {                                                   \
    const integer_args *g = v->w->g;                                                                                   \
    for (int64_t lane = 0; lane < 16; lane += INTEGER_LANES) {                                                         \
      if (g->kernel_h <= 4 && g->kernel_w == 3 && !g->weight_zero)                                                     \
        K(name##_taps)(3, v, lane);                                                                                    \
      else                                                                                                             \
        K(name##_taps)(0, v, lane);                                                                                    \
    }                                                                                                                  \
  }

static const uint8_t integer_nothing[64] = {0};

typedef void (*integer_channels)(const integer_vector *v);

INTEGER_DEPTHWISE(integer_depthwise_widened, , integer_madd)

#if defined(ISA_avx512)
INTEGER_DEPTHWISE(integer_depthwise_dots, INTEGER_VNNI, integer_dot)
#define INTEGER_CHANNELS                                                                                               \
  (__builtin_cpu_supports("avx512vnni") ? K(integer_depthwise_dots_vector) : K(integer_depthwise_widened_vector))
#else
#define INTEGER_CHANNELS K(integer_depthwise_widened_vector)
#endif

/* The results of a block. */
static inline void integer_depthwise_block(const integer_rows4 *w, const integer_store *f, integer_channels vector,
                                           int64_t image) {
  const integer_args *g = w->g;
  const int64_t *o = g->out_strides, *r = g->residual_strides;
  integer_place to[INGOT_INTERLEAVED_PIXELS];
  int32_t sums[INGOT_INTERLEAVED_PIXELS * 16];
  integer_interleave_block(w);
  for (int64_t line = 0; line < w->lines; line++) {
    for (int64_t t = 0; t < w->pixels; t++) {
      to[t].out = image * o[0] + (w->y + line) * o[1] + (w->x + t) * o[2];
      to[t].residual = image * r[0] + (w->y + line) * r[1] + (w->x + t) * r[2];
    }
    for (int64_t at = 0; at < w->channels; at += 16) {
      const int64_t channel = w->channel + at, lanes = w->channels - at < 16 ? w->channels - at : 16;
      const integer_vector v = {w, at, line, (const int8_t *)g->weight + 4 * channel, w->added + at,
                                w->zeros + 4 * at, sums};
      vector(&v);
      integer_rows(f, sums, 16, channel, lanes, w->pixels, g->out, to);
    }
  }
}

/* Rows [begin, end) of an image, for one block of channels. */
static inline void integer_depthwise_rows(const integer_args *g, int64_t image, int64_t block, int64_t begin,
                                          int64_t end, uint8_t *interleaved) {
  uint8_t outside[INGOT_INTERLEAVED_CHANNELS], none[INGOT_INTERLEAVED_CHANNELS];
  int32_t added[INGOT_INTERLEAVED_CHANNELS], zeros[INGOT_PANEL];
  int8_t zero_bytes[4 * INGOT_INTERLEAVED_CHANNELS];
  const int64_t channel = block * INGOT_INTERLEAVED_CHANNELS, left = g->channels - channel;
  const int64_t channels = left < INGOT_INTERLEAVED_CHANNELS ? left : INGOT_INTERLEAVED_CHANNELS;
  const int32_t zero = integer_zero(g, image);
  const integer_store store = integer_store_of(g, image);
  memset(none, g->x_flip, sizeof none);
  memset(outside, zero ^ g->x_flip, sizeof outside);
  for (int64_t at = 0; at < INGOT_INTERLEAVED_CHANNELS; at += INGOT_PANEL) {
    const int64_t rest = channels - at, columns = rest < 0 ? 0 : rest < INGOT_PANEL ? rest : INGOT_PANEL;
    integer_added(g, g->kernel_h * g->kernel_w, zero, channel + at, columns, added + at, zeros);
    for (int i = 0; i < 4 * INGOT_PANEL; i++) zero_bytes[4 * at + i] = (int8_t)zeros[i / 4];
  }
  integer_rows4 w = {.g = g, .image = (const uint8_t *)g->x + image * g->x_strides[0] + channel, .channel = channel,
                     .channels = channels, .outside = outside, .none = none, .added = added, .zeros = zero_bytes,
                     .interleaved = interleaved};
  /* Four rows are enough for two output rows of a filter of three rows. */
  const int has_two = g->kernel_h == 3 && g->kernel_w == 3 && g->stride_h * g->dilation_h == 1 && !g->weight_zero;
  for (w.y = begin; w.y < end; w.y += w.lines) {
    w.lines = has_two && w.y + 1 < end ? 2 : 1;
    for (w.x = 0; w.x < g->out_width; w.x += w.pixels) {
      w.pixels = g->out_width - w.x < INGOT_INTERLEAVED_PIXELS ? g->out_width - w.x : INGOT_INTERLEAVED_PIXELS;
      integer_depthwise_block(&w, &store, INTEGER_CHANNELS, image);
    }
  }
}

void K(integer_depthwise)(const void *args, int32_t task, int32_t num_tasks) {
  const integer_args *g = args;
  /* Panels are rows of pixels here, and rows are blocks of channels. */
  const int64_t blocks = (g->channels + INGOT_INTERLEAVED_CHANNELS - 1) / INGOT_INTERLEAVED_CHANNELS;
  const gemm_share share = gemm_cut(g->batch * g->out_height, blocks, task, num_tasks);
  uint8_t *interleaved = (uint8_t *)(g->scratch + task * g->scratch_stride);
  for (int64_t block = share.row_begin; block < share.row_end; block++) {
    for (int64_t row = share.panel_begin; row < share.panel_end;) {
      const int64_t image = row / g->out_height, first = row % g->out_height, rest = share.panel_end - row;
      const int64_t count = g->out_height - first < rest ? g->out_height - first : rest;
      integer_depthwise_rows(g, image, block, first, first + count, interleaved);
      row += count;
    }
  }
}
