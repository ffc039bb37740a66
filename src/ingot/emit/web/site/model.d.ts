/** What an element is; on the device each takes 32 bits, and an i64 or a bool is an integer of them. */
export type DType = 'f32' | 'i32' | 'i64' | 'bool';

/** Elements in rows, the last dim next to each other. */
export interface Tensor {
  data: Float32Array | Int32Array;
  dtype: DType;
  shape: number[];
}

/**
 * As many elements as the input has; an array of another type is converted. Of dims that each run has its own size of, a
 * bare array says one, and an input with a shape all.
 */
export type Input =
  | ArrayLike<number | bigint | boolean>
  | { data: ArrayLike<number | bigint | boolean>; shape: number[] };

/** A number, the name of a size that each run says, or an operation and what it is done to. */
export type Dim = number | string | [string, ...Dim[]];

/** What a program takes or gives. */
export interface Port {
  dtype: DType;
  shape: Dim[];
}

export interface Program {
  /** Those that each run says, from the least to the most that the program is for. */
  sizes: Record<string, { least: number; most: number }>;
  inputs: Record<string, Port>;
  outputs: Record<string, Port>;
}

/** Bytes of the weights that have come. isCached: from this browser's cache, and not from the server. */
export interface Progress {
  loaded: number;
  total: number;
  isCached: boolean;
}

/**
 * kind: "unsupported" for a browser or GPU that cannot run the model, "load" for a file that cannot be had or used,
 * "memory" for a device without room, "input" for what a model does not take, "index" for an input that points outside
 * of a table, and "lost" for a device that is gone; load the model again.
 */
export class ModelError extends Error {
  readonly kind: 'unsupported' | 'load' | 'memory' | 'input' | 'index' | 'lost';
}

export interface Model {
  /** The content of plan.json. */
  readonly plan: { name: string; page: Record<string, unknown>; programs: Record<string, Program> };
  readonly programs: Record<string, Program>;
  /**
   * Runs once; calls at the same time take turns. program: one of `programs`, the first unless it is given. outputs: the
   * names of those that are read back, all unless they are given. Rejects with a ModelError.
   */
  run(
    inputs: Record<string, Input>,
    options?: { program?: string; outputs?: string[] },
  ): Promise<Record<string, Tensor>>;
  /** Gives the memory of the device back; runs reject afterwards. */
  destroy(): void;
}

/** Loads the model of a folder that `ingot emit-web` wrote: its plan, its shaders and its weights. Rejects with a ModelError. */
export function load(url: string | URL, options?: { onProgress?: (progress: Progress) => void }): Promise<Model>;
