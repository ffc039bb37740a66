// attention_tiles.wgsl: attention for many rows that read the same keys. A workgroup computes 32 rows, of all heads
// that read one head of keys, over tiles of 64 keys; a lane computes 4 rows by 8 columns of both products. Operands are
// staged in workgroup memory, 16 dims of queries and keys, or 16 keys of values, at a time.

// By dim or key, rows in groups of four: queries, then scores, then weights.
var<workgroup> left: array<vec4<f32>, 512>;

// By dim or key, columns in groups of four: keys or values.
var<workgroup> right: array<vec4<f32>, 256>;

var<workgroup> seen_found: array<vec3<i32>, 32>;

var<workgroup> tile_found: vec3<i32>;

var<workgroup> most_found: array<f32, 32>;

var<workgroup> rescales: array<f32, 32>;

var<workgroup> total_found: array<f32, 32>;

// By column, rows in groups of four.
alias Sums = array<vec4<f32>, 8>;

// Add 16 products of a lane's rows and columns, in `left` from an index on.
fn add_products(sums: ptr<function, Sums>, begin: i32, rows: i32, columns: i32) {
  for (var i = 0; i < 16; i++) {
    let x = left[(begin + i) * 8 + rows];
    let low = right[i * 16 + columns * 2];
    let high = right[i * 16 + columns * 2 + 1];
    (*sums)[0] += x * low.x;
    (*sums)[1] += x * low.y;
    (*sums)[2] += x * low.z;
    (*sums)[3] += x * low.w;
    (*sums)[4] += x * high.x;
    (*sums)[5] += x * high.y;
    (*sums)[6] += x * high.z;
    (*sums)[7] += x * high.w;
  }
}

// The keys that any row of the tile attends to; every lane gets the same value.
fn tile_seen(batch: i32, first: i32, lane: i32) -> vec3<i32> {
  let each = arg_heads() / arg_kv_heads();
  if (lane < 32) {
    seen_found[lane] = vec3<i32>(0, 0, 0);
    if (first + lane < row_count() * each) { seen_found[lane] = seen_by(batch, (first + lane) / each); }
  }
  workgroupBarrier();
  if (lane == 0) {
    var seen = vec3<i32>(batch, key_count(), 0);
    for (var i = 0; i < 32; i++) {
      if (seen_found[i].y < seen_found[i].z) {
        seen = vec3<i32>(seen_found[i].x, min(seen.y, seen_found[i].y), max(seen.z, seen_found[i].z));
      }
    }
    tile_found = seen;
  }
  return workgroupUniformLoad(&tile_found);
}

fn stage_queries(batch: i32, kv: i32, first: i32, dim: i32, lane: i32) {
  let each = arg_heads() / arg_kv_heads();
  for (var i = lane; i < 128; i += LANES) {
    let d = dim + i % 16;
    var four = vec4<f32>();
    for (var r = 0; r < 4; r++) {
      let pair = min(first + i / 16 * 4 + r, row_count() * each - 1);
      if (d < arg_head_dim()) { four[r] = at_q(q_offset(batch, kv * each + pair % each, pair / each) + d); }
    }
    left[i % 16 * 8 + i / 16] = four;
  }
}

fn stage_keys(offset: i32, count: i32, dim: i32, lane: i32) {
  for (var i = lane; i < 256; i += LANES) {
    let d = dim + i / 16;
    var four = vec4<f32>();
    for (var c = 0; c < 4; c++) {
      let key = i % 16 * 4 + c;
      if (d < arg_head_dim() && key < count) { four[c] = key_at(offset, key, d); }
    }
    right[i] = four;
  }
}

fn stage_values(offset: i32, count: i32, begin: i32, column: i32, lane: i32) {
  for (var i = lane; i < 256; i += LANES) {
    let key = begin + i / 16;
    var four = vec4<f32>();
    for (var c = 0; c < 4; c++) {
      let d = column + i % 16 * 4 + c;
      if (d < arg_v_dim() && key < count) { four[c] = value_at(offset, key, d); }
    }
    right[i] = four;
  }
}

