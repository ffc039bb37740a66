// recurrent.wgsl: one direction of an LSTM, GRU or plain recurrent layer. A workgroup has one sequence, from its first
// step to its last, and a lane every 64th unit. `state` carries values between steps: [2][batch][hidden], and after it,
// for a GRU whose reset gate comes before its product, reset * h and the update gates. The kernel defines `cell`, which
// computes a unit, and `activate_0` to `activate_2`.

// The column of a unit's weights: 32 units of all gates come before the next 32.
fn column_of(gate: i32, unit: i32) -> i32 {
  let gates = arg_columns() / arg_hidden();
  let whole = arg_hidden() / 32 * 32;
  if (unit < whole) { return (unit / 32 * gates + gate) * 32 + unit % 32; }
  return whole * gates + gate * (arg_hidden() - whole) + unit - whole;
}

// The state's contribution to a gate of a unit: four partial sums, so that a step's additions do not wait for each
// other.
fn of_state(h: i32, gate: i32, unit: i32) -> f32 {
  let column = column_of(gate, unit);
  let panel = column / 32 * panel_words(arg_hidden());
  var sums = vec4<f32>();
  for (var begin = 0; begin < arg_hidden(); begin += 16) {
    var own = vec4<f32>();
    for (var i = begin; i < min(begin + 16, arg_hidden()); i++) {
      own[i % 4] += at_state(h + i) * panel_row(panel, column % 32 / 4 * 4, i)[column % 4];
    }
    sums += own;
  }
  let sum = (sums.x + sums.y) + (sums.z + sums.w);
  if (has_bias) { return sum + at_bias(gate * arg_hidden() + unit); }
  return sum;
}

fn of_input(gates: i32, gate: i32, unit: i32) -> f32 { return at_gates(gates + gate * arg_hidden() + unit); }

fn clipped(x: f32) -> f32 { return select(x, clamp(x, -arg_clip(), arg_clip()), arg_clip() > 0.0f); }

// The first activation of the contributions of input and state to a gate.
fn opened(gates: i32, h: i32, gate: i32, unit: i32) -> f32 {
  return activate_0(clipped(of_input(gates, gate, unit) + of_state(h, gate, unit)));
}

// The gates: input, output, forget, cell. own: the index of the unit in last_c.
fn lstm_cell(gates: i32, h: i32, unit: i32, own: i32) -> f32 {
  var c = at_last_c(own);
  var input = of_input(gates, 0, unit) + of_state(h, 0, unit);
  var output = of_input(gates, 1, unit) + of_state(h, 1, unit);
  var forget = of_input(gates, 2, unit) + of_state(h, 2, unit);
  if (has_peepholes) {
    input += at_peepholes(unit) * c;
    forget += at_peepholes(2 * arg_hidden() + unit) * c;
  }
  input = activate_0(clipped(input));
  forget = activate_0(clipped(forget));
  if (arg_input_forget() != 0) { forget = 1.0f - input; }
  c = forget * c + input * activate_1(clipped(of_input(gates, 3, unit) + of_state(h, 3, unit)));
  if (has_peepholes) { output += at_peepholes(arg_hidden() + unit) * c; }
  set_last_c(own, c);
  return activate_0(clipped(output)) * activate_2(c);
}

// The gates: update, reset, hidden.
fn gru_cell(gates: i32, h: i32, unit: i32, own: i32) -> f32 {
  let size = arg_batch() * arg_hidden();
  var update = 0.0f;
  var seen = 0.0f;
  if (arg_linear_before_reset() != 0) {
    update = opened(gates, h, 0, unit);
    seen = opened(gates, h, 1, unit) * of_state(h, 2, unit);
  } else {
    update = at_state(3 * size + own);
    seen = of_state(2 * size + own - unit, 2, unit);
  }
  let candidate = activate_1(clipped(of_input(gates, 2, unit) + seen));
  return (1.0f - update) * candidate + update * at_state(h + unit);
}

fn rnn_cell(gates: i32, h: i32, unit: i32, own: i32) -> f32 { return opened(gates, h, 0, unit); }

fn work(group: i32, lane: i32) {
  if (group >= arg_batch()) { return; }
  let size = arg_batch() * arg_hidden();
  let own = group * arg_hidden();
  var length = arg_steps();
  if (has_lengths) { length = select(0, int_lengths(group), within(int_lengths(group), arg_steps() + 1)); }
  for (var unit = lane; unit < arg_hidden(); unit += LANES) {
    set_state(own + unit, at_h(own + unit));
    if (has_c) { set_last_c(own + unit, at_c(own + unit)); }
  }
  storageBarrier();
  for (var number = 0; number < arg_steps(); number++) {
    let time = select(number, arg_steps() - 1 - number, arg_reverse() != 0);
    let gates = time * arg_gates_strides(0) + group * arg_gates_strides(1);
    let out = time * arg_out_strides(0) + group * arg_out_strides(1);
    let h = number % 2 * size + own;
    if (arg_linear_before_reset() == 0) {
      for (var unit = lane; unit < arg_hidden(); unit += LANES) {
        set_state(2 * size + own + unit, opened(gates, h, 1, unit) * at_state(h + unit));
        set_state(3 * size + own + unit, opened(gates, h, 0, unit));
      }
      storageBarrier();
    }
    for (var unit = lane; unit < arg_hidden(); unit += LANES) {
      var next = at_state(h + unit);
      var shown = 0.0f;
      if (time < length) {
        next = cell(gates, h, unit, own + unit);
        shown = next;
      }
      set_state((number + 1) % 2 * size + own + unit, next);
      set_out(out + unit, shown);
    }
    storageBarrier();
  }
  for (var unit = lane; unit < arg_hidden(); unit += LANES) {
    set_last_h(own + unit, at_state(arg_steps() % 2 * size + own + unit));
  }
}
