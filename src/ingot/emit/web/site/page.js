// Shared by all pages: loading the model with progress, and showing errors.

import { load } from './model.js';

export const element = (id) => document.getElementById(id);

function size(bytes) {
  if (bytes < 1e6) return `${Math.ceil(bytes / 1e3)} KB`;
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

let ready = '';

/** Shows a message next to the title. */
export function show(text) {
  element('state').classList.remove('wrong');
  element('status').textContent = text;
}

/** Shows an error. */
export function tell(error) {
  element('state').classList.add('wrong');
  element('progress').hidden = true;
  element('status').textContent = error.message;
}

/** Clears the error. */
export const settle = () => show(ready);

/** Loads the model of this folder, then enables the page. */
export async function open() {
  const progress = element('progress');
  try {
    const model = await load('./', {
      onProgress({ loaded, total, isCached }) {
        progress.value = loaded / total;
        show(`${isCached ? 'From the cache' : 'Loading'}: ${size(loaded)} of ${size(total)}`);
      },
    });
    progress.hidden = true;
    ready = `Ready, ${size(model.plan.weights.bytes)} of weights`;
    show(ready);
    return model;
  } catch (error) {
    tell(error);
    throw error;
  }
}

/** Enables the page's controls. */
export function enable() {
  element('main').inert = false;
}

/** A function that runs `work` for the latest of its calls, one after another; calls in between are skipped. */
export function latest(work) {
  let isBusy = false;
  let isWanted = false;
  return async () => {
    isWanted = true;
    if (isBusy) return;
    isBusy = true;
    try {
      while (isWanted) {
        isWanted = false;
        await work();
        settle();
      }
    } catch (error) {
      tell(error);
    } finally {
      isBusy = false;
    }
  };
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Probabilities: the scores themselves if they add up to 1, else their softmax. */
export function shares(scores) {
  const total = scores.reduce((sum, score) => sum + score, 0);
  if (Math.abs(total - 1) < 1e-3 && scores.every((score) => score >= 0)) return Array.from(scores);
  const most = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
