// trees.wgsl: the votes of ensembles of decision trees, each row of x down every tree; a lane has one row. An invalid
// number in the tables is written to the fault slot when a row reaches it, and that row has no further votes in that
// tree. The kernel defines `is_better`.

const LOST: i32 = -2147483647 - 1;

fn is_member(node: i32, value: f32) -> bool {
  for (var i = int_sets(2 * node); i < int_sets(2 * node + 1); i++) {
    if (!within(i, arg_member_count())) { return false; }
    if (!is_nan(value) && at_members(i) == value) { return true; }
  }
  return false;
}

fn holds(node: i32, value: f32, kind: i32) -> bool {
  let split = bitcast<f32>(int_nodes(4 * node + 3));
  if (kind > 5) { return is_member(node, value); }
  if (is_nan(value) || is_nan(split)) { return kind == 5; }
  switch (kind) {
    case 0: { return value <= split; }
    case 1: { return value < split; }
    case 2: { return value >= split; }
    case 3: { return value > split; }
    case 4: { return value == split; }
    default: { return value != split; }
  }
}

// The next node, or below 0 a leaf.
fn next(node: i32, x: i32) -> i32 {
  if (!within(node, arg_node_count())) { return LOST; }
  let feature = int_nodes(4 * node) >> 4u;
  let kind = int_nodes(4 * node) & 15;
  if (!within(feature, arg_features())) { return LOST; }
  let value = at_x(x + feature);
  return int_nodes(4 * node + select(2, 1, holds(node, value, kind & 7) || (is_nan(value) && kind >= 8)));
}

fn vote(leaf: i32, row: i32) {
  if (!within(leaf, arg_leaf_count())) { return; }
  for (var i = int_leaves(2 * leaf); i < int_leaves(2 * leaf + 1); i++) {
    if (!within(i, arg_vote_count()) || !within(int_targets(i), arg_target_count())) { return; }
    let offset = row * arg_target_count() + int_targets(i);
    let given = at_weights(i) / f32(arg_divisor());
    let found = at_out(offset);
    if (!has_voted) {
      set_out(offset, found + given);
    } else if (int_voted(offset) == 0 || (!is_nan(found) && (is_nan(given) || is_better(given, found)))) {
      set_out(offset, given);
      set_int_voted(offset, 1);
    }
  }
}

fn work(group: i32, lane: i32) {
  let row = group * LANES + lane;
  if (row >= arg_rows()) { return; }
  for (var i = row * arg_target_count(); i < (row + 1) * arg_target_count(); i++) {
    set_out(i, 0.0f);
    set_int_voted(i, 0);
  }
  for (var tree = 0; tree < arg_tree_count(); tree++) {
    var node = int_roots(tree);
    for (var steps = 0; node >= 0; steps++) {
      if (!within(steps, arg_node_count())) { node = LOST; }
      if (node >= 0) { node = next(node, row * arg_x_stride()); }
    }
    if (node != LOST) { vote(-1 - node, row); }
  }
}
