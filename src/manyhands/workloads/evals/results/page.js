"use strict";
const tests = Array.from(document.querySelectorAll("details.test"));
let texts = null;  // made when something is first looked for
const boxes = Array.from(document.querySelectorAll("input[data-status]"));
const search = document.getElementById("search");
const target = document.getElementById("target");
const shown = document.getElementById("shown");

function filter() {
  const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.dataset.status));
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const name = target ? target.value : "";
  if (words.length && !texts) texts = tests.map((test) => test.textContent.toLowerCase());
  let count = 0;
  tests.forEach((test, place) => {
    const fits = wanted.has(test.dataset.status) && (!name || test.dataset.target === name)
      && words.every((word) => texts[place].includes(word));
    test.hidden = !fits;
    count += fits;
  });
  shown.textContent = count + " of " + tests.length + " shown";
}

boxes.forEach((box) => box.addEventListener("change", filter));
search.addEventListener("input", filter);
if (target) target.addEventListener("change", filter);
document.querySelector(".filters").hidden = false;
filter();
