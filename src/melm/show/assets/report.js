"use strict";
(() => {
  const gallery = document.getElementById("gallery");
  if (!gallery) return;
  const byId = (id) => document.getElementById(id);
  const threshold = byId("threshold"), least = byId("least"), chosen = byId("class"), truth = byId("truth"), count = byId("count");
  const names = [...chosen.options].slice(1).map((option) => option.textContent);
  const shots = [...gallery.querySelectorAll(".shot")].map((node) => ({
    node,
    button: node.querySelector("button"),
    classes: node.dataset.classes.split(" "),
    boxes: [...node.querySelectorAll("rect.box")],
    objects: [...node.querySelectorAll("rect.true")],
  }));
  let shown = shots; // in the gallery now
  let open = null; // the one that is large

  function update() {
    const minimum = Number(threshold.value), only = chosen.value;
    least.textContent = minimum.toFixed(2);
    let boxes = 0, images = 0;
    for (const shot of shots) {
      const there = only === "" || shot.classes.includes(only);
      let here = 0;
      for (const box of shot.boxes) {
        const visible = Number(box.dataset.score) >= minimum && (only === "" || box.dataset.class === only);
        box.classList.toggle("off", !visible);
        if (visible) here += 1;
      }
      for (const object of shot.objects) {
        object.classList.toggle("off", !truth.checked || (only !== "" && object.dataset.class !== only));
      }
      shot.node.classList.toggle("off", !there);
      shot.node.classList.toggle("empty", here === 0 && shot.boxes.length > 0);
      if (there) {
        boxes += here;
        if (here) images += 1;
      }
    }
    shown = shots.filter((shot) => !shot.node.classList.contains("off"));
    const s = (n, word, many) => `${n.toLocaleString("en")} ${n === 1 ? word : many}`;
    count.textContent = `${s(boxes, "box", "boxes")} shown in ${s(images, "image", "images")}`;
  }
  for (const control of [threshold, chosen, truth]) if (control) control.addEventListener("input", update);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("pageshow", update); // a browser may bring back what was set before
  update();

  // One image large.
  const large = byId("large"), stage = byId("stage"), title = byId("large-title"), place = byId("large-place"), list = byId("large-boxes");

  function label(svg, box, size, taken) { // names no two boxes at one place
    const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
    const [, , width] = svg.getAttribute("viewBox").split(" ").map(Number);
    const x = Number(box.getAttribute("x")), y = Number(box.getAttribute("y"));
    text.textContent = `${names[box.dataset.class]} ${Number(box.dataset.score).toFixed(2)}`;
    text.setAttribute("font-size", size);
    const wide = text.textContent.length * size * 0.6;
    const left = Math.max(0, Math.min(x + size * 0.25, width - wide));
    let down = Math.max(y, 0) + size;
    while (taken.some((other) => left < other.right && other.left < left + wide && Math.abs(down - other.down) < size * 1.1)) down += size * 0.3;
    taken.push({ left, right: left + wide, down });
    text.setAttribute("x", left);
    text.setAttribute("y", down);
    svg.append(text);
  }

  function show(shot) {
    open = shot;
    const photo = shot.button.querySelector(".photo").cloneNode(true), svg = photo.querySelector("svg");
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const boxes = [...svg.querySelectorAll("rect.box:not(.off)")];
    const taken = [];
    for (const box of boxes) label(svg, box, Math.max(width, height) / 34, taken);
    stage.replaceChildren(photo);
    const caption = shot.node.querySelector("figcaption");
    title.textContent = [...caption.children].map((part) => part.textContent).join(" · ");
    place.textContent = `${shown.indexOf(shot) + 1} of ${shown.length}`;
    list.replaceChildren(...boxes.reverse().map((box) => {
      const item = document.createElement("li");
      const words = [`${names[box.dataset.class]} ${Number(box.dataset.score).toFixed(2)}`];
      if (box.dataset.verdict) words.push(box.dataset.verdict);
      if (!box.classList.contains("best")) words.push("another object of its tag");
      item.textContent = words.join(", ");
      return item;
    }));
    if (!large.open) large.showModal();
  }

  function move(by) {
    const next = shown[Math.min(Math.max(shown.indexOf(open) + by, 0), shown.length - 1)];
    if (next && next !== open) show(next);
  }

  for (const shot of shots) shot.button.addEventListener("click", () => show(shot));
  byId("back").addEventListener("click", () => move(-1));
  byId("next").addEventListener("click", () => move(1));
  byId("close").addEventListener("click", () => large.close());
  large.addEventListener("click", (event) => { if (event.target === large) large.close(); });
  large.addEventListener("close", () => { if (open) open.button.focus(); });
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  large.addEventListener("keydown", (event) => {
    if (event.key in steps) {
      event.preventDefault();
      move(steps[event.key]);
    }
  });

  // Arrow keys walk through the gallery, too.
  gallery.addEventListener("keydown", (event) => {
    const at = shown.findIndex((shot) => shot.button === document.activeElement);
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (at < 0 || !by || !shown[at + by]) return;
    event.preventDefault();
    shown[at + by].button.focus();
  });
})();
