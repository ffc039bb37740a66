// experts.wgsl: out[r, s, n] = experts[chosen[r, s]][n, k] @ x[r, s, k], with contiguous experts in panels of 32
// columns. A workgroup computes a panel's columns for a row and a slot, as in gemv_packed.

var<workgroup> sums: array<vec4<f32>, LANES>;

fn work(group: i32, lane: i32) {
  let pairs = arg_rows() * arg_slots();
  let pair = group % pairs;
  let panel = group / pairs;
  let expert = int_chosen(pair);
  let is_there = within(expert, arg_count());
  let x = pair / arg_slots() * arg_x_strides(0) + pair % arg_slots() * arg_x_strides(1);
  let panels = (arg_n() + 31) / 32;
  let b = (select(0, expert, is_there) * panels + panel) * panel_words(arg_k());
  var sum = vec4<f32>();
  for (var i = lane / 8; i < arg_k() && panel < panels; i += 8) { sum += at_x(x + i) * panel_row(b, lane % 8 * 4, i); }
  sums[lane] = sum;
  workgroupBarrier();
  let y = panel * 32 + lane;
  if (lane >= 32 || y >= arg_n()) { return; }
  var total = 0.0f;
  for (var part = 0; part < 8; part++) { total += sums[part * 8 + lane / 4][lane % 4]; }
  set_out(pair * arg_n() + y, select(0.0f, total, is_there));
}
