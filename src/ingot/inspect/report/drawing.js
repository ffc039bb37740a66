'use strict';

const element = (name, text = '', attributes = {}) => {
  const built = document.createElement(name);
  built.textContent = text;
  for (const [key, value] of Object.entries(attributes)) built.setAttribute(key, value);
  return built;
};
const byId = (id) => document.getElementById(id);
const bytes = (count) => {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]])
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
};
const dark = matchMedia('(prefers-color-scheme: dark)');
// Results of functions of a text, until the theme changes: frames ask for the same ones thousands of times.
const remembered = (compute) => {
  const known = new Map();
  dark.addEventListener('change', () => known.clear());
  return (text) => {
    if (!known.has(text)) known.set(text, compute(text));
    return known.get(text);
  };
};
const colour = remembered((name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim());
const hue = (text) => {
  let found = 0;
  for (let i = 0; i < text.length; i++) found = (found * 31 + text.charCodeAt(i)) % 360;
  return found;
};
const fill = remembered((text) => `hsl(${hue(text)} ${dark.matches ? '35% 27%' : '60% 88%'})`);

const NODE = {width: 150, height: 34};
const CELL = 600; // of the index of nodes

async function read(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return JSON.parse(await new Response(stream).text());
}

// A canvas in the pixels of its screen.
function context(canvas) {
  const scale = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const size = [Math.max(1, Math.round((box.width - 2) * scale)), Math.max(1, Math.round((box.height - 2) * scale))];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const drawn = canvas.getContext('2d');
  drawn.setTransform(scale, 0, 0, scale, 0, 0);
  return [drawn, box.width - 2, box.height - 2];
}

// Cut a text to a width.
function cut(drawn, text, width) {
  if (drawn.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (drawn.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

class Drawing {
  constructor(canvas, stages, onSelect) {
    Object.assign(this, {canvas, stages, onSelect, selected: -1, marked: new Set(), waiting: false, moved: null});
    this.texts = new Map();
    this.fill = (node) => fill(this.stage.ops[node]);
    this.nameColour = '--faint';
    this.listen();
  }

  // By cell: the nodes in it, and the edges that cross its rows of cells.
  index(stage) {
    stage.cells = new Map();
    const add = (key, kind, number) => {
      if (!stage.cells.has(key)) stage.cells.set(key, {nodes: [], edges: []});
      stage.cells.get(key)[kind].push(number);
    };
    stage.names.forEach((_, i) => {
      const column = Math.floor(stage.x[i] / CELL), row = Math.floor(stage.y[i] / CELL);
      add(`${column} ${row}`, 'nodes', i);
    });
    stage.long = [];
    for (let i = 0; i < stage.edges.length; i += 2) {
      const [a, b] = [stage.edges[i], stage.edges[i + 1]];
      const rows = [Math.floor(stage.y[a] / CELL), Math.floor(stage.y[b] / CELL)].sort((p, q) => p - q);
      if (rows[1] - rows[0] > 8) stage.long.push(i);
      else for (let row = rows[0]; row <= rows[1]; row++) add(`row ${row}`, 'edges', i);
    }
  }

  show(name, node = -1) {
    this.stage = this.stages[name];
    if (!this.stage.cells) this.index(this.stage);
    this.marked = new Set();
    this.selected = node;
    if (node >= 0) {
      this.centre(node);
      return;
    }
    this.fit();
    if (this.scale < 0.35 && this.stage.names.length) this.begin();
  }

  // The whole graph.
  fit() {
    const [, width, height] = context(this.canvas), stage = this.stage;
    this.scale = Math.min(1.2, (width - 24) / stage.width, (height - 24) / stage.height);
    this.left = stage.width / 2 - width / 2 / this.scale;
    this.top = stage.height / 2 - height / 2 / this.scale;
    this.draw();
  }

  // The first node of a large graph, in a size that can be read.
  begin() {
    const [, width] = context(this.canvas), stage = this.stage;
    this.scale = 0.6;
    this.left = stage.x[0] + NODE.width / 2 - width / 2 / this.scale;
    this.top = -12 / this.scale;
    this.draw();
  }

  centre(node) {
    const [, width, height] = context(this.canvas), stage = this.stage;
    this.scale = Math.max(this.scale || 0, 0.9);
    this.left = stage.x[node] + NODE.width / 2 - width / 2 / this.scale;
    this.top = stage.y[node] + NODE.height / 2 - height / 2 / this.scale;
    this.draw();
  }

  draw() {
    this.moved = null;
    this.request();
  }

  // Moves the picture by pixels of the page; only what comes into view is painted.
  pan(dx, dy) {
    this.left -= dx / this.scale;
    this.top -= dy / this.scale;
    if (this.moved) this.moved = [this.moved[0] + dx, this.moved[1] + dy];
    else if (!this.waiting) this.moved = [dx, dy];
    this.request();
  }

  request() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.moved || !this.scroll(...this.moved)) this.paint();
      this.moved = null;
    });
  }

  // Shifts what is painted, and paints the strips that come into view. False if pixels do not allow it.
  scroll(dx, dy) {
    const {canvas} = this, ratio = devicePixelRatio || 1, before = [canvas.width, canvas.height];
    const [x, y] = [dx * ratio, dy * ratio];
    if (!Number.isInteger(x) || !Number.isInteger(y)) return false;
    const [drawn, width, height] = context(canvas);
    if (before[0] !== canvas.width || before[1] !== canvas.height) return false;
    if (Math.abs(dx) >= width || Math.abs(dy) >= height) return false;
    drawn.setTransform(1, 0, 0, 1, 0, 0);
    drawn.globalCompositeOperation = 'copy';
    drawn.drawImage(canvas, x, y);
    drawn.globalCompositeOperation = 'source-over';
    if (dx) this.paintPart(dx > 0 ? 0 : width + dx, 0, Math.abs(dx), height);
    if (dy) this.paintPart(0, dy > 0 ? 0 : height + dy, width, Math.abs(dy));
    return true;
  }

  paint() {
    const [, width, height] = context(this.canvas);
    if (width && this.stage) this.painted = this.paintPart(0, 0, width, height);
  }

  // Paints a rectangle of the canvas; returns the number of nodes in it.
  paintPart(x, y, width, height) {
    const drawn = this.canvas.getContext('2d'), ratio = devicePixelRatio || 1, {stage, scale} = this;
    const edge = 8 + 8 / scale; // lines and arrows reach beyond their positions
    const left = this.left + x / scale - edge, top = this.top + y / scale - edge;
    const right = left + width / scale + 2 * edge, bottom = top + height / scale + 2 * edge;
    const sees = (bx, by, w, h) => bx < right && bx + w > left && by < bottom && by + h > top;
    drawn.save();
    drawn.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawn.beginPath();
    drawn.rect(x, y, width, height);
    drawn.clip();
    drawn.clearRect(x, y, width, height);
    drawn.scale(scale, scale);
    drawn.translate(-this.left, -this.top);
    this.paintBoxes(drawn, sees);
    if (scale > 0.08) this.paintEdges(drawn, left, right, top, bottom);
    const nodes = [];
    for (const i of this.near(left, right, top, bottom))
      if (sees(stage.x[i], stage.y[i], NODE.width, NODE.height)) nodes.push(i);
    this.paintNodes(drawn, nodes);
    drawn.restore();
    return nodes.length;
  }

  // The nodes of the cells of a rectangle; all nodes where that has more cells.
  * near(left, right, top, bottom) {
    const {stage} = this, columns = (right - left) / CELL + 2, rows = (bottom - top) / CELL + 2;
    if (columns * rows > stage.names.length) {
      yield* stage.names.keys();
      return;
    }
    for (let column = Math.floor(left / CELL) - 1; column <= right / CELL; column++)
      for (let row = Math.floor(top / CELL) - 1; row <= bottom / CELL; row++)
        yield* stage.cells.get(`${column} ${row}`)?.nodes ?? [];
  }

  paintBoxes(drawn, sees) {
    const {stage, scale} = this;
    drawn.textBaseline = 'top';
    for (const [path, depth, x, y, w, h] of stage.boxes) {
      if (!sees(x, y, w, h) || w * scale < 3) continue;
      drawn.fillStyle = dark.matches ? `rgb(255 255 255 / ${0.025 + 0.01 * depth})` : `rgb(0 20 60 / ${0.025 + 0.01 * depth})`;
      drawn.fillRect(x, y, w, h);
      drawn.strokeStyle = colour('--line');
      drawn.lineWidth = 1 / scale;
      drawn.strokeRect(x, y, w, h);
      const size = Math.min(40, Math.max(12, 11 / scale));
      if (w * scale > 40 && (size <= 14 || h > 4 * size)) {
        drawn.font = `${size}px system-ui, sans-serif`;
        drawn.fillStyle = colour('--faint');
        const shown = size > 14 ? path.split('.').pop() : path;
        drawn.fillText(cut(drawn, shown, w - 12), x + 6, y + 5);
      }
    }
  }

  paintEdges(drawn, left, right, top, bottom) {
    const {stage, scale, selected} = this, seen = new Set(stage.long);
    for (let row = Math.floor(top / CELL); row <= bottom / CELL; row++)
      for (const i of stage.cells.get(`row ${row}`)?.edges ?? []) seen.add(i);
    for (const isOwn of [false, true]) {
      drawn.beginPath();
      for (const i of seen) {
        const [a, b] = [stage.edges[i], stage.edges[i + 1]];
        if ((a === selected || b === selected) !== isOwn) continue;
        const x0 = stage.x[a] + NODE.width / 2, y0 = stage.y[a] + NODE.height;
        const x1 = stage.x[b] + NODE.width / 2, y1 = stage.y[b];
        if (Math.max(x0, x1) < left || Math.min(x0, x1) > right || Math.max(y0, y1) < top || Math.min(y0, y1) > bottom) continue;
        const bend = Math.min(60, Math.abs(y1 - y0) / 2);
        drawn.moveTo(x0, y0);
        drawn.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
        if (scale > 0.4) {
          drawn.moveTo(x1 - 4, y1 - 6);
          drawn.lineTo(x1, y1);
          drawn.lineTo(x1 + 4, y1 - 6);
        }
      }
      drawn.strokeStyle = colour(isOwn ? '--accent' : '--faint');
      drawn.globalAlpha = isOwn ? 1 : 0.55;
      drawn.lineWidth = (isOwn ? 2 : 1) / Math.min(1, scale * 1.5);
      drawn.stroke();
      drawn.globalAlpha = 1;
    }
  }

  // By colour: a change of the style costs more than a rectangle.
  paintNodes(drawn, nodes) {
    const {stage, scale} = this, fills = new Map(), {width, height} = NODE;
    for (const i of nodes) {
      const key = this.fill(i);
      if (!fills.has(key)) fills.set(key, []);
      fills.get(key).push(i);
    }
    for (const [key, some] of fills) {
      drawn.fillStyle = key;
      for (const i of some) drawn.fillRect(stage.x[i], stage.y[i], width, height);
    }
    const isMarked = (i) => i === this.selected || this.marked.has(i);
    if (scale > 0.25) {
      drawn.strokeStyle = colour('--line');
      drawn.lineWidth = 1;
      for (const i of nodes) if (!isMarked(i)) drawn.strokeRect(stage.x[i], stage.y[i], width, height);
    }
    drawn.strokeStyle = colour('--accent');
    drawn.lineWidth = Math.max(3, 3 / scale);
    for (const i of nodes) if (isMarked(i)) drawn.strokeRect(stage.x[i], stage.y[i], width, height);
    if (scale < 0.35) return;
    drawn.textBaseline = 'middle';
    const lines = [[stage.ops, '600 12px', '--ink', 11], [stage.names, '11px', this.nameColour, 25]];
    for (const [texts, font, ink, y] of lines) {
      drawn.font = `${font} system-ui, sans-serif`;
      drawn.fillStyle = colour(ink);
      for (const i of nodes) drawn.fillText(this.shortened(drawn, texts[i], font), stage.x[i] + 7, stage.y[i] + y);
    }
  }

  shortened(drawn, text, font) {
    const key = `${font} ${text}`;
    if (!this.texts.has(key)) this.texts.set(key, cut(drawn, text, NODE.width - 14));
    return this.texts.get(key);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), {stage} = this;
    const x = this.left + (event.clientX - box.left) / this.scale, y = this.top + (event.clientY - box.top) / this.scale;
    for (const dx of [0, -1])
      for (const dy of [0, -1])
        for (const i of stage.cells.get(`${Math.floor(x / CELL) + dx} ${Math.floor(y / CELL) + dy}`)?.nodes ?? [])
          if (x >= stage.x[i] && x <= stage.x[i] + NODE.width && y >= stage.y[i] && y <= stage.y[i] + NODE.height) return i;
    return -1;
  }

  zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.004, this.scale * factor));
    this.left += x / this.scale - x / scale;
    this.top += y / this.scale - y / scale;
    this.scale = scale;
    this.draw();
  }

  listen() {
    const {canvas} = this, fingers = new Map();
    let moved = 0;
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 500), event.offsetX, event.offsetY);
    }, {passive: false});
    canvas.addEventListener('pointerdown', (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, event);
      moved = 0;
    });
    canvas.addEventListener('pointermove', (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
      moved += Math.abs(dx) + Math.abs(dy);
      const other = [...fingers.values()].find((each) => each.pointerId !== event.pointerId);
      if (other) {
        const apart = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY) || 1;
        const box = canvas.getBoundingClientRect();
        this.zoom(apart(event) / apart(before), other.clientX - box.left, other.clientY - box.top);
      } else this.pan(dx, dy);
      fingers.set(event.pointerId, event);
    });
    const end = (event) => {
      fingers.delete(event.pointerId);
      if (event.type === 'pointerup' && moved < 5) this.select(this.at(event));
    };
    canvas.addEventListener('pointerup', end);
    canvas.addEventListener('pointercancel', end);
    canvas.addEventListener('keydown', (event) => {
      const [x, y] = [canvas.clientWidth / 2, canvas.clientHeight / 2], step = 60;
      const moves = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]};
      if (moves[event.key]) {
        event.preventDefault();
        this.pan(-moves[event.key][0], -moves[event.key][1]);
      } else if (event.key === '+' || event.key === '-') this.zoom(event.key === '+' ? 1.25 : 0.8, x, y);
      else if (event.key === '0') this.fit();
    });
    new ResizeObserver(() => this.stage && this.draw()).observe(canvas);
    dark.addEventListener('change', () => this.draw());
  }

  select(node) {
    this.selected = node;
    this.draw();
    this.onSelect(node);
  }
}

