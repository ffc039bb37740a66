// A drawing page for a model that classifies grey images.

import { element, enable, latest, open, percent, shares } from './page.js';

const MOST_SCORES = 10; // that are shown
const FINE = 8; // subpixels along each side of a pixel, which is their mean
const PEN_STEP = 1 / 24; // of the paper, per arrow key
// Drawings fill small images; larger images keep a margin, as in MNIST.
const SMALL = { frame: 0, line: 0.15 };
const LARGE = { frame: 1 / 7, line: 0.09 };
const LARGE_PIXELS = 20;

const paper = element('paper');
const strokes = []; // lines of points, as fractions of the paper
const pen = { x: 0.5, y: 0.5, isDown: false, isShown: false };

const model = await open();
const [[input, { shape }]] = Object.entries(model.programs.run.inputs);
const [height, width] = shape.slice(-2);
const { ink } = model.plan.page;

function line(context, points, across) {
  context.lineWidth = across;
  context.lineCap = context.lineJoin = 'round';
  context.beginPath();
  context.moveTo(points[0].x, points[0].y);
  for (const { x, y } of points) context.lineTo(x, y);
  context.stroke();
}

function show() {
  const context = paper.getContext('2d');
  const side = paper.width;
  context.clearRect(0, 0, side, side);
  context.strokeStyle = context.fillStyle = getComputedStyle(paper).color;
  for (const points of strokes) {
    line(context, points.map(({ x, y }) => ({ x: x * side, y: y * side })), side / 14);
  }
  if (!pen.isShown) return;
  context.beginPath();
  context.arc(pen.x * side, pen.y * side, side / 40, 0, 2 * Math.PI);
  context.lineWidth = 4;
  if (pen.isDown) context.fill();
  else context.stroke();
}

/** The drawing as the model's input: moved and scaled to fill it, each pixel the mean of its area. */
function pixels() {
  const { frame, line: across } = Math.min(height, width) < LARGE_PIXELS ? SMALL : LARGE;
  const canvas = new OffscreenCanvas(width * FINE, height * FINE);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  const points = strokes.flat();
  const low = { x: Math.min(...points.map(({ x }) => x)), y: Math.min(...points.map(({ y }) => y)) };
  const high = { x: Math.max(...points.map(({ x }) => x)), y: Math.max(...points.map(({ y }) => y)) };
  const thick = across * Math.min(canvas.width, canvas.height);
  const room = (side) => side * (1 - 2 * frame) - thick;
  const scale = Math.min(
    room(canvas.width) / Math.max(high.x - low.x, 1e-3),
    room(canvas.height) / Math.max(high.y - low.y, 1e-3),
  );
  const placed = ({ x, y }) => ({
    x: canvas.width / 2 + scale * (x - (low.x + high.x) / 2),
    y: canvas.height / 2 + scale * (y - (low.y + high.y) / 2),
  });
  for (const stroke of strokes) line(context, stroke.map(placed), thick);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const means = new Float32Array(width * height);
  for (let y = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++) {
      const pixel = Math.floor(y / FINE) * width + Math.floor(x / FINE);
      means[pixel] += data[4 * (y * canvas.width + x) + 3] / (255 * FINE * FINE);
    }
  }
  return means;
}

function showSeen(means) {
  const seen = element('seen');
  [seen.width, seen.height] = [width, height];
  const image = new ImageData(width, height);
  means.forEach((mean, i) => image.data.set([255 * mean, 255 * mean, 255 * mean, 255], 4 * i));
  seen.getContext('2d').putImageData(image, 0, 0);
}

function showScores(found) {
  const order = found.map((_, i) => i).sort((a, b) => found[b] - found[a]);
  element('answer').textContent = order[0];
  const shown = order.slice(0, MOST_SCORES);
  if (found.length <= MOST_SCORES) shown.sort((a, b) => a - b);
  element('scores').replaceChildren(
    ...shown.map((i) => {
      const row = document.createElement('li');
      row.className = i === order[0] ? 'best' : '';
      const [label, bar, share] = ['label', 'bar', 'share'].map((name) => {
        const part = document.createElement('span');
        part.className = name;
        row.append(part);
        return part;
      });
      label.textContent = i;
      share.textContent = percent(found[i]);
      bar.append(document.createElement('span'));
      bar.firstChild.style.width = percent(found[i]).replace(' ', '');
      return row;
    }),
  );
}

const read = latest(async () => {
  if (!strokes.length) return;
  const means = pixels();
  showSeen(means);
  const [{ data }] = Object.values(await model.run({ [input]: means.map((mean) => mean * ink) }));
  if (strokes.length) showScores(shares(data)); // or the paper was cleared meanwhile
});

function clear() {
  strokes.length = 0;
  pen.isDown = false;
  element('answer').textContent = '–';
  element('scores').replaceChildren();
  showSeen(new Float32Array(width * height));
  show();
}

function changed() {
  show();
  read();
}

function position(event) {
  const { left, top, width, height } = paper.getBoundingClientRect();
  return { x: (event.clientX - left) / width, y: (event.clientY - top) / height };
}

paper.addEventListener('pointerdown', (event) => {
  if (event.button) return;
  paper.setPointerCapture(event.pointerId);
  pen.isShown = false;
  strokes.push([position(event)]);
  changed();
});
paper.addEventListener('pointermove', (event) => {
  if (!paper.hasPointerCapture(event.pointerId)) return;
  strokes.at(-1).push(position(event));
  changed();
});

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
paper.addEventListener('keydown', (event) => {
  if (event.key === 'Delete' || event.key === 'Backspace') clear();
  else if (event.key === ' ') {
    pen.isDown = !pen.isDown;
    if (pen.isDown) strokes.push([{ x: pen.x, y: pen.y }]);
  } else if (event.key in ARROWS) {
    const [right, down] = ARROWS[event.key];
    pen.x = Math.min(1, Math.max(0, pen.x + right * PEN_STEP));
    pen.y = Math.min(1, Math.max(0, pen.y + down * PEN_STEP));
    if (pen.isDown) strokes.at(-1).push({ x: pen.x, y: pen.y });
  } else return;
  event.preventDefault();
  pen.isShown = true;
  changed();
});
paper.addEventListener('blur', () => {
  pen.isShown = pen.isDown = false;
  show();
});
element('clear').addEventListener('click', clear);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);

clear();
enable();
