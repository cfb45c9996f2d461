"use strict";
const tests = Array.from(document.querySelectorAll("details.test"));
const filters = document.querySelector(".filters");
const boxes = Array.from(filters.querySelectorAll("input[data-state]"));
const selects = Array.from(filters.querySelectorAll("select"));
const search = filters.querySelector("input[type=search]");
let texts = null;  // made when something is first looked for

function filter() {
  const states = new Set(boxes.filter((box) => box.checked).map((box) => box.dataset.state));
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !texts) texts = tests.map((test) => test.textContent.toLowerCase());
  let count = 0;
  tests.forEach((test, place) => {
    const fits = states.has(test.dataset.state)
      && selects.every((select) => !select.value || test.dataset[select.dataset.field] === select.value)
      && words.every((word) => texts[place].includes(word));
    test.hidden = !fits;
    count += fits;
  });
  filters.querySelector(".shown").textContent = count + " of " + tests.length + " shown";
}

for (const input of [...boxes, ...selects]) input.addEventListener("change", filter);
search.addEventListener("input", filter);
for (const link of document.querySelectorAll('a[href^="#agent-"]')) {
  link.addEventListener("click", () => { document.querySelector(link.getAttribute("href")).open = true; });
}
filters.hidden = false;
filter();
