interface Window {
  /** plotly.js, once it is loaded. */
  Plotly?: any;
}