function table(columns, rows) {
  const built = element('table'), head = built.createTHead().insertRow(), body = built.createTBody();
  const classes = (column, cell) => {
    if (column.isNumber) cell.classList.add('number');
    if (column.isWide) cell.classList.add('wide');
  };
  for (const column of columns) {
    const cell = element('th', column.title, {scope: 'col'});
    classes(column, cell);
    head.append(cell);
  }
  for (const row of rows) {
    const line = body.insertRow();
    columns.forEach((column, i) => {
      const cell = line.insertCell();
      if (column.isShare) {
        cell.classList.add('share');
        cell.style.setProperty('--part', `${(100 * row[i]).toFixed(1)}%`);
        cell.textContent = `${(100 * row[i]).toFixed(1)} %`;
      } else cell.append(row[i]); // a text or an element
      classes(column, cell);
    });
  }
  const scroll = element('div', '', {class: 'scroll'});
  scroll.append(built);
  return scroll;
}

function showTimes(section, data) {
  if (!data.measured) {
    section.append(element('p', 'No times: the model was not run for this report, which --measure does.'));
    return;
  }
  const total = data.measured.reduce((sum, row) => sum + row.nanoseconds, 0), ops = new Map();
  for (const row of data.measured) {
    const op = ops.get(row.kernel) ?? [row.kernel, 0, 0, 0];
    ops.set(row.kernel, [row.kernel, op[1] + 1, op[2] + row.nanoseconds, op[3] + row.flops]);
  }
  section.append(element('p', `${(total / 1000).toFixed(1)} us for ${data.measured.length} steps, each measured alone with a barrier after it.`));
  if (data.machine) showTimeline(section, data.machine.timeline);
  section.append(element('h2', 'By kernel'));
  const kernels = [...ops.values()].sort((a, b) => b[2] - a[2]);
  section.append(table(
    [{title: 'kernel'}, {title: 'steps', isNumber: true}, {title: 'us', isNumber: true}, {title: 'share', isShare: true}, {title: 'GFLOP/s', isNumber: true}],
    kernels.map(([name, count, time, flops]) => [name, count, (time / 1000).toFixed(1), time / total, (flops / Math.max(1, time)).toFixed(1)]),
  ));
  showModules(section, data.measured, data.modules);
  if (data.machine) showRoofline(section, data.measured, data.machine.limits);
  section.append(element('h2', 'By step'));
  const steps = [...data.measured].sort((a, b) => b.nanoseconds - a.nanoseconds).slice(0, 200);
  section.append(table(
    [{title: 'node'}, {title: 'kernel', isWide: true}, {title: 'us', isNumber: true}, {title: 'share', isShare: true},
      {title: 'GFLOP/s', isNumber: true, isWide: true}, {title: 'GB/s', isNumber: true, isWide: true}, {title: 'of limit', isNumber: true}],
    steps.map((row) => [row.node, `${row.kernel} x${row.parts}`, (row.nanoseconds / 1000).toFixed(1), row.nanoseconds / total,
      row.gflops.toFixed(1), row.gigabytes_per_second.toFixed(1), `${(100 * row.of_limit).toFixed(0)} %`]),
  ));
}

