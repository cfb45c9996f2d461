"""CSV jobs: an agent, a command or a function works on each row of a table, and reports one JSON object."""
