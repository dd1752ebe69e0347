'use strict';
// Shows what belongs together while the pointer or the focus is on it. Without this script, bars and lines are links to each other.
for (const timeline of document.querySelectorAll('.timeline')) {
  const bars = [...timeline.querySelectorAll('.lanes a')], lines = [...timeline.querySelectorAll('.events li')];
  const cursor = timeline.querySelector('.cursor');
  const events = part => part.dataset.e.split(' ');
  const link = part => (part.localName === 'li' ? part.firstElementChild : part);
  const partners = part => {
    const own = new Set(events(part));
    return (lines.includes(part) ? bars : lines).filter(other => events(other).some(event => own.has(event)));
  };
  // The timeline is one stop of the Tab key for its bars, and one for its lines.
  for (const part of [...bars, ...lines]) link(part).setAttribute('tabindex', part === bars[0] || part === lines[0] ? 0 : -1);

  const clear = () => {
    for (const part of timeline.querySelectorAll('.on')) part.classList.remove('on');
  };
  const show = part => {
    clear();
    if (!part) return;
    const shown = [part, ...partners(part)];
    for (const other of shown) other.classList.add('on');
    const line = shown.find(other => other.localName === 'li');
    if (!line) return;
    for (const end of ['x1', 'x2']) cursor.setAttribute(end, `${line.dataset.x}%`);
    cursor.classList.add('on');
    if (part !== line) within(line);
  };
  /** Scrolls the list, and not the page. */
  const within = line => {
    const list = line.parentElement, top = line.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top + line.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 3;
  };
  const goTo = part => {
    const group = lines.includes(part) ? lines : bars;
    for (const other of group) link(other).setAttribute('tabindex', other === part ? 0 : -1);
    link(part).focus({ preventScroll: group === lines });
    if (group === lines) within(part);
  };
  // The list begins where the property is violated.
  const violated = lines.find(line => line.classList.contains('violated'));
  const begin = () => violated && within(violated);
  begin();
  for (let parent = timeline.closest('details'); parent; parent = parent.parentElement.closest('details')) parent.addEventListener('toggle', begin, { once: true });
  const at = event => event.target.closest('[data-e]');
  timeline.addEventListener('pointerover', event => show(at(event)));
  timeline.addEventListener('pointerleave', () => show(document.activeElement && timeline.contains(document.activeElement) ? document.activeElement.closest('[data-e]') : null));
  timeline.addEventListener('focusin', event => show(at(event)));
  timeline.addEventListener('focusout', clear);
  timeline.addEventListener('click', event => {
    const part = at(event), other = part && document.getElementById(link(part).getAttribute('href').slice(1));
    if (!other) return;
    event.preventDefault();
    goTo(other);
  });
  timeline.addEventListener('keydown', event => {
    const part = at(event), step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!part) return;
    const group = lines.includes(part) ? lines : bars;
    if (step) goTo(group[Math.min(Math.max(group.indexOf(part) + step, 0), group.length - 1)]);
    else if (event.key === ' ') part.dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true }));
    else return;
    event.preventDefault();
  });
}
