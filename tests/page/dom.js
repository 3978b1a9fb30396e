// A document for modules that ask for one when they are loaded. Import it before them.

import { Window } from "happy-dom";

const window = new Window({ url: "http://127.0.0.1:9931/" });
Object.assign(globalThis, {
  window,
  document: window.document,
  matchMedia: window.matchMedia.bind(window),
  getComputedStyle: window.getComputedStyle.bind(window),
});
