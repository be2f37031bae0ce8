"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
document.title = data.title;
document.getElementById("title").textContent = data.title;

function svg(parent, name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

// Letters keep their size on narrow screens, where a drawing shrinks: what their size is to be multiplied with.
function textScaleOf(drawing, most) {
  const width = drawing.viewBox.baseVal.width;
  return Math.min(Math.max(width / (drawing.clientWidth || width), 1), most);
}

// Viridis: its dark half on a light page, its light half on a dark one, so that every colour stands out from the page.
const VIRIDIS = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128], [94, 201, 98],
                 [173, 220, 48], [253, 231, 37]];
const dark = matchMedia("(prefers-color-scheme: dark)");
function viridis(share) {
  const at = (dark.matches ? 0.4 + 0.6 * share : 0.54 * share) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, i) => Math.round(value + (at - low) * (VIRIDIS[low + 1][i] - value)));
}
