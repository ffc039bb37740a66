async function main() {
  const data = await read('data'), stages = data.stages, names = Object.keys(stages);
  byId('name').textContent = data.name;
  const ports = (rows) => (rows ?? []).slice(0, 4).map((row) => `${row.name}: ${row.type}`).join(', ');
  const assumed = Object.keys(data.assumed ?? {});
  byId('about').textContent = `${data.model.split(/[\\/]/).pop()}: ${ports(data.summary.inputs)} → ${ports(data.summary.outputs)}` +
    (assumed.length ? `. Dims taken as 1: ${assumed.join(', ')}` : '');
  let shown = names[0], hits = [], hit = -1;
  const drawing = new Drawing(byId('drawing'), stages, (node) => details(node));

  // The quantities of a stage; the chosen one stays where the next stage has it.
  function offerColours() {
    const choice = byId('paint'), before = choice.value, {numbers} = stages[shown];
    choice.replaceChildren(element('option', 'op', {value: ''}));
    for (const key of Object.keys(numbers)) choice.append(element('option', QUANTITIES[key].title, {value: key}));
    choice.value = before in numbers ? before : '';
    paintBy(choice.value);
  }

  function paintBy(quantity) {
    const column = stages[shown].numbers[quantity];
    const {fill: filled, largest} = column ? heated(column) : {fill: (node) => fill(stages[shown].ops[node])};
    drawing.fill = filled;
    drawing.nameColour = column ? '--ink' : '--faint';
    byId('scale').textContent = column ? `0 to ${QUANTITIES[quantity].text(largest)}` : '';
  }

  const show = (stage, node = -1) => {
    shown = stage;
    for (const button of byId('stages').children) button.setAttribute('aria-pressed', String(button.dataset.stage === stage));
    offerColours();
    drawing.show(stage, node);
    details(node);
    search(false);
  };
  for (const name of names) {
    const button = element('button', `${stages[name].title} (${stages[name].names.length})`, {type: 'button', 'data-stage': name});
    button.addEventListener('click', () => show(name));
    byId('stages').append(button);
  }

  // The nodes of other stages that were built from the same node of the model's file, or have the same name; else, in a
  // later stage, the nearest ones below it, which compute it.
  const related = (node) => {
    const sources = new Set(stages[shown].sources[node]), own = stages[shown].names[node];
    return names.filter((name) => name !== shown).map((name) => {
      const stage = stages[name];
      const found = stage.names.flatMap((each, i) =>
        each === own || stage.sources[i].some((source) => sources.has(source)) ? [i] : []);
      if (!found.length && names.indexOf(name) > names.indexOf(shown)) found.push(...below(node, stage));
      return [name, found.slice(0, 12)];
    });
  };

  function below(node, stage) {
    const {edges, names: own} = stages[shown], numbers = new Map(stage.names.map((name, i) => [name, i])), users = new Map();
    for (let i = 0; i < edges.length; i += 2) users.set(edges[i], [...users.get(edges[i]) ?? [], edges[i + 1]]);
    const waiting = [node], known = new Set(waiting), found = [];
    for (const each of waiting) {
      const number = numbers.get(own[each]);
      if (number !== undefined) found.push(number);
      else for (const user of users.get(each) ?? []) if (known.size < known.add(user).size) waiting.push(user);
    }
    return found;
  }

  let asked = 0; // how often details were shown: the C of an earlier node comes too late
  function details(node) {
    const aside = byId('details'), now = ++asked;
    aside.replaceChildren();
    if (node < 0) {
      aside.append(element('p', 'Click a node to see its details. Drag to move, use the wheel or two fingers to zoom.'));
      return;
    }
    aside.append(element('h2', stages[shown].ops[node]));
    const others = related(node);
    for (const [name, found] of others) {
      if (!found.length) continue;
      const links = element('div', `${stages[name].title}:`, {class: 'links'});
      for (const i of found) {
        const button = element('button', `${stages[name].ops[i]} ${stages[name].names[i]}`, {type: 'button'});
        button.addEventListener('click', () => show(name, i));
        links.append(button);
      }
      aside.append(links);
    }
    aside.append(described(stages[shown], node));
    const steps = shown === 'plan' ? [node] : others.find(([name]) => name === 'plan')?.[1] ?? [];
    if (steps.length) codeOf().then((code) => asked === now && showCode(aside, stages.plan, steps, code));
  }

  function search(isMoving = true) {
    const text = byId('search').value.trim().toLowerCase();
    hits = matching(stages[shown], text);
    hit = -1;
    drawing.marked = new Set(hits);
    byId('found').textContent = text ? `${hits.length} found` : '';
    if (isMoving && hits.length) next();
    else drawing.draw();
  }

  function next() {
    if (!hits.length) return;
    hit = (hit + 1) % hits.length;
    byId('found').textContent = `${hit + 1} of ${hits.length}`;
    drawing.selected = hits[hit];
    drawing.centre(hits[hit]);
    details(hits[hit]);
  }

  byId('search').addEventListener('input', () => search());
  byId('search').addEventListener('keydown', (event) => event.key === 'Enter' && next());
  byId('next').addEventListener('click', next);
  byId('paint').addEventListener('change', () => {
    paintBy(byId('paint').value);
    drawing.draw();
  });
  byId('fit').addEventListener('click', () => drawing.fit());

  // A node by its name, in the graph of a stage.
  function goTo(stage, name) {
    open('graph');
    show(stage, stages[stage].names.indexOf(name));
  }

  const paintMemory = showMemory(data.arena, {about: byId('memory-about'), canvas: byId('map'), told: byId('memory-tensor')});
  const built = {
    passes: () => showPasses(byId('passes'), data.passes), errors: () => showErrors(byId('errors'), data.errors),
    time: () => showTimes(byId('time'), data), warnings: () => showWarnings(byId('warnings'), data.warnings, goTo), weights: () => showWeights(byId('weights'), data.weights),
    memory: () => data.sizes && showSizes(byId('sizes'), data.sizes),
  };
  const count = data.warnings.reduce((sum, kind) => sum + kind.count, 0);
  const warnings = count ? `Warnings (${count.toLocaleString('en')})` : 'Warnings';
  const open = addTabs({graph: 'Graph', passes: 'Passes', memory: 'Memory', time: 'Time', errors: 'Errors', weights: 'Weights', warnings}, (id) => {
    built[id]?.(); // on first use: the tables are long
    delete built[id];
    id === 'memory' ? paintMemory() : drawing.draw();
  });
  show(shown);
  window.report = {drawing, show, data};
}

main();
