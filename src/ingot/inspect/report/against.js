const SIDES = ['a', 'b'], MARKS = ['--same', '--changed', '--only'];
const signed = (count, unit = bytes) => count === 0 ? '0' : `${count > 0 ? '+' : '−'}${unit(Math.abs(count))}`;
const grouped = (count) => count.toLocaleString('en');
const microseconds = (nanoseconds) => nanoseconds === null || nanoseconds === undefined ? '' : (nanoseconds / 1000).toFixed(1);
const factor = (a, b) => a && b ? `${(b / a).toFixed(2)} ×` : '';

function showDifference(section, {a, b, difference}) {
  const units = {bytes, arena_bytes: bytes, weight_bytes: bytes};
  const keys = Object.keys(difference.a).filter((key) => typeof difference.a[key] === 'number' && key !== 'threads');
  section.append(element('h2', 'Totals of the plans'), table(
    [{title: ''}, {title: 'A', isNumber: true}, {title: 'B', isNumber: true}, {title: 'B − A', isNumber: true}],
    keys.map((key) => {
      const unit = units[key] ?? grouped, [left, right] = [difference.a[key], difference.b[key]];
      return [key.replace('_', ' '), unit(left), unit(right), signed(right - left, unit)];
    }),
  ));
  const isMeasured = a.measured && b.measured;
  const rows = difference.nodes.map((row) => [row, Math.abs((row.b?.nanoseconds ?? 0) - (row.a?.nanoseconds ?? 0)),
    Math.abs((row.b?.bytes ?? 0) - (row.a?.bytes ?? 0))]);
  rows.sort((left, right) => isMeasured ? right[1] - left[1] : right[2] - left[2]);
  const shown = rows.slice(0, 400);
  section.append(element('h2', `Nodes, ${isMeasured ? 'largest difference of time' : 'largest difference of bytes'} first`));
  if (!isMeasured) section.append(element('p', 'No times: the models were not run for this report.'));
  const columns = [{title: 'node'}, {title: 'kernel of A', isWide: true}, {title: 'kernel of B', isWide: true}];
  if (isMeasured) columns.push({title: 'us of A', isNumber: true}, {title: 'us of B', isNumber: true}, {title: 'B : A', isNumber: true, isWide: true});
  columns.push({title: 'bytes of A', isNumber: true, isWide: isMeasured}, {title: 'bytes of B', isNumber: true, isWide: isMeasured});
  section.append(table(columns, shown.map(([row]) => {
    const kernels = (side) => side ? side.kernels.join(', ') : '(none)', size = (side) => side ? bytes(side.bytes) : '';
    const times = isMeasured ? [microseconds(row.a?.nanoseconds), microseconds(row.b?.nanoseconds), factor(row.a?.nanoseconds, row.b?.nanoseconds)] : [];
    return [row.name, kernels(row.a), kernels(row.b), ...times, size(row.a), size(row.b)];
  })));
  if (shown.length < rows.length) section.append(element('p', `and ${rows.length - shown.length} more nodes`));
  const counts = Object.entries(difference.kernels);
  section.append(element('h2', counts.length ? 'Kernels whose number differs' : 'Each kernel runs as often in both plans'));
  if (counts.length) section.append(table(
    [{title: 'kernel and tasks'}, {title: 'A', isNumber: true}, {title: 'B', isNumber: true}],
    counts.map(([name, [left, right]]) => [name, left, right]),
  ));
}

function showWeightsOfBoth(section, {a, b}) {
  const formats = [...new Set([a, b].flatMap((side) => side.weights.formats.map(([name]) => name)))];
  const of = (side, name) => side.weights.formats.find(([each]) => each === name) ?? [name, 0, 0];
  section.append(element('h2', 'By format'), table(
    [{title: 'format'}, {title: 'tensors of A', isNumber: true}, {title: 'tensors of B', isNumber: true},
      {title: 'bytes of A', isNumber: true}, {title: 'bytes of B', isNumber: true}],
    formats.map((name) => [name, of(a, name)[1], of(b, name)[1], bytes(of(a, name)[2]), bytes(of(b, name)[2])]),
  ));
  const other = new Map(b.weights.rows.map((row) => [row[0], row])), seen = new Set(a.weights.rows.map(([name]) => name));
  const rows = [...a.weights.rows.map((row) => [row[0], row, other.get(row[0])]),
    ...b.weights.rows.filter(([name]) => !seen.has(name)).map((row) => [row[0], null, row])];
  section.append(element('h2', 'By name'), table(
    [{title: 'tensor'}, {title: 'type in A', isWide: true}, {title: 'type in B', isWide: true}, {title: 'bytes of A', isNumber: true}, {title: 'bytes of B', isNumber: true}],
    rows.map(([name, left, right]) => [name, left?.[1] ?? '', right?.[1] ?? '', left ? bytes(left[3]) : '', right ? bytes(right[3]) : '']),
  ));
}

