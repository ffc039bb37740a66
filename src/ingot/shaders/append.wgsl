// append.wgsl: write rows of keys or values to their slots in a cache; the kernel defines `slot_offset`. A workgroup
// writes a head of a row, unless a later row has the same slot.

fn keys_offset(slot: i32, d: i32) -> i32 { return d * 64 + slot; }

fn values_offset(slot: i32, d: i32) -> i32 { return slot * arg_dim() + d; }

fn work(group: i32, lane: i32) {
  let r = group / arg_kv_heads();
  let head = group % arg_kv_heads();
  if (r >= arg_rows()) { return; }
  let slot = row_slot(r);
  var is_met = 0.0f;
  for (var later = r + 1 + lane; later < arg_rows(); later += LANES) {
    if (row_slot(later) == slot) { is_met = 1.0f; }
  }
  if (group_max(is_met, lane) > 0.0f || slot < 0) { return; }
  let cache = (slot / 64 * arg_kv_heads() + head) * arg_dim() * 64;
  let x = r * arg_x_strides(0) + head * arg_x_strides(1);
  for (var d = lane; d < arg_dim(); d += LANES) { set_cache(cache + slot_offset(slot % 64, d), at_x(x + d)); }
}
