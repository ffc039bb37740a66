/* integer_depthwise.c: convolutions of integers of 8 bits of each channel with its own filter. Four lines of an image
 * are woven, so that a dot product takes a channel's elements of one column in all of them. */
#include "integer_conv.h"
#include "integer_dots.h"

/* Up to INGOT_WOVEN_PIXELS output pixels at (y, x...) of an image, for up to INGOT_WOVEN_CHANNELS from `channel` on.
 * outside, none: a vector of bytes as x has them of what lies beyond the image, and of zeros. */
typedef struct {
  const integer_args *g;
  const uint8_t *image;
  int64_t y, x, pixels, channel, channels;
  const uint8_t *outside, *none;
  uint8_t *woven;
} integer_weave;

/* Columns of an image that `pixels` output pixels read. */
static inline int64_t integer_woven_columns(const integer_args *g, int64_t pixels) {
  return (pixels - 1) * g->stride_w + (g->kernel_w - 1) * g->dilation_w + 1;
}

/* to[16][4] = 16 bytes of each of four lines, as u8. */
static inline void integer_weave_16(const uint8_t *const line[4], uint8_t flip, uint8_t *to) {
  #if defined(ISA_scalar)
  for (int i = 0; i < 64; i++) to[i] = line[i % 4][i / 4] ^ flip;
  #else
  const __m128i flips = _mm_set1_epi8((char)flip);
  __m128i v[4];
  INGOT_UNROLL for (int i = 0; i < 4; i++) v[i] = _mm_xor_si128(_mm_loadu_si128((const __m128i *)line[i]), flips);
  const __m128i low[2] = {_mm_unpacklo_epi8(v[0], v[1]), _mm_unpackhi_epi8(v[0], v[1])};
  const __m128i high[2] = {_mm_unpacklo_epi8(v[2], v[3]), _mm_unpackhi_epi8(v[2], v[3])};
  INGOT_UNROLL for (int i = 0; i < 2; i++) {
    _mm_storeu_si128((__m128i *)(to + 32 * i), _mm_unpacklo_epi16(low[i], high[i]));
    _mm_storeu_si128((__m128i *)(to + 32 * i + 16), _mm_unpackhi_epi16(low[i], high[i]));
  }
  #endif
}

/* The same of 64 bytes. */
static inline void integer_weave_64(const uint8_t *const line[4], uint8_t flip, uint8_t *to) {
  #if defined(ISA_avx512)
  const __m512i flips = _mm512_set1_epi8((char)flip);
  __m512i v[4];
  INGOT_UNROLL for (int i = 0; i < 4; i++) v[i] = _mm512_xor_si512(_mm512_loadu_si512(line[i]), flips);
  const __m512i low[2] = {_mm512_unpacklo_epi8(v[0], v[1]), _mm512_unpackhi_epi8(v[0], v[1])};
  const __m512i high[2] = {_mm512_unpacklo_epi8(v[2], v[3]), _mm512_unpackhi_epi8(v[2], v[3])};
  /* Their quarters lie a vector of 16 channels apart. */
  const __m512i q[4] = {_mm512_unpacklo_epi16(low[0], high[0]), _mm512_unpackhi_epi16(low[0], high[0]),
                        _mm512_unpacklo_epi16(low[1], high[1]), _mm512_unpackhi_epi16(low[1], high[1])};
  const __m512i even[2] = {_mm512_shuffle_i32x4(q[0], q[1], 0x44), _mm512_shuffle_i32x4(q[2], q[3], 0x44)};
  const __m512i odd[2] = {_mm512_shuffle_i32x4(q[0], q[1], 0xee), _mm512_shuffle_i32x4(q[2], q[3], 0xee)};
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(even[0], even[1], 0x88));
  _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(even[0], even[1], 0xdd));
  _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(odd[0], odd[1], 0x88));
  _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd));
  #else
  for (int i = 0; i < 64; i += 16) {
    const uint8_t *const some[4] = {line[0] + i, line[1] + i, line[2] + i, line[3] + i};
    integer_weave_16(some, flip, to + 4 * i);
  }
  #endif
}

/* One column of four lines; to[channels][4], in whole vectors of 16. */
static inline void integer_weave_column(const integer_weave *w, const uint8_t *const line[4], uint8_t *to) {
  const uint8_t flip = (uint8_t)w->g->x_flip;
  int64_t i = 0;
  for (; i + 64 <= w->channels; i += 64) integer_weave_64(line, flip, to + 4 * i);
  for (; i < w->channels; i += 16) {
    const uint8_t *some[4] = {line[0] + i, line[1] + i, line[2] + i, line[3] + i};
    uint8_t last[4][16] = {{0}};
    for (int j = 0; j < 4 && w->channels - i < 16; j++) {
      integer_some(line[j] + i, w->channels - i, last[j]);
      some[j] = last[j];
    }
    integer_weave_16(some, flip, to + 4 * i);
  }
}

