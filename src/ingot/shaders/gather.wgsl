// gather.wgsl: out[outer, i, inner] = table[outer, indices[i], inner]; a lane copies one element. The kernel defines
// `element_of`, which reads the table. With an end, the table has only the rows from begin to end, and only these are
// written to out.

fn rows_element(outer: i32, row: i32, i: i32) -> i32 { return int_table((outer * arg_limit() + row) * arg_inner() + i); }

fn bf16_rows_element(outer: i32, row: i32, i: i32) -> i32 {
  let offset = row * arg_inner() + i;
  let pair = int_table(offset / 2);
  return select(pair << 16u, pair & ~0xffff, (offset & 1) == 1);
}

fn f16_rows_element(outer: i32, row: i32, i: i32) -> i32 {
  let offset = row * arg_inner() + i;
  return bitcast<i32>(unpack2x16float(u32(int_table(offset / 2)))[offset & 1]);
}

fn panels_element(outer: i32, row: i32, i: i32) -> i32 {
  let found = panel_row(row / 32 * panel_words(arg_inner()), row % 32 / 4 * 4, i);
  return bitcast<i32>(found[row % 4]);
}

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let inner = arg_inner();
  if (element >= arg_outer() * arg_count() * inner) { return; }
  let outer = element / inner / arg_count();
  let row = from_front(int_indices(element / inner % arg_count()), arg_limit());
  if (arg_end() > 0 && (row < arg_begin() || row >= arg_end())) { return; }
  var value = 0;
  if (row >= 0) { value = element_of(outer, row - arg_begin(), element % inner); }
  set_int_out(element, value);
}
