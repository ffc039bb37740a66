import type { Model } from './model.js';

export interface Options {
  /** 0, the default, for the most probable token; else the temperature of sampling among the best. */
  temperature?: number;
  /** The number of tokens to sample among; 40 by default. */
  most?: number;
  /** A seed gives the same tokens, here and natively; random by default. 64 bits. */
  seed?: number | bigint;
  /** The most tokens; by default until the model ends the text or its context is full. */
  count?: number;
  /** Ends the text early. */
  signal?: AbortSignal;
}

export interface Message {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

/** A part of a conversation's text, and its author. */
export interface Part {
  text: string;
  by: 'template' | Message['role'];
}

export interface Tokenizer {
  encode(text: string): number[];
  encodeParts(parts: Part[]): number[];
  /** A function that returns the text that each further id adds. */
  decoder(): (id: number) => string;
}

/**
 * For one text at a time. The common beginning of a prompt and the last text is not computed again. Errors are
 * ModelErrors.
 */
export interface Language {
  readonly model: Model;
  readonly tokenizer: Tokenizer;
  readonly context: number;
  /** Texts that continue a prompt, each as soon as it is known. */
  stream(prompt: string, options?: Options): AsyncGenerator<string, void>;
  /**
   * The same for an answer. messages: a system message, if the model's template has one, then the user's and the
   * assistant's, alternating; the last is the user's. Control tokens that they spell stay text.
   */
  chat(messages: Message[], options?: Options): AsyncGenerator<string, void>;
  /** The ids that continue a prompt. */
  tokens(prompt: number[], options?: Options): AsyncGenerator<number, void>;
}

/** The language model of a folder that `ingot emit-web` wrote, and whose model is loaded. */
export function language(model: Model, url: string | URL): Promise<Language>;