// A lane's scores, scaled and masked, with -inf for keys that a row does not attend to.
fn bend(scores: ptr<function, Sums>, batch: i32, kv: i32, first: i32, begin: i32, lane: i32) {
  let each = arg_heads() / arg_kv_heads();
  for (var r = 0; r < 4; r++) {
    let seen = seen_found[lane / 8 * 4 + r];
    let pair = first + lane / 8 * 4 + r;
    for (var c = 0; c < 8; c++) {
      let key = begin + lane % 8 * 8 + c;
      var score = -infinity();
      if (key >= seen.y && key < seen.z) {
        score = bent(arg_scale() * (*scores)[c][r], batch, kv * each + pair % each, pair / each, key);
      }
      (*scores)[c][r] = score;
    }
  }
}

// Convert a lane's scores to weights, in `left`, relative to the largest score of their rows so far.
fn weigh(scores: ptr<function, Sums>, lane: i32) {
  let offset = lane % 8 * 64 + lane / 8;
  for (var c = 0; c < 8; c++) { left[offset + c * 8] = (*scores)[c]; }
  workgroupBarrier();
  if (lane < 32) {
    let before = most_found[lane];
    var most = before;
    for (var key = 0; key < 64; key++) { most = maximum_f32(most, left[key * 8 + lane / 4][lane % 4]); }
    most_found[lane] = most;
    rescales[lane] = weight_of(before, most);
  }
  workgroupBarrier();
  for (var c = 0; c < 8; c++) {
    var four = (*scores)[c];
    for (var r = 0; r < 4; r++) { four[r] = weight_of(four[r], most_found[lane / 8 * 4 + r]); }
    left[offset + c * 8] = four;
  }
  workgroupBarrier();
  if (lane < 32) {
    var total = total_found[lane] * rescales[lane];
    for (var key = 0; key < 64; key++) { total += left[key * 8 + lane / 4][lane % 4]; }
    total_found[lane] = total;
  }
}

fn work(group: i32, lane: i32) {
  let each = arg_heads() / arg_kv_heads();
  let tiles = (row_count() * each + 31) / 32;
  let first = group % tiles * 32;
  let kv = group / tiles % arg_kv_heads();
  let batch = group / tiles / arg_kv_heads();
  if (batch >= batch_count()) { return; }
  let rows = lane / 8;
  let columns = lane % 8;
  let seen = tile_seen(batch, first, lane);
  if (lane < 32) {
    most_found[lane] = -infinity();
    total_found[lane] = 0.0f;
  }
  var sums = array<Sums, COLUMNS>();
  for (var begin = seen.y / 64 * 64; begin < seen.z; begin += 64) {
    let count = seen.z - begin;
    let keys = keys_offset(seen.x, kv, begin);
    let values = values_offset(seen.x, kv, begin);
    var scores = Sums();
    for (var dim = 0; dim < arg_head_dim(); dim += 16) {
      workgroupBarrier();
      stage_queries(batch, kv, first, dim, lane);
      stage_keys(keys, count, dim, lane);
      workgroupBarrier();
      add_products(&scores, 0, rows, columns);
    }
    bend(&scores, batch, kv, first, begin, lane);
    workgroupBarrier();
    weigh(&scores, lane);
    let r = rows * 4;
    let rescale = vec4<f32>(rescales[r], rescales[r + 1], rescales[r + 2], rescales[r + 3]);
    for (var n = 0; n < COLUMNS; n++) {
      var those = sums[n];
      for (var c = 0; c < 8; c++) { those[c] *= rescale; }
      for (var key = 0; key < min(64, count); key += 16) {
        workgroupBarrier();
        stage_values(values, count, key, n * 64, lane);
        workgroupBarrier();
        add_products(&those, key, rows, columns);
      }
      sums[n] = those;
    }
  }
  workgroupBarrier();
  for (var r = 0; r < 4; r++) {
    let pair = first + rows * 4 + r;
    if (pair >= row_count() * each) { return; }
    let head = kv * each + pair % each;
    let out = out_offset(batch, head, pair / each);
    for (var n = 0; n < COLUMNS; n++) {
      for (var c = 0; c < 8; c++) {
        let d = n * 64 + columns * 8 + c;
        if (d < arg_v_dim()) {
          set_out(out + d, settled(sums[n][c][r], total_found[rows * 4 + r], most_found[rows * 4 + r], head));
        }
      }
    }
  }
}
