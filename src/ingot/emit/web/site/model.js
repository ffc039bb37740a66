// Runs a model that `ingot emit-web` wrote, on WebGPU: `const model = await load(url); await model.run({ x })`. Ingot's
// docs/webgpu.md specifies plan.json, and model.d.ts the exports.

const FORMAT = 'ingot-web';
const VERSION = 1;
const WORD_BYTES = 4; // of every element on the device, of any type
const LEAST_BYTES = 256; // of an empty buffer
const FAULT_WORDS = 4; // at the start of the outputs: whether there is a fault, its step, the index and the limit
const OPERATIONS = {
  '+': (...values) => values.reduce((sum, value) => sum + value),
  '*': (...values) => values.reduce((product, value) => product * value),
  floordiv: (a, b) => Math.floor(a / b),
  min: Math.min,
  max: Math.max,
  broadcast: (...values) => values.find((value) => value !== 1) ?? 1,
};

export class ModelError extends Error {
  constructor(kind, message, options) {
    super(message, options);
    this.name = 'ModelError';
    this.kind = kind;
  }
}

export async function load(url, { onProgress = () => {} } = {}) {
  const folder = new URL(url, globalThis.document?.baseURI ?? import.meta.url);
  if (!folder.pathname.endsWith('/')) folder.pathname += '/';
  const plan = await fetched(new URL('plan.json', folder)).then((response) => response.json());
  if (plan.format !== FORMAT || plan.version !== VERSION) {
    throw new ModelError('load', `plan.json: got ${plan.format} ${plan.version}, expected ${FORMAT} ${VERSION}`);
  }
  const model = new Model(plan, await opened(plan));
  return model.prepare(folder, onProgress).catch((error) => {
    model.destroy();
    throw error;
  });
}

async function fetched(url) {
  const response = await fetch(url, { cache: 'no-cache' }).catch((cause) => {
    throw new ModelError('load', `${url}: cannot be fetched: ${cause.message}`, { cause });
  });
  if (!response.ok) throw new ModelError('load', `${url}: cannot be fetched, got status ${response.status}`);
  return response;
}

async function opened(plan) {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) throw new ModelError('unsupported', 'no WebGPU here: it takes a recent browser, and https or localhost');
  const adapter = await gpu.requestAdapter();
  if (!adapter) throw new ModelError('unsupported', 'WebGPU has no adapter: no GPU that this browser may use');
  const lacking = plan.features.find((name) => !adapter.features.has(name));
  if (lacking) throw new ModelError('unsupported', `the GPU has no ${lacking}, which the model needs`);
  const largest = Math.max(...plan.regions.map((region) => region.bytes));
  const requiredLimits = { maxStorageBufferBindingSize: largest, maxBufferSize: largest };
  for (const [name, needed] of Object.entries(requiredLimits)) {
    const most = adapter.limits[name];
    if (needed > most) throw new ModelError('unsupported', `${name}: the GPU has ${most}, the model needs ${needed}`);
  }
  return adapter.requestDevice({ requiredFeatures: plan.features, requiredLimits }).catch((cause) => {
    throw new ModelError('unsupported', `WebGPU gives no device: ${cause.message}`, { cause });
  });
}

class Model {
  #device;
  #buffers = {};
  #found; // the outputs of a run, in mappable memory
  #steps = {}; // of each program
  #words; // the parameters of all steps, one range for each
  #parameters; // the same on the device
  #last = Promise.resolve(); // the previous run: runs are sequential
  #lost = null;

