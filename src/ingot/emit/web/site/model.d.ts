/** Element types; on the device each has 32 bits, and an i64 or a bool is a 32-bit integer. */
export type DType = 'f32' | 'i32' | 'i64' | 'bool';

/** Elements in row-major order. */
export interface Tensor {
  data: Float32Array | Int32Array;
  dtype: DType;
  shape: number[];
}

/**
 * As many elements as the input has; an array of another type is converted. A plain array determines at most one
 * run-time size; an input with a shape determines all.
 */
export type Input =
  | ArrayLike<number | bigint | boolean>
  | { data: ArrayLike<number | bigint | boolean>; shape: number[] };

/** A number, the name of a run-time size, or an operation and its operands. */
export type Dim = number | string | [string, ...Dim[]];

/** An input or output of a program. */
export interface Port {
  dtype: DType;
  shape: Dim[];
}

export interface Program {
  /** The run-time sizes and their ranges. */
  sizes: Record<string, { least: number; most: number }>;
  inputs: Record<string, Port>;
  outputs: Record<string, Port>;
}

/** Bytes of the weights that were loaded. isCached: from this browser's cache, and not from the server. */
export interface Progress {
  loaded: number;
  total: number;
  isCached: boolean;
}

/**
 * kind: "unsupported" for a browser or GPU that cannot run the model, "load" for a file that cannot be fetched or used,
 * "memory" when the device is out of memory, "input" for an invalid input, "index" for an index outside of a table, and
 * "lost" for a lost device; load the model again.
 */
export class ModelError extends Error {
  readonly kind: 'unsupported' | 'load' | 'memory' | 'input' | 'index' | 'lost';
}

export interface Model {
  /** The content of plan.json. */
  readonly plan: { name: string; page: Record<string, unknown>; programs: Record<string, Program> };
  readonly programs: Record<string, Program>;
  /**
   * Runs once; concurrent calls run one after another. program: one of `programs`, by default the first. outputs: the
   * names of those to read back, by default all. Rejects with a ModelError.
   */
  run(
    inputs: Record<string, Input>,
    options?: { program?: string; outputs?: string[] },
  ): Promise<Record<string, Tensor>>;
  /** Frees the memory of the device; runs reject afterwards. */
  destroy(): void;
}

/**
 * Loads the model of a folder that `ingot emit-web` wrote: its plan, its shaders and its weights. Rejects with a
 * ModelError.
 */
export function load(url: string | URL, options?: { onProgress?: (progress: Progress) => void }): Promise<Model>;