function showWeights(section, {formats, rows, count}) {
  const total = formats.reduce((sum, row) => sum + row[2], 0) || 1;
  section.append(element('h2', 'By format'));
  section.append(table(
    [{title: 'format'}, {title: 'tensors', isNumber: true}, {title: 'bytes', isNumber: true}, {title: 'share', isShare: true}],
    formats.map(([name, tensors, size]) => [name, tensors, bytes(size), size / total]),
  ));
  section.append(element('h2', rows.length < count ? `The ${rows.length} largest of ${count}` : `All ${count}, by size`));
  section.append(table(
    [{title: 'tensor'}, {title: 'type', isWide: true}, {title: 'kind', isWide: true}, {title: 'bytes', isNumber: true}, {title: 'share', isShare: true}],
    rows.map(([name, type, kind, size]) => [name, type, kind, bytes(size), size / total]),
  ));
}

// A map of an arena. bytes: the height of the map, so that two maps have one scale.
function showMemory(arena, {about, canvas, told}, height = arena?.bytes) {
  if (!arena) {
    about.textContent = 'No plan: dims have no values, or no kernel runs.';
    canvas.hidden = told.hidden = true;
    return () => {};
  }
  about.textContent = `Arena ${bytes(arena.bytes)}; no plan needs less than ${bytes(arena.lower_bound_bytes)}; ` +
    `${bytes(arena.activation_bytes)} without sharing. Peak ${bytes(arena.peak_bytes)} at step ${arena.peak_step}, ` +
    `${arena.steps[arena.peak_step]}. Steps go from left to right, addresses from top to bottom; ${arena.tensors} tensors.`;
  let over = null;
  const paint = () => {
    const [drawn, width, high] = context(canvas);
    if (!width) return;
    const x = (step) => step * width / arena.steps.length, y = (offset) => offset * (high - 2) / height + 1;
    drawn.clearRect(0, 0, width, high);
    for (const row of arena.rectangles) {
      const [name, birth, death, offset, size] = row;
      drawn.fillStyle = fill(name);
      drawn.fillRect(x(birth), y(offset), Math.max(1, x(death + 1) - x(birth)), Math.max(1, y(offset + size) - y(offset)));
      if (x(death + 1) - x(birth) > 2) {
        drawn.strokeStyle = colour(row === over ? '--accent' : '--line');
        drawn.lineWidth = row === over ? 3 : 1;
        drawn.strokeRect(x(birth), y(offset), x(death + 1) - x(birth), y(offset + size) - y(offset));
      }
      if (x(death + 1) - x(birth) > 50 && y(offset + size) - y(offset) > 16) {
        drawn.font = '12px system-ui, sans-serif';
        drawn.textBaseline = 'top';
        drawn.fillStyle = colour('--ink');
        drawn.fillText(cut(drawn, name, x(death + 1) - x(birth) - 8), x(birth) + 4, y(offset) + 3);
      }
    }
    drawn.strokeStyle = colour('--accent');
    drawn.setLineDash([5, 4]);
    drawn.lineWidth = 1.5;
    drawn.strokeRect(x(arena.peak_step), 0, Math.max(2, width / arena.steps.length), y(arena.bytes));
    drawn.setLineDash([]);
  };
  const point = (event) => {
    const step = event.offsetX * arena.steps.length / canvas.clientWidth, at = event.offsetY * height / canvas.clientHeight;
    over = arena.rectangles.find(([, birth, death, offset, size]) => step >= birth && step < death + 1 && at >= offset && at < offset + size) ?? null;
    told.textContent = over ? `${over[0]}: ${over[6]} ${over[5]}, ${bytes(over[4])} from byte ${over[3].toLocaleString('en')}, steps ${over[1]} to ${over[2]}`
      : 'Point at a tensor.';
    paint();
  };
  canvas.addEventListener('pointermove', point);
  canvas.addEventListener('pointerdown', point);
  new ResizeObserver(paint).observe(canvas);
  dark.addEventListener('change', paint);
  return paint;
}

