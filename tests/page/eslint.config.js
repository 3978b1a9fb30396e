// Run from the root of the repository: ESLint lints nothing that lies outside of where it is run.

import js from "@eslint/js";
import globals from "globals";

const AS_TEXT = "names come from the job: set text as text";

export default [
  js.configs.recommended,
  {
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-shadow": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  {
    files: ["dfx_agent/web/static/**"],
    languageOptions: { globals: globals.browser },
    rules: {
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: AS_TEXT },
        { property: "outerHTML", message: AS_TEXT },
        { property: "insertAdjacentHTML", message: AS_TEXT },
      ],
    },
  },
  {
    files: ["tests/page/**"],
    languageOptions: { globals: { ...globals.node, document: "readonly" } },
  },
];
