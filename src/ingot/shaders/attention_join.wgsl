// attention_join.wgsl: join the partial results of a row of a head of attention from scratch.

fn work(group: i32, lane: i32) {
  let row = group % row_count();
  let head = group / row_count() % arg_heads();
  let batch = group / row_count() / arg_heads();
  if (batch >= batch_count()) { return; }
  let seen = seen_by(batch, row);
  let first = seen.y / PART_KEYS;
  let end = (seen.z + PART_KEYS - 1) / PART_KEYS;
  var most = -infinity();
  for (var part = first; part < end; part++) {
    most = maximum_f32(most, at_scratch(part_offset(group, part) + arg_v_dim()));
  }
  var total = 0.0f;
  for (var part = first; part < end; part++) {
    let offset = part_offset(group, part) + arg_v_dim();
    total += at_scratch(offset + 1) * weight_of(at_scratch(offset), most);
  }
  for (var d = lane; d < arg_v_dim(); d += LANES) {
    var sum = 0.0f;
    for (var part = first; part < end; part++) {
      let offset = part_offset(group, part);
      sum += at_scratch(offset + d) * weight_of(at_scratch(offset + arg_v_dim()), most);
    }
    set_out(out_offset(batch, head, row) + d, settled(sum, total, most, head));
  }
}
