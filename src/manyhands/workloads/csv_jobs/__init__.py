"""CSV jobs: each row of a table is given to an agent, which reports one JSON object. "The original" is Codex, whose tools these are."""