// The rows of a node's details.
function described(stage, node) {
  const list = element('dl');
  list.append(element('dt', 'name'), element('dd', stage.names[node]));
  for (const [label, text] of stage.details[node]) list.append(element('dt', label), element('dd', text));
  return list;
}

// The nodes of a stage whose name, op or source contains a text.
function matching(stage, text) {
  const has = (word) => word.toLowerCase().includes(text);
  return !text ? [] : stage.names.flatMap((name, i) => has(name) || has(stage.ops[i]) || stage.sources[i].some(has) ? [i] : []);
}

// Tabs for sections by id; shown: called with the id of a section when it is shown. Returns a function that shows one.
function addTabs(titles, shown) {
  const [first] = Object.keys(titles), found = {};
  for (const [id, title] of Object.entries(titles)) {
    const tab = element('button', title, {type: 'button', role: 'tab', 'aria-controls': id, 'aria-selected': String(id === first)});
    tab.addEventListener('click', () => {
      for (const other of byId('tabs').children) {
        const isShown = other === tab;
        other.setAttribute('aria-selected', String(isShown));
        byId(other.getAttribute('aria-controls')).hidden = !isShown;
      }
      shown(id);
    });
    byId('tabs').append(tab);
    found[id] = tab;
  }
  return (id) => found[id].click();
}
