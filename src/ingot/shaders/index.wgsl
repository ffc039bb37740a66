// index.wgsl: run-time indices. An invalid one is written to the fault slot, before the outputs.

// The index counted from the front, or -1 after a fault.
fn from_front(index: i32, limit: i32) -> i32 {
  if (index >= 0 && index < limit) { return index; }
  if (index < 0 && index >= -limit) { return index + limit; }
  report_fault(1u, index, limit);
  return -1;
}

// Whether an index counted from the front is in range; reports a fault otherwise.
fn within(index: i32, limit: i32) -> bool {
  if (index >= 0 && index < limit) { return true; }
  report_fault(2u, index, limit);
  return false;
}

fn report_fault(code: u32, index: i32, limit: i32) {
  if (outputs[0] == 0u) {
    outputs[0] = code;
    outputs[1] = u32(arg_step());
    outputs[2] = bitcast<u32>(index);
    outputs[3] = u32(limit);
  }
}
