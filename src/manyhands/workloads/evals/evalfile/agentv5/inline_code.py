"""Graders whose code stands in the eval file: ``javascript`` and ``python``. Each becomes a program that runs it.

The code gets ``output``, the answer's text, and ``context``: ``criteria``, ``expected_output``, ``input``, ``metadata``, ``trace``,
``token_usage``, ``cost_usd``, ``duration_ms``, ``file_changes``, ``workspace_path`` and the entry's ``config``; in JavaScript in camel
case. It is an expression, or the lines of a function, and gives a truth value, a number from 0 to 1, or an object with ``score`` or
``pass``, and perhaps ``reason`` and ``assertions``.
"""

from __future__ import annotations

from shutil import which

from manyhands.core.jsonio import Json

LANGUAGES = ("javascript", "python")

_JAVASCRIPT = """
const given = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const code = process.argv[process.argv.length - 1].trim().replace(/;+\\s*$/, "");
const names = ["criteria", "expected_output", "input", "metadata", "trace", "token_usage", "cost_usd", "duration_ms",
  "file_changes", "workspace_path", "config"];
const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
const context = Object.fromEntries(names.map((name) => [camel(name), given[name] ?? null]));
const last = code.lastIndexOf(";");
const body = code.includes("\\n") || /\\breturn\\b/.test(code) ? code
  : /^(const|let|var)\\s/.test(code) && last >= 0 ? code.slice(0, last + 1) + " return " + code.slice(last + 1)
  : "return " + code;
const share = (value) => Math.min(Math.max(Number.isFinite(value) ? value : 0, 0), 1);
Promise.resolve(new Function("output", "context", body)(given.output, context)).then((found) => {
  const result = typeof found === "object" && found !== null ? found : { score: Number(found) };
  const score = typeof result.score === "number" ? share(result.score) : Number(result.pass === true);
  const said = { score, ...(result.reason ? { reasoning: String(result.reason) } : {}) };
  if (Array.isArray(result.assertions) && result.assertions.length) said.assertions = result.assertions;
  console.log(JSON.stringify(said));
});
"""
_PYTHON = """
import json, math, sys, textwrap
given, code = json.load(sys.stdin), sys.argv[-1]
names = ("criteria", "expected_output", "input", "metadata", "trace", "token_usage", "cost_usd", "duration_ms", "file_changes",
    "workspace_path", "config")
body = textwrap.indent(code, "    ") if "\\n" in code else "    return " + code
scope = {}
exec("def main(output, context):\\n" + body, scope)
found = scope["main"](given["output"], {name: given.get(name) for name in names})
result = found if isinstance(found, dict) else {"score": float(found)}
score = result.get("score")
if isinstance(score, bool) or not isinstance(score, (int, float)):
    score = float(result.get("pass") is True)
said = {"score": min(max(score, 0), 1) if math.isfinite(score) else 0}
if result.get("reason"):
    said["reasoning"] = str(result["reason"])
if result.get("assertions"):
    said["assertions"] = result["assertions"]
print(json.dumps(said))
"""


def inline_code(language: str, code: str) -> dict[str, Json]:
    """The grader that runs code. ``language``: one of ``LANGUAGES``."""
    if language == "python":
        return {"type": "code_grader", "script": ["python3", "-c", _PYTHON, code]}
    runner = next((name for name in ("node", "bun") if which(name)), "node")
    return {"type": "code_grader", "script": [runner, "-e", _JAVASCRIPT, code]}
