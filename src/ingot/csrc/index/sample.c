/* sample.c: draw a token from a row of logits. The order is Hugging Face's: bias, penalties, mask, temperature, top-k,
 * top-p, min-p, draw. Truncation keeps the tokens that a walk from the most to the least probable token would keep,
 * with the lowest id of equals first, but by radix selection instead of sorting. Kept tokens stay in the order of their
 * ids, sums are computed in chunks of INGOT_REDUCE_CHUNK, and a draw's random number depends on seed and position
 * alone, so every machine draws the same tokens. */
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "elementwise/philox.h"
#include "math/vmath.h"

#define SAMPLE_BINS 2048 /* values of an 11-bit digit */
#define SAMPLE_ROOM 1024 /* candidates beyond 2 k, before the k largest are selected again */

/* NaN if any is. *chunk: the beginning of the first chunk that has the largest. */
static inline float sample_max(const float *x, int64_t count, int64_t *chunk) {
  float max = -INFINITY;
  *chunk = 0;
  for (int64_t begin = 0; begin < count; begin += INGOT_REDUCE_CHUNK) {
    int64_t end = count - begin < INGOT_REDUCE_CHUNK ? count : begin + INGOT_REDUCE_CHUNK, i = begin;
    vf m = v_set(-INFINITY), odd = v_set(0);
    for (; i + 16 <= end; i += 16) {
      vf v = v_load(x + i);
      m = v_max(v, m);
      odd = v_select(v_isnan(v), v, odd);
    }
    if (i < end) {
      vf v = v_below(end - i, v_load_n(x + i, end - i), -INFINITY);
      m = v_max(v, m);
      odd = v_select(v_isnan(v), v, odd);
    }
    if (v_any(v_isnan(odd))) return NAN;
    float here = v_max_across(m);
    if (here > max) {
      max = here;
      *chunk = begin;
    }
  }
  return max;
}

/* out = e^((x - max) / temperature); returns their sum. Subtracting first makes any temperature above 0 valid. */
static inline double sample_weigh(const float *x, int64_t count, float max, float temperature, float *out) {
  const vf m = v_set(max), t = v_set(temperature);
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += INGOT_REDUCE_CHUNK) {
    int64_t end = count - begin < INGOT_REDUCE_CHUNK ? count : begin + INGOT_REDUCE_CHUNK, i = begin;
    vf sum = v_set(0);
    for (; i + 16 <= end; i += 16) {
      vf e = v_exp_negative(v_div(v_sub(v_load(x + i), m), t));
      v_store(out + i, e);
      sum = v_add(sum, e);
    }
    if (i < end) {
      vf e = v_below(end - i, v_exp_negative(v_div(v_sub(v_load_n(x + i, end - i), m), t)), 0);
      v_store_n(out + i, e, end - i);
      sum = v_add(sum, e);
    }
    total += v_sum(sum);
  }
  return total;
}

static inline float sample_chunk_sum(const float *weights, int64_t count) {
  vf sum = v_set(0);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) sum = v_add(sum, v_load(weights + i));
  if (i < count) sum = v_add(sum, v_load_n(weights + i, count - i));
  return v_sum(sum);
}

static inline double sample_sum(const float *weights, int64_t count) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += INGOT_REDUCE_CHUNK)
    total += sample_chunk_sum(weights + begin, count - begin < INGOT_REDUCE_CHUNK ? count - begin : INGOT_REDUCE_CHUNK);
  return total;
}

/* scores: the logits after bias and penalties. */
static inline void sample_adjust(ingot_sampler *s) {
  memcpy(s->scores, s->logits, (size_t)s->vocab * sizeof *s->scores);
  for (int64_t i = 0; i < s->bias_count; i++) s->scores[s->bias_tokens[i]] += s->biases[i];
  for (int64_t i = 0; i < s->seen_count; i++) {
    float *score = &s->scores[s->seen[i]];
    int32_t outputs = s->occurrences[s->seen[i]] - 1;
    *score = *score < 0 ? *score * s->repetition_penalty : *score / s->repetition_penalty;
    if (outputs) *score = *score - s->frequency_penalty * (float)outputs - s->presence_penalty;
  }
}

/* -inf where the mask has no bit. */
static inline void sample_mask(float *x, const uint32_t *mask, int64_t count) {
  static const int32_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  const vf zero = v_set(0), closed = v_set(-INFINITY);
  vi lane;
  memcpy(&lane, bits, sizeof lane);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    vi word = vi_set((int32_t)(mask[i / 32] >> (i % 32)));
    v_store(x + i, v_select(v_eq(v_from_int(vi_and(word, lane)), zero), closed, v_load(x + i)));
  }
  for (; i < count; i++)
    if (!(mask[i / 32] >> (i % 32) & 1)) x[i] = -INFINITY;
}

