// paged.wgsl: addresses of sequence positions in a cache of keys or values, by blocks of 64.

// The block of positions 64i.. of a sequence, or -1 after a fault.
fn block_of(owner: i32, i: i32) -> i32 {
  let block = int_blocks(owner * arg_blocks_each() + i);
  return select(-1, block, within(block, arg_total_blocks()));
}

// Whether row r has a valid owner and position; reports a fault otherwise.
fn has_slot(r: i32) -> bool {
  return within(int_owners(r), arg_sequences()) && within(int_positions(r), arg_blocks_each() * 64);
}

// The index of row r's slot among all positions of the cache, or -1 after a fault.
fn row_slot(r: i32) -> i32 {
  if (!has_slot(r)) { return -1; }
  let position = int_positions(r);
  let block = block_of(int_owners(r), position / 64);
  return select(block * 64 + position % 64, -1, block < 0);
}
