// checked_index.wgsl: out[i] = x[i], checked to be an index below the limit; a lane checks one element.

fn work(group: i32, lane: i32) {
  let element = group * LANES + lane;
  if (element >= arg_count()) { return; }
  var index = int_x(element);
  if (arg_wraps() != 0) {
    index = from_front(index, arg_limit());
  } else if (!within(index, arg_limit())) {
    index = -1;
  }
  set_int_out(element, index);
}