/* Bits whose order is that of the numbers; both zeros are equal. */
static inline uint32_t sample_key(float x) {
  uint32_t bits;
  x += 0.0f;
  memcpy(&bits, &x, sizeof bits);
  return bits ^ (bits >> 31 ? UINT32_MAX : 0x80000000u);
}

/* Keep candidates from the largest weight down until their mass reaches `target`; a candidate's mass is its weight, or
 * 1 unless `weighted`. Of equals the lowest ids are kept, and the order stays. Returns how many; *least: the smallest
 * kept weight. It is found digit by digit from the highest, with one histogram of mass for each digit. */
static inline int64_t sample_keep(ingot_sampler *s, int64_t count, double target, int weighted, float *least) {
  static const int shifts[] = {21, 10, 0}; /* three digits cover 32 bits; the last two share one bit */
  uint32_t border = 0, known = 0;
  double before = 0;
  for (int pass = 0; pass < 3; pass++) {
    const int shift = shifts[pass];
    double mass[SAMPLE_BINS] = {0}, reached = before;
    for (int64_t i = 0; i < count; i++) {
      uint32_t key = sample_key(s->weights[i]);
      if ((key & known) == border) mass[key >> shift & (SAMPLE_BINS - 1)] += weighted ? s->weights[i] : 1;
    }
    uint32_t digit = 0;
    for (int bin = SAMPLE_BINS - 1; bin >= 0 && reached < target; bin--) {
      if (mass[bin] == 0) continue;
      digit = (uint32_t)bin;
      before = reached;
      reached += mass[bin];
    }
    border |= digit << shift;
    known |= (uint32_t)(SAMPLE_BINS - 1) << shift;
  }
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i++) {
    float weight = s->weights[i];
    uint32_t key = sample_key(weight);
    if (key < border || (key == border && before >= target)) continue;
    if (key == border) {
      before += weighted ? weight : 1;
      *least = weight;
    }
    s->tokens[kept] = s->tokens[i];
    s->weights[kept++] = weight;
  }
  return kept;
}

/* tokens and weights: the k largest of x above -inf, unchanged. */
static inline int64_t sample_largest(ingot_sampler *s, const float *x, int64_t k) {
  const int64_t room = k < (s->vocab - SAMPLE_ROOM) / 2 ? 2 * k + SAMPLE_ROOM : s->vocab;
  float least = -INFINITY;
  int64_t count = 0;
  for (int64_t begin = 0; begin < s->vocab; begin += 16) {
    int64_t end = s->vocab - begin < 16 ? s->vocab : begin + 16;
    vf v = end - begin < 16 ? v_load_n(x + begin, end - begin) : v_load(x + begin);
    if (!v_any(v_lt(v_set(least), v))) continue;
    for (int64_t i = begin; i < end; i++) {
      s->tokens[count] = (int32_t)i;
      s->weights[count] = x[i];
      count += x[i] > least;
    }
    if (count > room - 16 && count > k) count = sample_keep(s, count, (double)k, 0, &least);
  }
  return count > k ? sample_keep(s, count, (double)k, 0, &least) : count;
}

/* Keep the candidates whose weight is at least `least`. */
static inline int64_t sample_at_least(ingot_sampler *s, int64_t count, float least) {
  int64_t kept = 0;
  for (int64_t begin = 0; begin < count; begin += 16) {
    int64_t end = count - begin < 16 ? count : begin + 16;
    if (end - begin == 16 && !v_any(v_le(v_set(least), v_load(s->weights + begin)))) continue;
    for (int64_t i = begin; i < end; i++) {
      float weight = s->weights[i];
      s->tokens[kept] = s->all_kept ? (int32_t)i : s->tokens[i];
      s->weights[kept] = weight;
      kept += weight >= least;
    }
  }
  s->all_kept = 0;
  return kept;
}

/* Compute the candidates and their weights: tokens, weights, kept, all_kept, mass. */
static inline void sample_truncate(ingot_sampler *s, const float *x, float max) {
  int64_t count = s->vocab;
  float least;
  s->all_kept = s->top_k == 0 || s->top_k >= s->vocab;
  if (!s->all_kept) {
    count = sample_largest(s, x, s->top_k);
    x = s->weights;
  }
  s->mass = sample_weigh(x, count, max, s->temperature, s->weights);
  if (s->top_p < 1) {
    double target = s->top_p * s->mass;
    /* All tokens with smaller weights have less than 1 - top_p together: the walk ends before it reaches them. */
    count = sample_at_least(s, count, (float)(0.5 * (s->mass - target) / (double)count));
    count = sample_keep(s, count, target, 1, &least);
  }
  if (s->min_p > 0) count = sample_at_least(s, count, s->min_p);
  if (s->top_p < 1 || s->min_p > 0) s->mass = sample_sum(s->weights, count);
  s->kept = count;
}

