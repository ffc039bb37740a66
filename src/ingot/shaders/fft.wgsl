// fft.wgsl: discrete Fourier transforms, in passes that alternate between two halves of scratch (Stockham; see Van
// Loan, "Computational Frameworks for the Fast Fourier Transform", 1992). A workgroup has one line, stored in scratch
// as real parts, then imaginary parts. The kernel defines `first`, which loads the input of the first pass, and `last`,
// which stores the output of the last pass.

fn times(x: vec2<f32>, y: vec2<f32>) -> vec2<f32> { return vec2<f32>(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x); }

fn factor(offset: i32) -> vec2<f32> { return vec2<f32>(at_factors(offset), at_factors(offset + 1)); }

// Number i of a line whose real and imaginary parts begin at `line`.
fn given(line: vec2<i32>, i: i32) -> vec2<f32> {
  var z = vec2<f32>(at_real(line.x + i * arg_real_step()), 0.0f);
  if (has_imaginary) { z.y = at_imaginary(line.y + i * arg_imaginary_step()); }
  return z;
}

// The same for half a spectrum of odd length, whose other half mirrors it.
fn mirrored(line: vec2<i32>, i: i32) -> vec2<f32> {
  if (i == 0) { return vec2<f32>(given(line, 0).x, 0.0f); }
  if (i < arg_read()) { return given(line, i); }
  let z = given(line, arg_length() - i);
  return vec2<f32>(z.x, -z.y);
}

// The spectrum of pairs of elements, from half of that of the elements, doubled, whose first and last numbers are real.
fn joined(line: vec2<i32>, k: i32) -> vec2<f32> {
  var a = given(line, k);
  var b = given(line, arg_length() - k);
  if (k == 0) {
    a.y = 0.0f;
    b.y = 0.0f;
  }
  let root = factor(arg_roots_offset() + 2 * k);
  let odd = times(vec2<f32>(root.x, -root.y), vec2<f32>(a.x - b.x, a.y + b.y));
  return vec2<f32>((a.x + b.x) - odd.y, (a.y - b.y) + odd.x);
}

fn loaded(x: i32, i: i32) -> vec2<f32> {
  let z = vec2<f32>(at_scratch(x + i), at_scratch(x + arg_length() + i));
  return select(z, z.yx, arg_inverse() != 0);
}

fn store(x: i32, i: i32, z: vec2<f32>) {
  set_scratch(x + i, select(z.x, z.y, arg_inverse() != 0));
  set_scratch(x + arg_length() + i, select(z.y, z.x, arg_inverse() != 0));
}

// The inverse of `joined`: the spectrum of the elements.
fn parted(x: i32, k: i32) -> vec2<f32> {
  let a = loaded(x, k % arg_length());
  let b = loaded(x, (arg_length() - k) % arg_length());
  let odd = times(factor(arg_roots_offset() + 2 * k) / 2.0f, vec2<f32>(a.y + b.y, b.x - a.x));
  return vec2<f32>((a.x + b.x) / 2.0f + odd.x, (a.y - b.y) / 2.0f + odd.y);
}

// x rotated by -2 pi i / radix; the rotations of odd radices are at `roots`.
fn rotated(x: vec2<f32>, i: i32, radix: i32, roots: i32) -> vec2<f32> {
  if (radix % 2 != 0) { return times(x, factor(roots + 2 * i)); }
  switch (i * 4 / radix) {
    case 1: { return vec2<f32>(x.y, -x.x); }
    case 2: { return -x; }
    case 3: { return vec2<f32>(-x.y, x.x); }
    default: { return x; }
  }
}

// Numbers of a line in the order of the passes. An inverse transform is a forward transform with real and imaginary
// parts exchanged, as they are stored here.
fn lying(x: i32, i: i32) -> vec2<f32> { return vec2<f32>(at_scratch(x + i), at_scratch(x + arg_length() + i)); }

fn work(group: i32, lane: i32) {
  var rest = group;
  var line = vec2<i32>();
  var out = vec2<i32>();
  for (var d = arg_rank() - 1; d >= 0; d--) {
    let i = rest % arg_shape(d);
    rest /= arg_shape(d);
    line += i * vec2<i32>(arg_real_strides(d), arg_imaginary_strides(d));
    out += i * vec2<i32>(arg_out_real_strides(d), arg_out_imaginary_strides(d));
  }
  if (rest > 0) { return; }
  let length = arg_length();
  var x = group * 4 * length;
  var y = x + 2 * length;
  for (var i = lane; i < length; i += LANES) { store(x, i, first(line, i)); }
  var stride = 1;
  var count = length;
  var factors = 0;
  for (var number = 0; number < arg_pass_count(); number++) {
    storageBarrier();
    let radix = arg_radices(number);
    let roots = factors;
    count /= radix;
    if (radix % 2 != 0) { factors += 2 * radix; }
    let size = count * stride;
    let is_narrow = stride * arg_block() < NARROW;
    for (var i = lane; i < size; i += LANES) {
      let p = i / stride;
      let to = y + p * stride * radix + i % stride;
      for (var k = 0; k < radix; k++) {
        var z = lying(x, i);
        for (var j = 1; j < radix; j++) { z += rotated(lying(x, i + j * size), j * k % radix, radix, roots); }
        if (k > 0 && is_narrow) {
          let offset = factors + 2 * (k - 1) * size + i;
          z = times(z, vec2<f32>(at_factors(offset), at_factors(offset + size)));
        } else if (k > 0) {
          z = times(z, factor(factors + 2 * (p * (radix - 1) + k - 1)));
        }
        set_scratch(to + k * stride, z.x);
        set_scratch(to + length + k * stride, z.y);
      }
    }
    factors += 2 * (radix - 1) * select(count, size, is_narrow);
    stride *= radix;
    let before = x;
    x = y;
    y = before;
  }
  storageBarrier();
  for (var i = lane; i < arg_written(); i += LANES) {
    let z = last(x, i) / f32(arg_divisor());
    set_out_real(out.x + i * arg_out_real_step(), z.x);
    if (has_out_imaginary) { set_out_imaginary(out.y + i * arg_out_imaginary_step(), z.y); }
  }
}
