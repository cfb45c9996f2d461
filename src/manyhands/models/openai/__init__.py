"""Models behind an endpoint that speaks OpenAI's chat completions."""