async function main() {
  const data = await read('data'), {difference} = data, names = Object.keys(difference.marks);
  const told = ({model, precision, isa, threads}) => `${model}, ${precision}, ${isa}, ${threads} thread${threads === 1 ? '' : 's'}`;
  byId('name').textContent = data.a.name === data.b.name ? data.a.name : `${data.a.name} and ${data.b.name}`;
  byId('about').textContent = `A: ${told(difference.a)}. B: ${told(difference.b)}.`;
  let shown = names[names.length - 1], hits = [], hit = -1;
  const drawings = {};
  const stageOf = (side) => data[side].stages[shown];

  let asked = 0; // how often a node was selected: the C of an earlier node comes too late
  function details(side, node) {
    const aside = byId(`details-${side}`), now = asked;
    aside.replaceChildren();
    if (node < 0) aside.append(element('p', `No such node in ${side.toUpperCase()}.`));
    else {
      aside.append(element('h2', stageOf(side).ops[node]), described(stageOf(side), node));
      if (shown === 'plan') codeOf().then((code) => asked === now && showCode(aside, stageOf(side), [node], code[side]));
    }
  }

  // A node by its name, in both graphs.
  function select(name) {
    asked++;
    for (const side of SIDES) {
      const node = stageOf(side).names.indexOf(name), drawing = drawings[side];
      drawing.selected = node;
      if (node >= 0) drawing.centre(node);
      else drawing.draw();
      details(side, node);
    }
  }

  for (const side of SIDES) {
    const drawing = new Drawing(byId(`drawing-${side}`), data[side].stages, (node) => node >= 0 && select(stageOf(side).names[node]));
    drawing.fill = (node) => colour(MARKS[difference.marks[shown][side][node]]);
    drawing.nameColour = '--ink';
    drawings[side] = drawing;
  }

  const show = (stage) => {
    shown = stage;
    for (const button of byId('stages').children) button.setAttribute('aria-pressed', String(button.dataset.stage === stage));
    for (const side of SIDES) {
      const {names: all} = stageOf(side), marks = difference.marks[stage][side];
      const differing = marks.filter((mark) => mark).length;
      byId(`graph-${side}`).textContent = `${side.toUpperCase()}: ${all.length} nodes, ${differing} of which differ`;
      byId(`details-${side}`).replaceChildren(element('p', 'Click a node to see it in both graphs.'));
      drawings[side].show(stage);
    }
    search();
  };
  for (const name of names) {
    const button = element('button', data.a.stages[name].title, {type: 'button', 'data-stage': name});
    button.addEventListener('click', () => show(name));
    byId('stages').append(button);
  }

  // The names of nodes of both graphs, each once, for which the text matches.
  function search() {
    const text = byId('search').value.trim().toLowerCase();
    const found = SIDES.map((side) => matching(stageOf(side), text));
    SIDES.forEach((side, i) => drawings[side].marked = new Set(found[i]));
    hits = [...new Set(SIDES.flatMap((side, i) => found[i].map((node) => stageOf(side).names[node])))];
    hit = -1;
    byId('found').textContent = text ? `${hits.length} found` : '';
    if (hits.length) next();
    else SIDES.forEach((side) => drawings[side].draw());
  }

  function next() {
    if (!hits.length) return;
    hit = (hit + 1) % hits.length;
    byId('found').textContent = `${hit + 1} of ${hits.length}`;
    select(hits[hit]);
  }

  function nextDifference() {
    byId('search').value = '';
    const all = [...new Set(SIDES.flatMap((side) => stageOf(side).names.filter((_, node) => difference.marks[shown][side][node])))];
    if (hits.join('\n') !== all.join('\n')) [hits, hit] = [all, -1];
    if (hits.length) next();
    else byId('found').textContent = 'no difference';
  }

  byId('search').addEventListener('input', search);
  byId('search').addEventListener('keydown', (event) => event.key === 'Enter' && next());
  byId('next').addEventListener('click', next);
  byId('differing').addEventListener('click', nextDifference);
  byId('fit').addEventListener('click', () => SIDES.forEach((side) => drawings[side].fit()));

  const height = Math.max(...SIDES.map((side) => data[side].arena?.bytes ?? 0));
  const paints = SIDES.map((side) => showMemory(data[side].arena,
    {about: byId(`memory-about-${side}`), canvas: byId(`map-${side}`), told: byId(`memory-tensor-${side}`)}, height));
  showDifference(byId('difference'), data);
  const built = {weights: () => showWeightsOfBoth(byId('weights'), data), graph: () => show(shown)};
  addTabs({difference: 'Difference', graph: 'Graphs', memory: 'Memory', weights: 'Weights'}, (id) => {
    built[id]?.(); // on first use: a hidden graph has no size
    delete built[id];
    if (id === 'memory') paints.forEach((paint) => paint());
    if (id === 'graph') SIDES.forEach((side) => drawings[side].draw());
  });
  window.report = {drawings, show, select, data};
}

main();
