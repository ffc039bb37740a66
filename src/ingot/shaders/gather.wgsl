// gather.wgsl: out[outer, i, inner] = table[outer, indices[i], inner]; a lane takes an element. `place_of` is the
// kernel's: where a table has one. With an end, the table has only the rows from begin to it, and out gets no others.

fn rows_place(outer: i32, row: i32, i: i32) -> i32 { return (outer * arg_limit() + row) * arg_inner() + i; }

fn panels_place(outer: i32, row: i32, i: i32) -> i32 { return row / 32 * arg_inner() * 32 + i * 32 + row % 32; }

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  let inner = arg_inner();
  if (element >= arg_outer() * arg_count() * inner) { return; }
  let outer = element / inner / arg_count();
  let row = from_front(int_indices(element / inner % arg_count()), arg_limit());
  if (arg_end() > 0 && (row < arg_begin() || row >= arg_end())) { return; }
  var value = 0;
  if (row >= 0) { value = int_table(place_of(outer, row - arg_begin(), element % inner)); }
  set_int_out(element, value);
}
