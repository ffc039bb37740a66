// subgroup.wgsl: group.wgsl by subgroups: each subgroup reads the values of all lanes, its lanes with a stride, and
// reduces them among its own lanes. So every lane gets the same result, however a device divides a workgroup into
// subgroups, which WebGPU does not specify. The second barrier protects the next write.

var<workgroup> found: array<f32, LANES>;

var<workgroup> found_values: array<T, LANES>;

fn group_sum(x: f32, lane: i32) -> f32 {
  found[lane] = x;
  workgroupBarrier();
  let size = subgroupAdd(1);
  var sum = 0.0f;
  for (var i = subgroupExclusiveAdd(1); i < LANES; i += size) { sum += found[i]; }
  let total = subgroupAdd(sum);
  workgroupBarrier();
  return total;
}

// NaN in any lane is the result.
fn group_max(x: f32, lane: i32) -> f32 {
  found[lane] = x;
  workgroupBarrier();
  let size = subgroupAdd(1);
  var most = -infinity();
  for (var i = subgroupExclusiveAdd(1); i < LANES; i += size) { most = maximum_f32(most, found[i]); }
  let all = max_of_subgroup_f32(most);
  workgroupBarrier();
  return all;
}

// Reduce the values of the lanes by the kernel's `combine`. Lanes after the first `count` contribute `neutral` rather
// than nothing, so that all lanes of a subgroup leave the loop together.
fn group_combined(value: T, count: i32, lane: i32) -> T {
  found_values[lane] = value;
  workgroupBarrier();
  let size = subgroupAdd(1);
  var all = neutral();
  for (var i = subgroupExclusiveAdd(1); i < LANES; i += size) { all = combine(all, found_values[i]); }
  return of_subgroup(all);
}

fn sum_of_subgroup_f32(x: f32) -> f32 { return subgroupAdd(x); }

fn sum_of_subgroup_i32(x: i32) -> i32 { return subgroupAdd(x); }

fn prod_of_subgroup_f32(x: f32) -> f32 { return subgroupMul(x); }

fn prod_of_subgroup_i32(x: i32) -> i32 { return subgroupMul(x); }

fn max_of_subgroup_i32(x: i32) -> i32 { return subgroupMax(x); }

fn min_of_subgroup_i32(x: i32) -> i32 { return subgroupMin(x); }

// By keys, because WebGPU allows subgroup operations to drop NaN.
fn max_of_subgroup_f32(x: f32) -> f32 { return float_of_key(subgroupMax(float_key(x))); }

fn min_of_subgroup_f32(x: f32) -> f32 { return -max_of_subgroup_f32(-x); }
