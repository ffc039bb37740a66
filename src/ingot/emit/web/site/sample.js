// Sampling of the next token, as Ingot does natively: a seed gives the same tokens.

const WORD = 0xffffffffn;

/** A random seed. */
export const anySeed = () => crypto.getRandomValues(new BigUint64Array(1))[0];

/** A random number in [0, 1), from the seed and the number of earlier draws (Salmon et al., 2011, Philox4x32-10). */
function random(seed, drawn) {
  let words = [BigInt(drawn), 0n, 0n, 0n];
  let [low, high] = [seed & WORD, (seed >> 32n) & WORD];
  for (let round = 0; round < 10; round++) {
    const [a, b] = [words[0] * 0xd2511f53n, words[2] * 0xcd9e8d57n];
    words = [(b >> 32n) ^ words[1] ^ low, b & WORD, (a >> 32n) ^ words[3] ^ high, a & WORD];
    [low, high] = [(low + 0x9e3779b9n) & WORD, (high + 0xbb67ae85n) & WORD];
  }
  return Number(((words[0] << 32n) | words[1]) >> 11n) * 2 ** -53;
}

/** Samples one of the `most` best ids. drawn: the number of earlier draws with this seed. */
export function draw(logits, { temperature, most, seed }, drawn) {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a]);
  const best = order.slice(0, most).sort((a, b) => a - b);
  const weights = best.map((id) => Math.exp((logits[id] - logits[order[0]]) / temperature));
  let left = random(seed, drawn) * weights.reduce((sum, weight) => sum + weight, 0);
  return best.find((_, i) => (left -= weights[i]) < 0) ?? order[0];
}