  constructor(plan, device) {
    this.plan = plan;
    this.programs = plan.programs;
    this.#device = device;
    device.lost.then(({ message }) => (this.#lost = new ModelError('lost', `the device is lost: ${message}`)));
  }

  async prepare(folder, onProgress) {
    const [device, plan] = [this.#device, this.plan];
    device.pushErrorScope('validation');
    device.pushErrorScope('out-of-memory');
    const { STORAGE, UNIFORM, COPY_DST, COPY_SRC, MAP_READ } = GPUBufferUsage;
    const buffer = (size, usage) => device.createBuffer({ size: Math.max(LEAST_BYTES, size), usage });
    for (const { name, bytes } of plan.regions) this.#buffers[name] = buffer(bytes, STORAGE | COPY_DST | COPY_SRC);
    this.#found = buffer(this.#buffers.outputs.size, MAP_READ | COPY_DST);
    const size = plan.parameter_bytes;
    const parameters = { type: 'uniform', hasDynamicOffset: true, minBindingSize: size };
    const layouts = plan.layouts.map((types) => {
      const kinds = [parameters, ...types.map((type) => ({ type }))];
      const entry = (kind, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: kind });
      return device.createBindGroupLayout({ entries: kinds.map(entry) });
    });
    const steps = Object.values(plan.programs).flatMap((program) => program.steps);
    this.#words = new Uint32Array((Math.max(1, steps.length) * size) / WORD_BYTES);
    steps.forEach((step, i) => this.#words.set(step.words, (i * size) / WORD_BYTES));
    this.#parameters = buffer(this.#words.byteLength, UNIFORM | COPY_DST);
    device.queue.writeBuffer(this.#parameters, 0, this.#words);
    const groups = plan.groups.map(({ layout, regions }) => {
      const bound = [{ buffer: this.#parameters, size }, ...regions.map((name) => ({ buffer: this.#buffers[name] }))];
      const entries = bound.map((resource, binding) => ({ binding, resource }));
      return device.createBindGroup({ layout: layouts[layout], entries });
    });
    await this.#expectNoError();
    const pipelines = plan.pipelines.map(({ shader, layout }) => this.#pipeline(new URL(shader, folder), layouts[layout]));
    const [ready] = await Promise.all([Promise.all(pipelines), this.#load(folder, onProgress)]);
    let offset = -size;
    const prepared = (s) => ({ ...s, pipeline: ready[s.pipeline], group: groups[s.group], offset: (offset += size) });
    for (const [name, program] of Object.entries(plan.programs)) this.#steps[name] = program.steps.map(prepared);
    return this;
  }

  async #pipeline(url, bindGroupLayout) {
    const code = await fetched(url).then((response) => response.text());
    const module = this.#device.createShaderModule({ code });
    const layout = this.#device.createPipelineLayout({ bindGroupLayouts: [bindGroupLayout] });
    return this.#device.createComputePipelineAsync({ layout, compute: { module } }).catch((cause) => {
      throw new ModelError('load', `${url}: this browser refuses the shader: ${cause.message}`, { cause });
    });
  }

  /** Fetches the weights part by part, stores them in the browser's cache, and writes them to the device. */
  async #load(folder, onProgress) {
    const { parts, bytes: total } = this.plan.weights;
    const cache = await globalThis.caches?.open(`ingot ${folder.pathname}`);
    const urls = parts.map(({ file, sha256 }) => new URL(`${file}?${sha256}`, folder).href);
    const cached = (await cache?.keys()) ?? [];
    await Promise.all(cached.filter(({ url }) => !urls.includes(url)).map((request) => cache.delete(request)));
    let loaded = 0;
    for (const [i, { file, region, offset, bytes }] of parts.entries()) {
      const found = await cache?.match(urls[i]);
      const part = new Uint8Array(bytes);
      let at = 0;
      for await (const chunk of chunks(found ?? (await fetched(urls[i])))) {
        if (at + chunk.length > bytes) throw new ModelError('load', `${file}: longer than ${bytes} bytes`);
        part.set(chunk, at);
        at += chunk.length;
        onProgress({ loaded: loaded + at, total, isCached: found !== undefined });
      }
      if (at !== bytes) throw new ModelError('load', `${file}: got ${at} bytes, expected ${bytes}`);
      if (!found) {
        await cache?.put(urls[i], new Response(part)).catch((error) => {
          if (error.name !== 'QuotaExceededError') throw error; // without space it is fetched again the next time
        });
      }
      this.#device.queue.writeBuffer(this.#buffers[region], offset, part);
      loaded += bytes;
    }
  }

  run(inputs, options = {}) {
    const result = this.#last.then(() => this.#run(inputs, options));
    this.#last = result.catch(() => {}); // the caller gets the error
    return result;
  }

  async #run(inputs, { program: name = Object.keys(this.programs)[0], outputs: wanted }) {
    if (this.#lost) throw this.#lost;
    const program = this.programs[name];
    if (!program) throw new ModelError('input', `no program ${name}, expected one of ${Object.keys(this.programs)}`);
    const ports = chosen(program, wanted);
    const bytes = Math.max(LEAST_BYTES, ...Object.values(ports).map((port) => port.offset + port.bytes));
    const sizes = sizesOf(program, inputs);
    const given = converted(program, inputs, sizes);
    const device = this.#device;
    device.pushErrorScope('validation');
    device.pushErrorScope('out-of-memory');
    if (Object.keys(sizes).length) this.#resize(name, sizes);
    for (const [offset, words] of given) device.queue.writeBuffer(this.#buffers.inputs, offset, words);
    const encoder = device.createCommandEncoder();
    encoder.clearBuffer(this.#buffers.outputs, 0, LEAST_BYTES);
    const pass = encoder.beginComputePass();
    for (const { pipeline, group, offset, workgroups } of this.#steps[name]) {
      const count = valueOf(workgroups, sizes);
      const across = Math.max(1, Math.min(count, device.limits.maxComputeWorkgroupsPerDimension));
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group, [offset]);
      pass.dispatchWorkgroups(across, Math.ceil(count / across));
    }
    pass.end();
    encoder.copyBufferToBuffer(this.#buffers.outputs, 0, this.#found, 0, bytes);
    device.queue.submit([encoder.finish()]);
    const mapped = this.#found.mapAsync(GPUMapMode.READ, 0, bytes).catch((cause) => cause);
    await this.#expectNoError();
    const cause = await mapped;
    if (cause) throw this.#lost ?? new ModelError('lost', `no outputs can be read: ${cause.message}`, { cause });
    const found = this.#found.getMappedRange(0, bytes).slice(0);
    this.#found.unmap();
    expectNoFault(program, found);
    return results(ports, found, sizes);
  }

  /** Sets the parameters of a program's steps for the sizes of this run. */
  #resize(name, sizes) {
    for (const { offset, resizes } of this.#steps[name]) {
      for (const [word, dim] of resizes) this.#words[offset / WORD_BYTES + word] = valueOf(dim, sizes);
    }
    this.#device.queue.writeBuffer(this.#parameters, 0, this.#words);
  }

  /** Ends both scopes of errors. */
  async #expectNoError() {
    const [memory, invalid] = await Promise.all([this.#device.popErrorScope(), this.#device.popErrorScope()]);
    if (this.#lost) throw this.#lost;
    if (memory) throw new ModelError('memory', `the device has no memory: ${memory.message}`);
    if (invalid) throw new ModelError('load', `the device refuses the program: ${invalid.message}`);
  }

  destroy() {
    this.#device.destroy();
  }
}

async function* chunks(response) {
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/** The value of a dim of plan.json. */
function valueOf(dim, sizes) {
  if (typeof dim !== 'object') return sizes[dim] ?? dim;
  const [operation, ...parts] = dim;
  return OPERATIONS[operation](...parts.map((part) => valueOf(part, sizes)));
}

const count = (shape, sizes = {}) => shape.reduce((product, dim) => product * valueOf(dim, sizes), 1);

/** The outputs that are wanted, or all. */
function chosen({ outputs }, wanted = Object.keys(outputs)) {
  const unknown = wanted.filter((name) => !(name in outputs));
  if (unknown.length) throw new ModelError('input', `no output ${unknown}, expected ${Object.keys(outputs)}`);
  return Object.fromEntries(wanted.map((name) => [name, outputs[name]]));
}

/** The data of an input, and its shape if it is given. */
function tensorOf(inputs, name) {
  const value = inputs[name];
  if (value === undefined) throw new ModelError('input', `input ${name} is missing, got ${Object.keys(inputs)}`);
  return value !== null && typeof value === 'object' && 'data' in value ? value : { data: value };
}

/** The run-time sizes that follow from the inputs. An input without a shape determines at most one. */
function sizesOf(program, inputs) {
  const sizes = {};
  for (const [name, { shape }] of Object.entries(program.inputs)) {
    const { data, shape: given } = tensorOf(inputs, name);
    const open = shape.filter((dim) => dim in program.sizes && !(dim in sizes));
    if (given) open.forEach((dim) => (sizes[dim] = given[shape.indexOf(dim)]));
    else if (open.length === 1) sizes[open[0]] = data?.length / count(shape, { ...sizes, [open[0]]: 1 });
  }
  for (const [dim, { least, most }] of Object.entries(program.sizes)) {
    if (Number.isInteger(sizes[dim]) && sizes[dim] >= least && sizes[dim] <= most) continue;
    throw new ModelError('input', `dim ${dim}: got ${sizes[dim]}, expected ${least} to ${most}`);
  }
  return sizes;
}

/** The destination of each input, and its words. */
function converted(program, inputs, sizes) {
  const unknown = Object.keys(inputs).filter((name) => !(name in program.inputs));
  if (unknown.length) throw new ModelError('input', `no input ${unknown}, expected ${Object.keys(program.inputs)}`);
  return Object.entries(program.inputs).map(([name, { dtype, shape, offset }]) => {
    const { data, shape: given } = tensorOf(inputs, name);
    const dims = shape.map((dim) => valueOf(dim, sizes));
    if (data?.length !== count(dims) || (given && `${given}` !== `${dims}`)) {
      throw new ModelError('input', `input ${name}: got [${given ?? data?.length}], expected [${dims}]`);
    }
    if (dtype === 'f32') return [offset, data instanceof Float32Array ? data : Float32Array.from(data)];
    return [offset, data instanceof Int32Array ? data : Int32Array.from(data, (each) => integer(each, name))];
  });
}

function integer(value, name) {
  if (Number(value) === (Number(value) | 0)) return Number(value);
  throw new ModelError('input', `input ${name}: got ${value}, expected an integer of 32 bits`);
}

function expectNoFault({ nodes }, found) {
  const [code, step, index, limit] = new Int32Array(found, 0, FAULT_WORDS);
  if (!code) return;
  const least = code === 1 ? -limit : 0;
  throw new ModelError('index', `node ${nodes[step]}: index ${index} is out of range, expected ${least}..${limit - 1}`);
}

function results(ports, found, sizes) {
  const result = ([name, { dtype, shape, offset }]) => {
    const dims = shape.map((dim) => valueOf(dim, sizes));
    const Words = dtype === 'f32' ? Float32Array : Int32Array;
    return [name, { data: new Words(found, offset, count(dims)), dtype, shape: dims }];
  };
  return Object.fromEntries(Object.entries(ports).map(result));
}