/* woven[ceil(kernel_h / 4)][columns][INGOT_WOVEN_CHANNELS][4]: what a block reads. */
static inline void integer_weave_block(const integer_weave *w) {
  const integer_args *g = w->g;
  const int64_t columns = integer_woven_columns(g, w->pixels);
  const int64_t left = w->x * g->stride_w - g->pad_left, top = w->y * g->stride_h - g->pad_top;
  uint8_t *to = w->woven;
  for (int64_t first = 0; first < g->kernel_h; first += 4) {
    const uint8_t *from[4];
    int64_t step[4], inside[4];
    for (int64_t i = 0; i < 4; i++) {
      const int64_t line = top + (first + i) * g->dilation_h;
      inside[i] = first + i < g->kernel_h && line >= 0 && line < g->height;
      from[i] = inside[i] ? w->image + line * g->x_strides[1] + left * g->x_strides[2]
                          : first + i < g->kernel_h ? w->outside : w->none;
      step[i] = inside[i] ? g->x_strides[2] : 0;
    }
    for (int64_t c = 0; c < columns; c++, to += 4 * INGOT_WOVEN_CHANNELS) {
      const uint8_t *line[4];
      const int here = left + c >= 0 && left + c < g->width;
      for (int i = 0; i < 4; i++) line[i] = here || !inside[i] ? from[i] + c * step[i] : w->outside;
      integer_weave_column(w, line, to);
    }
  }
}

/* The sums of up to 16 channels from `at` on of the block; to[pixels][16]. weight: [ceil(kernel_h / 4)][kernel_w]
 * [channels in whole vectors][4] from the first channel on; first, zeros: what is added, and w_zero. */
typedef struct {
  const integer_weave *w;
  int64_t at;
  const int8_t *weight;
  const int32_t *first;
  const int8_t *zeros;
  int32_t *to;
} integer_vector;

/* name_vector(v): products are added by `dot`; attributes: of functions that have it. taps: the kernel's, of one group
 * of lines, or 0 for any number of both. */