/* [0, 1) in steps of 2^-53: draw number `draw` of a seed, from the first two words of its counter. */
static inline double sample_random(uint64_t seed, uint64_t draw) {
  uint32_t counter[4] = {(uint32_t)draw, (uint32_t)(draw >> 32), 0, 0};
  philox(seed, 1, counter);
  return (double)(((uint64_t)counter[0] << 32 | counter[1]) >> 11) * 0x1p-53;
}

/* The first candidate at which the sum of weights exceeds `target`. */
static inline int64_t sample_passing(const float *weights, int64_t count, double target) {
  int64_t begin = 0;
  for (; count - begin > INGOT_REDUCE_CHUNK; begin += INGOT_REDUCE_CHUNK) {
    double sum = sample_chunk_sum(weights + begin, INGOT_REDUCE_CHUNK);
    if (target < sum) break;
    target -= sum;
  }
  int64_t end = count - begin < INGOT_REDUCE_CHUNK ? count : begin + INGOT_REDUCE_CHUNK;
  for (int64_t i = begin; i < end; i++) {
    target -= weights[i];
    if (target < 0) return i;
  }
  /* Rounding left a remainder in the chunk: draw its last possible token. */
  while (weights[--end] == 0) {
  }
  return end;
}

static inline int32_t sample_draw(ingot_sampler *s, const float *x, float max) {
  sample_truncate(s, x, max);
  int64_t i = sample_passing(s->weights, s->kept, sample_random(s->seed, s->draws) * s->mass);
  return s->all_kept ? (int32_t)i : s->tokens[i];
}

static inline int32_t sample_first(const float *x, int64_t begin, float value) {
  while (x[begin] != value) begin++;
  return (int32_t)begin;
}

/* The top_count most probable tokens of the model, equals by id. Returns ln of the sum of e^(logits - max). */
static inline float sample_logprobs(ingot_sampler *s, float max) {
  double sum = sample_weigh(s->logits, s->vocab, max, 1, s->weights);
  float log_sum = v_max_across(v_log(v_set((float)sum)));
  int64_t count = s->top_count ? sample_largest(s, s->logits, s->top_count) : 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t rank = i;
    float logprob = s->weights[i] - max - log_sum;
    for (; rank > 0 && s->top_logprobs[rank - 1] < logprob; rank--) {
      s->top_logprobs[rank] = s->top_logprobs[rank - 1];
      s->top_tokens[rank] = s->top_tokens[rank - 1];
    }
    s->top_logprobs[rank] = logprob;
    s->top_tokens[rank] = s->tokens[i];
  }
  for (int64_t i = count; i < s->top_count; i++) s->top_tokens[i] = -1;
  return log_sum;
}

static inline int32_t sample_status(float max) {
  if (max != max) return INGOT_SAMPLE_NAN;
  if (max == INFINITY) return INGOT_SAMPLE_INFINITE;
  return max == -INFINITY ? INGOT_SAMPLE_NONE : 0;
}

/* Task 0 does all of it. */
void K(sample_f32)(const void *args, int32_t task, int32_t num_tasks) {
  ingot_sampler *s = (ingot_sampler *)args; /* the one kernel whose arguments are also its state */
  (void)num_tasks;
  if (task) return;
  s->token = -1;
  s->kept = 0;
  int64_t chunk;
  const float *x = s->logits;
  float max = sample_max(x, s->vocab, &chunk), model_max = max, log_sum = 0;
  s->status = sample_status(max);
  if (s->status) return;
  if (s->wants_logprobs) log_sum = sample_logprobs(s, max);
  if (s->scores) {
    sample_adjust(s);
    if (s->mask) sample_mask(s->scores, s->mask, s->vocab);
    x = s->scores;
    max = sample_max(x, s->vocab, &chunk);
    s->status = sample_status(max);
    if (s->status) return;
  }
  s->token = s->temperature > 0 ? sample_draw(s, x, max) : sample_first(x, chunk, max);
  if (s->wants_logprobs) s->logprob = s->logits[s->token] - model_max - log_sum;
  if (s->occurrences) {
    if (!s->occurrences[s->token]) {
      s->occurrences[s->token] = 1;
      s->seen[s->seen_count++] = s->token;
    }
    s->occurrences[s->token]++;
  }
  s->draws++;
}

#undef SAMPLE_BINS
#undef SAMPLE_ROOM