#define INTEGER_DEPTHWISE(name, attributes, dot)                                                                      \
  static inline __attribute__((always_inline)) attributes void K(name##_taps)(const int taps, const integer_vector *v,\
                                                                              int64_t lane) {                         \
    const integer_args *g = v->w->g;                                                                                  \
    const int64_t columns = integer_woven_columns(g, v->w->pixels), pitch = (g->channels + 15) / 16 * 64;             \
    const int64_t tap_step = g->dilation_w * 4 * INGOT_WOVEN_CHANNELS, step = g->stride_w * 4 * INGOT_WOVEN_CHANNELS; \
    const uint8_t *from = v->w->woven + 4 * (v->at + lane);                                                           \
    const int8_t *weight = v->weight + 4 * lane;                                                                      \
    const integer_sums first = integer_read(v->first + lane), zeros = integer_read(v->zeros + 4 * lane);              \
    integer_sums w[3];                                                                                                \
    INGOT_UNROLL for (int j = 0; j < taps; j++) w[j] = integer_read(weight + j * pitch);                              \
    for (int64_t t = 0; t < v->w->pixels; t++, from += step) {                                                        \
      integer_sums sum = first, less = integer_read(integer_nothing);                                                 \
      if (taps) {                                                                                                     \
        INGOT_UNROLL for (int j = 0; j < taps; j++) {                                                                 \
          const integer_sums a = integer_read(from + j * tap_step);                                                   \
          sum = dot(sum, a, w[j]);                                                                                    \
        }                                                                                                             \
      } else {                                                                                                        \
        const int8_t *b = weight;                                                                                     \
        for (int64_t i = 0; i < (g->kernel_h + 3) / 4; i++) {                                                         \
          for (int64_t j = 0; j < g->kernel_w; j++, b += pitch) {                                                     \
            const integer_sums a = integer_read(from + i * columns * 4 * INGOT_WOVEN_CHANNELS + j * tap_step);        \
            sum = dot(sum, a, integer_read(b));                                                                       \
            less = dot(less, a, zeros);                                                                               \
          }                                                                                                           \
        }                                                                                                             \
      }                                                                                                               \
      integer_write(v->to + t * 16 + lane, taps ? sum : integer_less(sum, less));                                     \
    }                                                                                                                 \
  }                                                                                                                   \
  static attributes void K(name##_vector)(const integer_vector *v) {                                                  \
    const integer_args *g = v->w->g;                                                                                  \
    for (int64_t lane = 0; lane < 16; lane += INTEGER_LANES) {                                                        \
      if (g->kernel_h <= 4 && g->kernel_w == 3 && !g->weight_zero)                                                    \
        K(name##_taps)(3, v, lane);                                                                                   \
      else                                                                                                            \
        K(name##_taps)(0, v, lane);                                                                                   \
    }                                                                                                                 \
  }

static const uint8_t integer_nothing[64] = {0};

typedef void (*integer_channels)(const integer_vector *v);

INTEGER_DEPTHWISE(integer_depthwise_widened, , integer_madd)

#if defined(ISA_avx512)
INTEGER_DEPTHWISE(integer_depthwise_dots, INTEGER_VNNI, integer_dot)
#define INTEGER_CHANNELS \
  (__builtin_cpu_supports("avx512vnni") ? K(integer_depthwise_dots_vector) : K(integer_depthwise_widened_vector))
#else
#define INTEGER_CHANNELS K(integer_depthwise_widened_vector)
#endif

/* The results of a block. */
static inline void integer_depthwise_block(const integer_weave *w, const integer_finish *f, integer_channels vector,
                                           int64_t image) {
  const integer_args *g = w->g;
  const int64_t *o = g->out_strides, *r = g->residual_strides;
  integer_place to[INGOT_WOVEN_PIXELS];
  int32_t sums[INGOT_WOVEN_PIXELS * 16], added[INGOT_PANEL], zeros[INGOT_PANEL];
  for (int64_t t = 0; t < w->pixels; t++) {
    to[t].out = image * o[0] + w->y * o[1] + (w->x + t) * o[2];
    to[t].residual = image * r[0] + w->y * r[1] + (w->x + t) * r[2];
  }
  integer_weave_block(w);
  for (int64_t at = 0; at < w->channels; at += 16) {
    const int64_t channel = w->channel + at, lanes = w->channels - at < 16 ? w->channels - at : 16;
    int8_t zero_bytes[64];
    integer_added(g, g->kernel_h * g->kernel_w, integer_zero(g, image), channel, lanes, added, zeros);
    for (int i = 0; i < 64; i++) zero_bytes[i] = (int8_t)zeros[i / 4];
    const integer_vector v = {w, at, (const int8_t *)g->weight + 4 * channel, added, zero_bytes, sums};
    vector(&v);
    integer_rows(f, sums, 16, channel, lanes, w->pixels, g->out, to);
  }
}

void K(integer_depthwise)(const void *args, int32_t part, int32_t parts) {
  const integer_args *g = args;
  /* Panels are rows of pixels here, and rows are blocks of channels. */
  const int64_t blocks = (g->channels + INGOT_WOVEN_CHANNELS - 1) / INGOT_WOVEN_CHANNELS;
  const gemm_share share = gemm_cut(g->batch * g->out_height, blocks, part, parts);
  uint8_t outside[INGOT_WOVEN_CHANNELS], none[INGOT_WOVEN_CHANNELS];
  memset(none, g->x_flip, sizeof none);
  integer_weave w = {.g = g, .outside = outside, .none = none,
                     .woven = (uint8_t *)(g->scratch + part * g->scratch_stride)};
  for (int64_t block = share.row_begin; block < share.row_end; block++) {
    w.channel = block * INGOT_WOVEN_CHANNELS;
    w.channels = g->channels - w.channel < INGOT_WOVEN_CHANNELS ? g->channels - w.channel : INGOT_WOVEN_CHANNELS;
    for (int64_t row = share.panel_begin; row < share.panel_end; row++) {
      const int64_t image = row / g->out_height;
      const integer_finish finish = integer_finish_of(g, image);
      memset(outside, integer_zero(g, image) ^ g->x_flip, sizeof outside);
      w.image = (const uint8_t *)g->x + image * g->x_strides[0] + w.channel;
      w.y = row % g->out_height;
      for (w.x = 0; w.x < g->out_width; w.x += w.pixels) {
        w.pixels = g->out_width - w.x < INGOT_WOVEN_PIXELS ? g->out_width - w.x : INGOT_WOVEN_PIXELS;
        integer_depthwise_block(&w, &finish, INTEGER_CHANNELS, image);
      }
    }
  }
}
